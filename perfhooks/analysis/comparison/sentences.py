from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from perfhooks.analysis.comparison.difference import EDGE_CONFIDENCE
from perfhooks.analysis.comparison.facts import GIVEN
from perfhooks.analysis.comparison.reason import ELSEWHERE
from perfhooks.analysis.comparison.turns import FEWEST_PAIRS, MOST_PAIRS
from perfhooks.core import words
from perfhooks.core.statistics import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.analysis.comparison.difference import Ratio
    from perfhooks.analysis.comparison.facts import Difference
    from perfhooks.analysis.comparison.reason import Contribution
    from perfhooks.analysis.comparison.side import Side
    from perfhooks.analysis.comparison.timed import Stalls
    from perfhooks.analysis.comparison.verdict import Verdict

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
_MAIN_CAUSE: Final = 0.6
"""Minimum share of the difference for the only main cause. Two causes with shares between 0.4 and 0.6 count as equal.
"""


def verdict(result: Verdict | None, samples: tuple[int, int] | None = None) -> str:
    """Return the verdict as one sentence. With ``samples`` (per step), times are per sample."""
    if result is None:
        return "Undecided: too few unprofiled steps on both sides."
    if samples:
        return _describe_samples(result, samples)
    change = f"{words.ms(result.decisive.b)} instead of {words.ms(result.decisive.a)}, {format_change(result.ratio)}"
    step = "a step" if result.by == "mean" else "the typical step"
    if result.clock == "processor":
        step = f"in CPU time {step}" if result.is_in_turns else f"{step} minus its run-queue waits"
    chance = "which may be CPU contention" if result.is_withheld else "which may be noise"
    if result.outcome == "same":
        return f"The same, within {_format_bound(result)}: {step} takes {change}."
    if result.outcome == "undecided" and result.is_in_turns and result.runs_a < FEWEST_PAIRS:
        pairs = words.count(result.runs_a, "pair of processes is", "pairs of processes are")
        return f"Undecided: {step} takes {change}; {pairs} too few to decide, {FEWEST_PAIRS} are needed."
    if result.outcome == "undecided":
        return f"Undecided: {step} takes {change}, {chance}."
    return f"{result.outcome.capitalize()}: {step} takes {change}."


def _describe_samples(result: Verdict, samples: tuple[int, int]) -> str:
    a, b = (1e3 / median for median in (result.decisive.a, result.decisive.b))
    rates = f"{words.number(b)} instead of {words.count(a, 'sample')} a second, {format_change(1 / result.ratio)}"
    word = {"slower": "Slower", "faster": "Faster", "same": "The same", "undecided": "Undecided"}[result.outcome]
    chance = ", which may be noise" if result.outcome == "undecided" else ""
    counts = f"{words.count(samples[1], 'sample')} instead of {samples[0]:,}"
    return f"{word} per sample: {rates}{chance}; a step takes {counts}."


_LARGE: Final = 100
"""Minimum samples/s that are shown without decimals, and minimum ratio that is shown as unknown."""


def stalled(result: Verdict, a: Stalls, b: Stalls) -> str:
    """Return a sentence about long steps that change the mean step time but not the median."""
    edge = math.log1p(result.tolerance)
    is_typical_same = abs(math.log(result.typical.ratio)) <= max(edge, abs(math.log(result.mean.ratio)) / 2)
    if result.by != "mean" or result.outcome not in ("slower", "faster") or not is_typical_same:
        return ""
    side, long, shorter = ("B", b, a) if result.outcome == "slower" else ("A", a, b)
    if long.share * long.times <= 1.5 * shorter.share * shorter.times or not long.share:
        return ""
    why = ": waiting for data" if long.is_data else ""
    stall = f"{format_frequency(long.share)} takes {long.times:.2g} times as long{why}"
    return f"the typical step hardly differs, but in {side} {stall}"


def format_frequency(share: float) -> str:
    """Return for example ``every fifth``, ``one in 37`` or ``41% of them``."""
    interval = round(1 / share)
    if abs(share * interval - 1) > _NEARLY:
        return f"{words.share(share)} of them"
    return f"every {_ORDINALS[interval]}" if interval in _ORDINALS else f"one in {interval}"


