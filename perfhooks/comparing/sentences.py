"""A comparison in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import words
from perfhooks.comparing.reason import ELSEWHERE
from perfhooks.comparing.verdict import PROCESS_SD

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.comparing.reason import Contribution
    from perfhooks.comparing.side import Side
    from perfhooks.comparing.verdict import Verdict

_PARTS: Final = {
    "data": "waiting for data",
    "transfer": "copying the batch to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "other": "the rest of the step",
}
_CLASSES: Final = {
    "communication": "communication",
    "copy": "copies",
    "set": "memsets",
    "compute": "computation",
}
_OFTEN: Final = 0.1
"""Counts of calls that differ by less than this share are called equal. Where they differ by more, dearer calls may be
what runs between them."""
_CAUSE: Final = 0.6
"""A difference is put down to the number of calls alone, or to their price alone, if that makes this share of it."""


def verdict(found: Verdict | None) -> str:
    """What the unrecorded steps tell, in one or two sentences."""
    if found is None:
        return "Not decided: no side has enough steps that nobody recorded, so there is nothing to judge by."
    change = f"{words.ms(found.median_a)} -> {words.ms(found.median_b)}, {percent(found.ratio)}"
    interval = f"99% interval {percent(found.low)} to {percent(found.high)}"
    told = f"{change} ({interval}; {_of(found)})"
    word = {"slower": "Slower", "faster": "Faster", "same": "The same", "undecided": "Not decided"}[found.outcome]
    within = f", within {100 * found.tolerance:.3g}%" if found.outcome == "same" else ""
    text = f"{word}{within}: the median step went {told}."
    return f"{text} {_needed(found)}" if found.outcome == "undecided" else text


def windows_alone(a: Side, b: Side) -> str:
    """What can be said where the recorded steps are all that there is."""
    change = f"{words.ms(a.step_ms)} -> {words.ms(b.step_ms)} in the recorded steps"
    ratio = f", {percent(b.step_ms / a.step_ms)}" if a.step_ms else ""
    counts = f"{a.costs.steps} and {words.count(b.costs.steps, 'step')}"
    return f"Not decided: {change} ({counts}{ratio}); nothing unrecorded to judge by."


def _of(found: Verdict) -> str:
    runs = "one run a side" if found.runs_a == found.runs_b == 1 else f"{found.runs_a} and {found.runs_b} runs"
    steps = f"{runs}, {found.steps_a} and {found.steps_b} steps"
    if found.is_process_known:
        return steps
    why = ", as their own steps are uneven" if found.process_sd > PROCESS_SD else ""
    return f"{steps}, so the interval allows for {100 * found.process_sd:.2g}% from process to process{why}"


def _needed(found: Verdict) -> str:
    options = []
    if found.more_steps is not None:
        options.append(f"{found.more_steps} more steps in each run")
    if found.more_runs is not None:
        options.append(f"{words.count(found.more_runs, 'more run')} a side")
    if not options:
        return "The difference is as large as what is tolerated: hardly any number of runs will decide."
    return f"{' or '.join(options)} would decide."


def contribution(found: Contribution, amount: Callable[[float], str] | None = None) -> str:
    """One reason as a sentence: how much, of what, and whether there are more calls or dearer ones.

    Args:
        found: The reason.
        amount: How to write its numbers; None takes them for nanoseconds.
    """
    say = amount or nanoseconds
    text = _told(found, say)
    return f"{text}; what did not change varies by as much." if found.sure == 0 else f"{text}."


def _told(found: Contribution, say: Callable[[float], str]) -> str:
    text = f"{_signed(found.difference, say)} a step: {subject(found)}"
    if found.is_new:
        return f"{text} is new{_most(found, say)}"
    if found.is_gone:
        return f"{text} is gone (it took {say(found.a)})"
    renamed = f" (now called {found.renamed})" if found.renamed else ""
    return f"{text}{renamed} takes {say(found.b)} instead of {say(found.a)}{_why(found)}{_most(found, say)}"


def _signed(value: float, say: Callable[[float], str]) -> str:
    return f"{'+' if value >= 0 else '-'}{say(abs(value))}"


def nanoseconds(value: float) -> str:
    """Nanoseconds as milliseconds, or microseconds."""
    return words.ms(value / 1e6)


def subject(found: Contribution) -> str:
    """What a contribution is about, as the subject of a sentence."""
    if found.kind == "part":
        return _PARTS.get(found.name, found.name)
    if found.kind == "idle":
        return f"idle device during {_PARTS.get(found.name, found.name)}"
    if found.kind == "class":
        return f"the device's {_CLASSES.get(found.name, found.name)}"
    if found.kind == "types":
        before, _, after = found.name.partition(" -> ")
        return f"what took {before} and now takes {after}"
    if found.kind == ELSEWHERE:
        return f"elsewhere in {_PARTS[found.name]}" if found.name in _PARTS else "elsewhere"
    return f"{'Python in ' if found.kind == 'line' else ''}{found.name}"


def _why(found: Contribution) -> str:
    """Whether there are more calls, or dearer ones."""
    if not found.difference or not found.count_a:
        return ""
    calls = f"{found.count_a:.4g} -> {found.count_b:.4g} calls"
    share = found.by_count / found.difference
    if share >= _CAUSE:
        return f", by {'more' if found.difference > 0 else 'fewer'} calls ({calls})"
    if share <= 1 - _CAUSE:
        is_as_often = abs(found.count_b - found.count_a) <= _OFTEN * found.count_a
        return f", each call {'dearer' if found.difference > 0 else 'cheaper'}" if is_as_often else f" ({calls})"
    return f", half by the number of calls ({calls}), half by their price"


def _most(found: Contribution, say: Callable[[float], str]) -> str:
    """What changed most inside."""
    told = [
        each
        for each in found.inside
        if each[0] not in (found.name, subject(found)) and abs(each[1]) >= _NAMED * abs(found.difference)
    ]
    words = [f"{_cut(name)} {_signed(change, say)}" for name, change, *_ in told[:2]]
    return f"; most of it {' and '.join(words)}" if words else ""


_NAMED: Final = 0.2
_LONGEST: Final = 70


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 2]} …"


def percent(ratio: float) -> str:
    """A ratio as a change: ``+5.1%``."""
    return f"{100 * (ratio - 1):+.1f}%"
