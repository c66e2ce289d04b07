"""Which part of a step each moment of a thread belongs to: by the labels in the trace, else by what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.core import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import communication, device_work, operators, part_names
from perfhooks.trace.names.ranges import COMPILED_REGION, LOADER
from perfhooks.trace.nesting import host, intervals, phases, validations
from perfhooks.trace.nesting.spans import Spans, from_moments, layered
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals


class _Found(NamedTuple):
    """Slices that are a part of the step, by thread and time, on all threads."""

    thread: Column
    start: Ints
    end: Ints
    part: Column

    def on(self, thread: int) -> Spans:
        """Those of one thread."""
        first, last = np.searchsorted(self.thread, [thread, thread + 1])
        return Spans(self.start[first:last], self.end[first:last], self.part[first:last].tolist())


class _All(NamedTuple):
    """All that a trace says of the parts of a step."""

    written: _Found
    fetches: _Found
    automatic: _Found
    ranges: _Found
    """torch's own: optimizers, DDP, FSDP."""
    compiled: _Found
    frames: _Found
    copies: _Found
    collectives: _Found
    losses: _Found
    marks: _Found


@cached_per_trace
def of_thread(trace: Trace, thread: int) -> dict[str, Intervals]:
    """The moments of each part on one thread, disjoint, as long as the thread has slices.

    A moment belongs to the first of these that is open, and among several of one kind to the innermost:

    1. a label that somebody wrote: the names of `perfhooks.core.labels.PARTS`, and those of `part_names`;
    2. a fetch of PyTorch's DataLoader;
    3. what perfhooks labelled by itself while it recorded, torch's own ranges around ``Optimizer.step`` and
       ``zero_grad``, and outside of these labels

       * ``backward``: from the first to the last node of autograd, on whatever threads they run, with what lies between
         as long as nothing else begins; where stacks were recorded, the whole call;
       * ``forward``: the operators that made a node of autograd, what torch.compile made, calls of modules where stacks
         were recorded, and the ranges of DDP and FSDP. In a trace without labels of ours the time between such
         operators belongs to it, as long as nothing else begins;
       * ``checkpoint``: ``torch.save`` where stacks were recorded;

    4. ``transfer``: operators that copy from the host to a device;
    5. ``communication``: collectives that the thread starts, or waits for, itself.

    Fetches and transfers that belong to a validation count as ``validation``; see `validations`.
    """
    written, fetches, automatic, ranges, compiled, frames, copies, collectives, losses, marks = (
        found.on(thread) for found in _all(trace)
    )
    first, last = np.searchsorted(trace.thread, [thread, thread + 1])
    if first == last:
        return dict.fromkeys(labels.PARTS, intervals.nothing())
    extent = int(trace.start[first]), int(trace.end[first:last].max())
    if not any(each.part for each in (written, fetches, automatic, ranges, compiled, frames, copies, collectives)) and (
        not phases.are_on(trace, thread, extent)
    ):
        return dict.fromkeys(labels.PARTS, intervals.nothing())
    optimizers = from_moments({labels.OPTIMIZER: ranges.of(labels.OPTIMIZER)})
    fetches, copies, automatic = _validating(written, [fetches, copies, automatic], [optimizers, losses])
    edges = [each.edges for each in (written, fetches, automatic, optimizers, marks)]
    breaks = intervals.distinct(*edges)
    backward = phases.backward(trace, thread, extent, intervals.distinct(breaks, frames.of(labels.FORWARD)[:, 0]))
    forward = phases.forward(trace, thread, None if automatic.part else intervals.distinct(breaks, backward[:, 0]))
    # an optimizer may be compiled as well
    made = intervals.subtract(compiled.moments, optimizers.moments)
    inferred = {
        labels.FORWARD: intervals.joined(forward, frames.of(labels.FORWARD), ranges.of(labels.FORWARD), made),
        labels.BACKWARD: intervals.joined(backward, frames.of(labels.BACKWARD)),
        labels.CHECKPOINT: frames.of(labels.CHECKPOINT),
    }
    taken = automatic.moments
    guessed = from_moments({part: intervals.subtract(moments, taken) for part, moments in inferred.items()})
    layers = (written, fetches, automatic.joined(optimizers, guessed), copies, collectives)
    return layered(layers, labels.PARTS)