_NEARLY: Final = 0.1
"""Relative difference below which two numbers count as equal."""
_ORDINALS: Final = dict(
    enumerate(("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), 2)
)


def certainty(result: Verdict) -> list[str]:
    if result.is_withheld:
        return []
    if is_wide(result.decisive):
        factor = math.sqrt(result.high / result.low)
        change = f"changes below a factor of {factor:.2g}" if factor < _LARGE else "any change"
        text = f"steps are too uneven to detect {change} ({_describe_runs(result)})"
    else:
        width = EDGE_CONFIDENCE if result.outcome == "same" else CONFIDENCE
        text = f"{100 * width:.0f}% interval {interval(result.decisive)} ({_describe_basis(result)})"
    return ["; ".join(filter(None, (text, _describe_needed(result) if result.outcome == "undecided" else "")))]


def is_wide(ratio: Ratio) -> bool:
    """Return whether an undecided interval is too wide to report, for example -30% to +40%."""
    return ratio.outcome == "undecided" and ratio.high / ratio.low > _MAX_PERCENT_RATIO


def ends(ratio: Ratio) -> tuple[float | None, float | None]:
    """Return the ends of an interval: None beyond a factor of 100, and None for both if the interval is too wide."""
    if is_wide(ratio):
        return None, None
    return (ratio.low if ratio.low > 1 / _LARGE else None), (ratio.high if ratio.high < _LARGE else None)


def interval(ratio: Ratio) -> str:
    """Return the interval as text, for example ``+3.8% to +78%``, ``1.5 to 30 times that`` or ``+50% or more``."""
    low, high = ends(ratio)
    if low is None or high is None:
        bounds = [(low, "more"), (high, "less")]
        return "".join(f"{format_change(end)} or {beyond}" for end, beyond in bounds if end is not None) or "unknown"
    if ratio.high > _MAX_CHANGE:
        return f"{ratio.low:.2g} to {ratio.high:,.0f} times that"
    return f"{percent(ratio.low)} to {percent(ratio.high)}"


def _format_bound(result: Verdict) -> str:
    return f"{100 * (max(result.high, 1 / result.low) - 1):.2g}%"


_MAX_CHANGE: Final = 10.0
"""Maximum ratio shown as a percentage (+900%)."""


def commands(differing: Sequence[Difference]) -> str:
    return f"The commands differ: {'; '.join(_describe_argument(difference) for difference in differing)}."


def _describe_argument(difference: Difference) -> str:
    for side, value in (("A", difference.a), ("B", difference.b)):
        if value and not (difference.a and difference.b):
            return f"{side} has {f'{difference.name} {_value(value)}'.strip()}"
    return f"{difference.name} {_value(difference.a)} / {_value(difference.b)}".strip()


def _value(text: str) -> str:
    return "" if text == GIVEN else _cut(text)


def fact(difference: Difference) -> str:
    values = " / ".join(_cut(value) or "none" for value in (difference.a, difference.b))
    return f"{difference.name.removeprefix('environment ')} {values}"


def windows_alone(a: Side, b: Side) -> str:
    change = f"{words.ms(a.step_ms)} -> {words.ms(b.step_ms)} in the profiled steps"
    ratio = f", {percent(b.step_ms / a.step_ms)}" if a.step_ms else ""
    counts = f"{a.costs.steps} and {words.count(b.costs.steps, 'step')}"
    return f"Undecided: {change} ({counts}{ratio}); no unprofiled steps."


def _describe_basis(result: Verdict) -> str:
    earlier = f", estimated with {words.count(result.runs_earlier, 'earlier run')}" if result.runs_earlier else ""
    return f"{_describe_runs(result)}; assumed spread between processes {100 * result.process_sd:.2g}%{earlier}"


def _describe_runs(result: Verdict) -> str:
    if result.is_in_turns:
        return f"{words.count(result.runs_a, 'pair')} of processes"
    return (
        "one run per side"
        if result.runs_a == result.runs_b == 1
        else f"{result.runs_a} and {words.count(result.runs_b, 'run')}"
    )


def _describe_needed(result: Verdict) -> str:
    if result.is_in_turns:
        pairs = result.more_runs or MOST_PAIRS
        return f"{words.count(pairs, 'more pair')} would decide" if result.runs_a + pairs <= MOST_PAIRS else ""
    options = []
    if result.more_steps is not None:
        options.append(f"{words.count(result.more_steps, 'more step')} in each run")
    if result.more_runs is not None:
        options.append(f"{words.count(result.more_runs, 'more run')} per side")
    if not options:
        return f"more runs cannot detect such a small difference; {_IN_TURNS}"
    is_many = result.more_steps is None and (result.more_runs or 0) > MOST_PAIRS
    return f"{' or '.join(options)} would decide{f'; {_IN_TURNS}' if is_many else ''}"


_IN_TURNS: Final = "`perfhooks compare --run` interleaves both programs and may decide with fewer runs"


def contribution(row: Contribution, amount: Callable[[float], str] | None = None) -> str:
    write = amount or nanoseconds
    return f"{_describe_change(row, write)}{_describe_sureness(row, write)}."


def _describe_sureness(row: Contribution, write: Callable[[float], str]) -> str:
    is_in_few = row.sure is not None and abs(row.typical) < (1 - _MAIN_CAUSE) * abs(row.difference)
    if row.sure == 0:
        return "; only a few steps cause it" if is_in_few else "; this is within the usual variation"
    return f"; {_format_signed(row.typical, write)} of it in most steps" if is_in_few else ""


def _describe_change(row: Contribution, write: Callable[[float], str]) -> str:
    text = f"{_format_signed(row.difference, write)} a step: {subject(row)}"
    if row.is_new:
        return f"{text} is new{_describe_largest(row, write)}"
    if row.is_gone:
        return f"{text} no longer runs (it took {write(row.a)})"
    renamed = f" (now called {row.renamed})" if row.renamed else ""
    causes = f"{_describe_calls(row)}{_describe_largest(row, write)}"
    return f"{text}{renamed} takes {write(row.b)} instead of {write(row.a)}{causes}"


def _format_signed(value: float, write: Callable[[float], str]) -> str:
    return f"{'+' if value >= 0 else '-'}{write(abs(value))}"


def nanoseconds(value: float) -> str:
    return words.ms(value / 1e6)


def subject(row: Contribution) -> str:
    if row.kind == "part":
        return _PARTS.get(row.name, row.name)
    if row.kind == "idle":
        return f"idle device during {_PARTS.get(row.name, row.name)}"
    if row.kind == "class":
        return f"the device's {_CLASSES.get(row.name, row.name)}"
    if row.kind == "types":
        before, _, after = row.name.partition(" -> ")
        return f"work with other input types ({before} -> {after})"
    if row.kind == ELSEWHERE:
        return f"elsewhere in {_PARTS[row.name]}" if row.name in _PARTS else "elsewhere"
    return f"{'Python in ' if row.kind == 'line' else ''}{row.name}"


def _describe_calls(row: Contribution) -> str:
    if not row.difference or not row.count_a:
        return ""
    calls = f"{row.count_a:.4g} -> {words.count(row.count_b, 'call')}"
    ratio = row.by_count / row.difference
    if ratio >= _MAIN_CAUSE:
        added = row.count_b - row.count_a
        kind = "more calls" if added > 0 else "fewer calls"
        return f", because of {kind if added * row.difference > 0 else 'other calls'} ({calls})"
    if ratio <= 1 - _MAIN_CAUSE:
        is_as_often = abs(row.count_b - row.count_a) <= _NEARLY * row.count_a
        return f", each call {'slower' if row.difference > 0 else 'faster'}" if is_as_often else f" ({calls})"
    return f", half because of the number of calls ({calls}), half because of their duration"


def _describe_largest(row: Contribution, write: Callable[[float], str]) -> str:
    changes = [
        change
        for change in row.inside
        if change[0] not in (row.name, subject(row)) and abs(change[1]) >= 0.2 * abs(row.difference)
    ]
    texts = [f"{_cut(name)} {_format_signed(amount, write)}" for name, amount, *_ in changes[:2]]
    return f"; most of it {' and '.join(texts)}" if texts else ""


def _cut(name: str) -> str:
    return words.truncated(name, 70)


def percent(ratio: float) -> str:
    change = 100 * (ratio - 1)
    return f"{change:+.1f}%" if abs(change) < _MAX_DECIMAL else f"{change:+,.0f}%"


_MAX_DECIMAL: Final = 9.95
"""Maximum percentage shown with a decimal, because larger ones round to 10."""


def format_change(ratio: float) -> str:
    """Return the change as text: ``+62%``, or ``3.3 times that`` outside 0.5 to 2."""
    return percent(ratio) if 1 / _MAX_PERCENT_RATIO < ratio < _MAX_PERCENT_RATIO else f"{ratio:.2g} times that"


_MAX_PERCENT_RATIO: Final = 2.0
"""Maximum ratio shown as a percentage instead of a factor."""
