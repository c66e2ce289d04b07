"""A comparison in plain sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from perfhooks.analysis.comparison.facts import GIVEN
from perfhooks.analysis.comparison.reason import ELSEWHERE
from perfhooks.analysis.comparison.turns import FEWEST_PAIRS, MOST_PAIRS
from perfhooks.analysis.comparison.verdict import EDGE_CONFIDENCE
from perfhooks.core import words
from perfhooks.core.statistics import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.analysis.comparison.facts import Difference
    from perfhooks.analysis.comparison.reason import Contribution
    from perfhooks.analysis.comparison.side import Side
    from perfhooks.analysis.comparison.timed import Stalls
    from perfhooks.analysis.comparison.verdict import Ratio, Verdict

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


def verdict(found: Verdict | None, samples: tuple[int, int] | None = None) -> str:
    """What the unrecorded steps tell, in one sentence.

    Args:
        found: The verdict; of one sample instead of one step, where ``samples`` are given.
        samples: How many a step of each side takes, where they differ.
    """
    if found is None:
        return "Undecided: too few unprofiled steps on both sides."
    if samples:
        return _by_sample(found, samples)
    change = f"{words.ms(found.decisive.b)} instead of {words.ms(found.decisive.a)}, {changed(found.ratio)}"
    step = "a step" if found.by == "mean" else "the typical step"
    if found.clock == "processor":
        step = f"in processor time {step}" if found.is_in_turns else f"without its waits for a processor {step}"
    chance = "which the busy machine may have made" if found.is_withheld else "which may be chance"
    if found.outcome == "same":
        return f"The same, within {_widest(found)}: {step} takes {change}."
    if found.outcome == "undecided" and found.is_in_turns and found.runs_a < FEWEST_PAIRS:
        are = "is" if found.runs_a == 1 else "are"
        return f"Undecided: {step} takes {change}; {_runs(found)} {are} too few to say, {FEWEST_PAIRS} do."
    if found.outcome == "undecided":
        return f"Undecided: {step} takes {change}, {chance}."
    return f"{found.outcome.capitalize()}: {step} takes {change}."


def _by_sample(found: Verdict, samples: tuple[int, int]) -> str:
    a, b = (1e3 / median for median in (found.decisive.a, found.decisive.b))
    rates = f"{_rate(b)} instead of {_rate(a)} samples a second, {changed(1 / found.ratio)}"
    word = {"slower": "Slower", "faster": "Faster", "same": "The same", "undecided": "Undecided"}[found.outcome]
    chance = ", which may be chance" if found.outcome == "undecided" else ""
    return f"{word} by the sample: {rates}{chance}; a step takes {samples[1]:,} samples instead of {samples[0]:,}."


def _rate(samples: float) -> str:
    return f"{samples:,.0f}" if samples >= _LARGE else f"{samples:.3g}"


_LARGE: Final = 100
"""Samples a second that are written without a digit behind the point, and a ratio that no measurement tells."""


def stalled(found: Verdict, a: Stalls, b: Stalls) -> str:
    """Where steps of another kind make the mean differ and not the typical step: which, how often and why.

    Args:
        found: The verdict.
        a: The long steps of A.
        b: And of B.
    """
    edge = math.log1p(found.tolerance)
    is_typical_same = abs(math.log(found.typical.ratio)) <= max(edge, abs(math.log(found.mean.ratio)) / 2)
    if found.by != "mean" or found.outcome not in ("slower", "faster") or not is_typical_same:
        return ""
    side, long, other = ("B", b, a) if found.outcome == "slower" else ("A", a, b)
    if long.share * long.times <= _CAUSE_OF_STALLS * other.share * other.times or not long.share:
        return ""
    why = ": waiting for data" if long.is_data else ""
    return (
        f"the typical one hardly differs, but in {side} {often(long.share)} takes {long.times:.2g} times as long{why}"
    )


_CAUSE_OF_STALLS: Final = 1.5
"""How many times as much long steps must take on one side, to be what the sides differ by."""


def often(share: float) -> str:
    """A share of steps as people count: ``every fifth``, ``one in 37``, ``41% of them``."""
    each = round(1 / share)
    if abs(share * each - 1) > _NEARLY:
        return f"{words.share(share)} of them"
    return f"every {_ORDINALS[each]}" if each in _ORDINALS else f"one in {each}"


_NEARLY: Final = 0.1
_ORDINALS: Final = dict(
    enumerate(("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), 2)
)


def certainty(found: Verdict) -> list[str]:
    """Return the interval of the ratio, and the number of runs that would decide; empty if nothing can."""
    if found.is_withheld:
        return []
    if is_wide(found.decisive):
        factor = math.sqrt(found.high / found.low)
        change = f"changes below a factor of {factor:.2g}" if factor < _LARGE else "any change"
        told = f"steps are too uneven to detect {change} ({_runs(found)})"
    else:
        width = EDGE_CONFIDENCE if found.outcome == "same" else CONFIDENCE
        told = f"{100 * width:.0f}% interval {interval(found.decisive)} ({_of(found)})"
    return ["; ".join(filter(None, (told, _needed(found) if found.outcome == "undecided" else "")))]


def is_wide(found: Ratio) -> bool:
    """Whether an undecided interval shows only noise: -30% to +40% is not a result."""
    return found.outcome == "undecided" and found.high / found.low > _TIMES


def ends(found: Ratio) -> tuple[float | None, float | None]:
    """Return the ends of an interval; None for an end that is only noise."""
    if is_wide(found):
        return None, None
    return (found.low if found.low > 1 / _LARGE else None), (found.high if found.high < _LARGE else None)


def interval(found: Ratio) -> str:
    """Return an interval as two changes: ``+3.8% to +78%``, ``1.5 to 30 times that``, or ``+50% or more``."""
    low, high = ends(found)
    if low is None or high is None:
        known = [(low, "more"), (high, "less")]
        return "".join(f"{changed(end)} or {beyond}" for end, beyond in known if end is not None) or "unknown"
    if found.high > _WIDEST:
        return f"{found.low:.2g} to {found.high:,.0f} times that"
    return f"{percent(found.low)} to {percent(found.high)}"


def _widest(found: Verdict) -> str:
    """Return the larger end of an interval, as the bound of "the same"."""
    return f"{100 * (max(found.high, 1 / found.low) - 1):.2g}%"


_WIDEST: Final = 10.0
"""Ratio from which on a percentage is hard to read: +900%."""


def commands(differing: Sequence[Difference]) -> str:
    """In what two commands differ: ``--batch-size 32 / 64``."""
    return f"The commands differ: {'; '.join(_argument(each) for each in differing)}."


def _argument(found: Difference) -> str:
    for side, value in (("A", found.a), ("B", found.b)):
        if value and not (found.a and found.b):
            return f"{side} has {f'{found.name} {_value(value)}'.strip()}"
    return f"{found.name} {_value(found.a)} / {_value(found.b)}".strip()


def _value(text: str) -> str:
    return "" if text == GIVEN else _cut(text)


def fact(found: Difference) -> str:
    """A fact that differs: ``version of torch 2.15 / 2.16``."""
    values = " / ".join(_cut(each) or "none" for each in (found.a, found.b))
    return f"{found.name.removeprefix('environment ')} {values}"


def windows_alone(a: Side, b: Side) -> str:
    """What can be said where the recorded steps are all that there is."""
    change = f"{words.ms(a.step_ms)} -> {words.ms(b.step_ms)} in the recorded steps"
    ratio = f", {percent(b.step_ms / a.step_ms)}" if a.step_ms else ""
    counts = f"{a.costs.steps} and {words.count(b.costs.steps, 'step')}"
    return f"Undecided: {change} ({counts}{ratio}); nothing unrecorded to judge by."


def _of(found: Verdict) -> str:
    shown = f", as {found.runs_earlier} earlier runs did too" if found.runs_earlier else ""
    return f"{_runs(found)}; processes are taken to differ by {100 * found.process_sd:.2g}%{shown}"


def _runs(found: Verdict) -> str:
    if found.is_in_turns:
        return f"{words.count(found.runs_a, 'pair')} of processes"
    return "one run a side" if found.runs_a == found.runs_b == 1 else f"{found.runs_a} and {found.runs_b} runs"


def _needed(found: Verdict) -> str:
    if found.is_in_turns:  # which run until it is decided, or until there are no more
        more = found.more_runs or MOST_PAIRS
        return f"{words.count(more, 'more pair')} would decide" if found.runs_a + more <= MOST_PAIRS else ""
    options = []
    if found.more_steps is not None:
        options.append(f"{found.more_steps} more steps in each run")
    if found.more_runs is not None:
        options.append(f"{words.count(found.more_runs, 'more run')} a side")
    if not options:
        return f"more runs will not decide so small a difference; {_IN_TURNS}"
    many = found.more_steps is None and (found.more_runs or 0) > _MANY_RUNS
    return f"{' or '.join(options)} would decide{f'; {_IN_TURNS}' if many else ''}"


_MANY_RUNS: Final = 10
"""Above this many runs per side, suggest `compare --run` instead."""
_IN_TURNS: Final = "`perfhooks compare --run` may need fewer"


def contribution(found: Contribution, amount: Callable[[float], str] | None = None) -> str:
    """One reason as a sentence: how much, of what, and whether there are more calls or dearer ones.

    Args:
        found: The reason.
        amount: How to write its numbers; None takes them for nanoseconds.
    """
    say = amount or nanoseconds
    return f"{_told(found, say)}{_sureness(found, say)}."


def _sureness(found: Contribution, say: Callable[[float], str]) -> str:
    """Whether it is so in most steps, where single ones make it look like more."""
    is_in_few = found.sure is not None and abs(found.typical) < (1 - _CAUSE) * abs(found.difference)
    if found.sure == 0:
        return "; single steps make it" if is_in_few else "; what did not change varies by as much"
    return f"; {_signed(found.typical, say)} of it in most steps" if is_in_few else ""


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
    """A ratio as a change: ``+5.1%``, ``+62%``."""
    change = 100 * (ratio - 1)
    return f"{change:+.1f}%" if abs(change) < _WHOLE else f"{change:+,.0f}%"


_WHOLE: Final = 9.95
"""Percent from which on no digit behind the point is believed."""


def changed(ratio: float) -> str:
    """A ratio as a change, where it is one that people think of in percent: else ``3.3 times that``."""
    return percent(ratio) if 1 / _TIMES < ratio < _TIMES else f"{ratio:.2g} times that"


_TIMES: Final = 2.0