@cached_per_trace
def _all(trace: Trace) -> _All:
    loader = trace.named(Kind.ANNOTATION, Kind.OP, prefix=LOADER)
    marks = trace.named(Kind.ANNOTATION, Kind.OP, prefix=labels.STEP_MARK)
    return _All(
        written=_called(trace, part_names.of_label, Kind.ANNOTATION),
        fetches=_found(trace, loader, labels.DATA),
        automatic=_called(trace, part_names.of_automatic, Kind.ANNOTATION),
        ranges=_called(trace, part_names.of_range, Kind.ANNOTATION, Kind.OP),
        compiled=_found(trace, trace.named(Kind.ANNOTATION, Kind.OP, prefix=COMPILED_REGION), labels.FORWARD),
        frames=_called(trace, part_names.of_frame, Kind.PYTHON, outermost=True),
        copies=_found(trace, _copying(trace), labels.TRANSFER),
        collectives=_called(trace, _collective, Kind.OP, Kind.ANNOTATION),
        losses=_found(trace, trace.searched(operators.LOSSES, Kind.OP), validations.LOSS),
        marks=_found(trace, marks, ""),
    )


def _found(trace: Trace, rows: Ints, part: str) -> _Found:
    return _Found(trace.thread[rows], trace.start[rows], trace.end[rows], np.full(len(rows), part))


def _called(trace: Trace, part_of: Callable[[str], str | None], *kinds: Kind, outermost: bool = False) -> _Found:
    """The slices that a table of names calls a part; with ``outermost``, those that lie in no other of them."""
    rows = trace.chosen(part_of, *kinds)
    if outermost:
        rows = phases.outermost(trace, rows)
    parts = {name: part_of(trace.names[name]) for name in intervals.distinct(trace.name[rows]).tolist()}
    return _found(trace, rows, "")._replace(part=np.array([parts[name] for name in trace.name[rows].tolist()], np.str_))


def _collective(name: str) -> str | None:
    return labels.COMMUNICATION if communication.ON_THREAD.search(name) else None


def _copying(trace: Trace) -> Ints:
    """The outermost operators that copy from the host to a device, or the calls where none is around."""
    copies = trace.chosen(device_work.TO_DEVICE.search, Kind.COPY)
    if not len(copies):
        return copies
    copy = np.searchsorted(trace.device_rows, copies)
    entries = intervals.distinct(host.launchers(trace)[copy])
    operators = phases.outermost_operators(trace)[entries[entries >= 0]]
    return intervals.distinct(host.tree(trace).row[operators])


def _validating(written: Spans, every: list[Spans], hints: list[Spans]) -> list[Spans]:
    """Return fetches, copies and our labels, with the parts of a validation told from those of training.

    Args:
        written: Labels of the user.
        every: Fetches, copies and our labels.
        hints: Optimizers and losses, which tell both apart.
    """
    if not any(labels.VALIDATION in spans.part for spans in every):
        return every
    marks = _marks(written, [*every, *hints])
    told = validations.told([part for *_, part in marks], [group for _, group, *_ in marks])
    corrected = [list(spans.part) for spans in every]
    for (_, group, place, _), part in zip(marks, told, strict=True):
        if 0 <= group < len(every):
            corrected[group][place] = part
    return [spans._replace(part=part) for spans, part in zip(every, corrected, strict=True)]


def _marks(written: Spans, every: list[Spans]) -> list[tuple[int, int, int, str]]:
    """What begins on a thread, in order: when, in which group, its place there, and what it seems to be.

    Written labels are of group -1 and hide what lies in them; so do fetches, in which a data set may call modules. A
    validation that somebody labelled is left out: it holds its own fetches.
    """
    marks = []
    for group, spans in enumerate(every):
        hidden = intervals.covers(written.moments, spans.start)
        if group:
            hidden |= intervals.covers(every[0].moments, spans.start)
        marks += [
            (begin, group, place, spans.part[place])
            for place, (begin, hides) in enumerate(zip(spans.start.tolist(), hidden.tolist(), strict=True))
            if not hides
        ]
    said = zip(written.start.tolist(), written.part, strict=True)
    marks += [(begin, validations.WRITTEN, -1, part) for begin, part in said if part != labels.VALIDATION]
    return sorted(marks)
