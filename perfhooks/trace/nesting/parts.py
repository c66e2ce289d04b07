from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.core import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import communication, device_work, operators, part_names
from perfhooks.trace.names.ranges import COMPILED_REGION, LOADER, UPDATE
from perfhooks.trace.nesting import host, intervals, phases, validations
from perfhooks.trace.nesting.spans import Spans, from_moments, layered
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trace.model import Column, Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals


class _PartSlices(NamedTuple):
    thread: Column
    start: Ints
    end: Ints
    part: Column

    def on(self, thread: int) -> Spans:
        first, last = np.searchsorted(self.thread, [thread, thread + 1])
        return Spans(self.start[first:last], self.end[first:last], self.part[first:last].tolist())


class _PartSources(NamedTuple):
    written: _PartSlices
    fetches: _PartSlices
    automatic: _PartSlices
    ranges: _PartSlices
    updates: _PartSlices
    compiled: _PartSlices
    frames: _PartSlices
    copies: _PartSlices
    collectives: _PartSlices
    losses: _PartSlices
    marks: _PartSlices


@cached_per_trace
def of_thread(trace: Trace, thread: int) -> dict[str, Intervals]:
    """Return the disjoint intervals of each part of a step (data, forward, backward, ...) on one thread.

    If slices overlap, the slice in the first of these lines decides, and within a line the innermost slice:

    1. labels of the user with names in `perfhooks.core.labels.PARTS` or `part_names`;
    2. fetches of PyTorch's DataLoader;
    3. automatic labels of perfhooks, torch's ranges around optimizers, and parts inferred outside of these labels:

       * ``backward``: autograd nodes on any thread, or inside module calls on this thread; with recorded stacks, the
         whole call of ``backward()``;
       * ``forward``: operators that create autograd nodes, regions of torch.compile, module calls, DDP and FSDP;
       * ``checkpoint``: ``torch.save`` in recorded stacks;

    4. ``transfer``: operators that copy from the host to a device;
    5. ``communication``: collectives that the thread itself starts or waits for.

    `validations` separates the part ``validation`` from training.
    """
    written, fetches, automatic, ranges, updates, compiled, frames, copies, collectives, losses, marks = (
        source.on(thread) for source in _part_sources(trace)
    )
    first, last = np.searchsorted(trace.thread, [thread, thread + 1])
    if first == last:
        return dict.fromkeys(labels.PARTS, intervals.nothing())
    extent = int(trace.start[first]), int(trace.end[first:last].max())
    if not any(
        spans.part for spans in (written, fetches, automatic, ranges, compiled, frames, copies, collectives)
    ) and (not phases.are_on(trace, thread, extent)):
        return dict.fromkeys(labels.PARTS, intervals.nothing())
    optimizers = from_moments({labels.OPTIMIZER: ranges.of(labels.OPTIMIZER)})
    fetches, copies, automatic = _correct_validations(written, [fetches, copies, automatic], [updates, losses])
    edges = [spans.edges for spans in (written, fetches, automatic, optimizers, marks)]
    breaks = intervals.distinct(*edges)
    backward = phases.backward(trace, thread, extent, intervals.distinct(breaks, frames.of(labels.FORWARD)[:, 0]))
    forward = phases.forward(trace, thread, None if automatic.part else intervals.distinct(breaks, backward[:, 0]))
    compiled_forward = intervals.subtract(compiled.moments, optimizers.moments)
    inferred = {
        labels.FORWARD: intervals.joined(
            forward, frames.of(labels.FORWARD), ranges.of(labels.FORWARD), compiled_forward
        ),
        labels.BACKWARD: intervals.joined(backward, frames.of(labels.BACKWARD)),
        labels.CHECKPOINT: frames.of(labels.CHECKPOINT),
    }
    automatic_intervals = automatic.moments
    guessed = {part: intervals.subtract(moments, automatic_intervals) for part, moments in inferred.items()}
    in_calls = intervals.intersect(phases.backward_in_calls(trace, thread, breaks), automatic.of(labels.FORWARD))
    guessed[labels.BACKWARD] = intervals.joined(guessed[labels.BACKWARD], in_calls)
    layers = (written, fetches, automatic.joined(optimizers, from_moments(guessed)), copies, collectives)
    return layered(layers, labels.PARTS)


@cached_per_trace
def _part_sources(trace: Trace) -> _PartSources:
    loader = trace.named(Kind.ANNOTATION, Kind.OP, prefix=LOADER)
    marks = trace.named(Kind.ANNOTATION, Kind.OP, prefix=labels.STEP_MARK)
    return _PartSources(
        written=_slices_by_name(trace, part_names.of_label, Kind.ANNOTATION),
        fetches=_slices_of(trace, loader, labels.DATA),
        automatic=_slices_by_name(trace, part_names.of_automatic, Kind.ANNOTATION),
        ranges=_slices_by_name(trace, part_names.of_range, Kind.ANNOTATION, Kind.OP),
        updates=_slices_of(trace, trace.named(Kind.ANNOTATION, Kind.OP, prefix=UPDATE), labels.OPTIMIZER),
        compiled=_slices_of(trace, trace.named(Kind.ANNOTATION, Kind.OP, prefix=COMPILED_REGION), labels.FORWARD),
        frames=_slices_by_name(trace, part_names.of_frame, Kind.PYTHON, outermost=True),
        copies=_slices_of(trace, _host_copies(trace), labels.TRANSFER),
        collectives=_slices_by_name(trace, _collective, Kind.OP, Kind.ANNOTATION),
        losses=_slices_of(trace, trace.searched(operators.LOSSES, Kind.OP), validations.LOSS),
        marks=_slices_of(trace, marks, ""),
    )


def _slices_of(trace: Trace, rows: Ints, part: str) -> _PartSlices:
    return _PartSlices(trace.thread[rows], trace.start[rows], trace.end[rows], np.full(len(rows), part))


def _slices_by_name(
    trace: Trace, part_of: Callable[[str], str | None], *kinds: Kind, outermost: bool = False
) -> _PartSlices:
    rows = trace.chosen(part_of, *kinds)
    if outermost:
        rows = phases.outermost(trace, rows)
    parts = {name: part_of(trace.names[name]) for name in intervals.distinct(trace.name[rows]).tolist()}
    return _slices_of(trace, rows, "")._replace(
        part=np.array([parts[name] for name in trace.name[rows].tolist()], np.str_)
    )


def _collective(name: str) -> str | None:
    return labels.COMMUNICATION if communication.ON_THREAD.search(name) else None


def _host_copies(trace: Trace) -> Ints:
    copies = trace.chosen(device_work.TO_DEVICE.search, Kind.COPY)
    if not len(copies):
        return copies
    copy = np.searchsorted(trace.device_rows, copies)
    entries = intervals.distinct(host.launchers(trace)[copy])
    operators = phases.outermost_operators(trace)[entries[entries >= 0]]
    return intervals.distinct(host.tree(trace).row[operators])


def _correct_validations(written: Spans, groups: list[Spans], hints: list[Spans]) -> list[Spans]:
    if not any(labels.VALIDATION in spans.part for spans in groups):
        return groups
    marks = _mark_order(written, [*groups, *hints])
    classified = validations.classify([part for *_, part in marks], [group for _, group, *_ in marks])
    corrected = [list(spans.part) for spans in groups]
    for (_, group, index, _), part in zip(marks, classified, strict=True):
        if 0 <= group < len(groups):
            corrected[group][index] = part
    return [spans._replace(part=part) for spans, part in zip(groups, corrected, strict=True)]


def _mark_order(written: Spans, groups: list[Spans]) -> list[tuple[int, int, int, str]]:
    """Return the slices that indicate a part of the step as (start, group, index, part), earliest first.

    Slices inside labels of the user or fetches are skipped, because a data set may call modules.
    """
    marks = []
    for group, spans in enumerate(groups):
        hidden = intervals.covers(written.moments, spans.start)
        if group:
            hidden |= intervals.covers(groups[0].moments, spans.start)
        marks += [
            (begin, group, index, spans.part[index])
            for index, (begin, hides) in enumerate(zip(spans.start.tolist(), hidden.tolist(), strict=True))
            if not hides
        ]
    labels_by_start = zip(written.start.tolist(), written.part, strict=True)
    marks += [(begin, validations.WRITTEN, -1, part) for begin, part in labels_by_start if part != labels.VALIDATION]
    return sorted(marks)
