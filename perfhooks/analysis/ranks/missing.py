"""What is missing of a run, and why, as far as the files tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perfhooks.analysis.ranks import lost_kernels
from perfhooks.core.words import ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perfhooks.analysis.ranks.files import RankedWindow

_SHOWN: Final = 12


def of_window(window: RankedWindow) -> list[dict[str, Any]]:
    """What ranks left incomplete of a window in which they left anything at all."""
    facts = window.facts
    steps = dict(window.steps.group_by("rank").agg("step").iter_rows())
    whole = set().union(*steps.values()) if steps else set()
    finished = {rank: fact for rank, fact in facts.items() if fact.state == "done"}
    rules: list[tuple[str, Callable[[int], str | None]]] = [
        ("unfinished", lambda rank: None if rank in finished else "is not finished: `perfhooks report` does that"),
        ("partial", lambda rank: _partial(facts[rank].partial, facts[rank].reached)),
        ("no-table", lambda rank: _no_table(rank, finished, steps)),
        ("fewer-steps", lambda rank: _fewer(whole - set(steps.get(rank, whole)), facts[rank].partial)),
    ]
    of_last = [rank for rank in facts if rank not in window.earlier]
    found = [
        entry for what, rule in rules for entry in _grouped(window.name, what, ((rank, rule(rank)) for rank in of_last))
    ]
    rest = {
        "unreadable": ((rank, f"cannot be read: {why}") for rank, why in window.unreadable.items()),
        "earlier": ((rank, _before(seconds)) for rank, seconds in window.earlier.items()),
        "lost-kernels": lost_kernels.find(window).items(),
    }
    return found + [entry for what, told in rest.items() for entry in _grouped(window.name, what, told)]


def _before(seconds: float) -> str:
    return f"left it of an earlier attempt only, {ms(seconds * 1e3)} before the last one began: it is not compared"


def _partial(cause: str | None, reached: int) -> str | None:
    return None if cause is None else f"ended in step {reached}: {cause}"


def _no_table(rank: int, finished: Mapping[int, Any], steps: Mapping[int, Any]) -> str | None:
    if rank not in finished or rank in steps:
        return None
    return f"has no step table{': ' if finished[rank].notes else ''}{'; '.join(finished[rank].notes)}"


def _fewer(lacking: set[int | None], partial: str | None) -> str | None:
    numbers = sorted(each for each in lacking if each is not None)
    if not numbers or partial is not None:
        return None
    return f"has no step {', '.join(map(str, numbers[:_SHOWN]))}{' ...' if len(numbers) > _SHOWN else ''}, others have"


def of_run(
    windows: Mapping[str, set[int]],
    stages: Mapping[str, tuple[str, int]],
    began: set[int],
    died: Mapping[str, set[int]],
    *,
    trimmed: bool = False,
    world_size: int | None = None,
    asked: object = None,
) -> list[dict[str, Any]]:
    """The ranks that left nothing at all of a window, or of the run.

    Args:
        windows: The ranks that left anything, for each window.
        stages: Stage and first step of each window.
        began: The ranks that were asked to record at any time.
        died: The ranks that ended while they recorded a window, for each.
        trimmed: Whether ranks delete their old windows, each by itself: then only the last of a stage tell anything.
        world_size: The number of ranks, where it is known.
        asked: Which ranks were to record, as ``run.json`` says.
    """
    expected = began.union(*windows.values(), *died.values())
    found = []
    for name in sorted({*windows, *died}, key=lambda name: (stages.get(name, (name, 0)), name)):
        dead = died.get(name, set())
        found += _grouped(name, "died", ((rank, "ended while it recorded: nothing of it is left") for rank in dead))
        if not trimmed or _is_last(name, stages):
            found += _absent(name, expected - windows.get(name, set()) - dead, windows, stages)
    never = set(range(world_size or 0)) - expected
    return found + _grouped(None, "not-recorded", ((rank, _never(rank, asked)) for rank in never))


def _is_last(name: str, stages: Mapping[str, tuple[str, int]]) -> bool:
    stage, first = stages.get(name, ("", 0))
    return first == max((begin for each, begin in stages.values() if each == stage), default=first)


def _never(rank: int, asked: object) -> str | None:
    """Why a rank left nothing of the whole run; None where it was not to leave anything, or may not have been."""
    if asked is None:
        return "left nothing: not asked to record, or lost"
    is_asked = asked == "all" or (isinstance(asked, tuple) and rank in asked)
    return "left nothing, though asked to record" if is_asked else None


def _absent(
    name: str, ranks: set[int], windows: Mapping[str, set[int]], stages: Mapping[str, tuple[str, int]]
) -> list[dict[str, Any]]:
    if not ranks:
        return []
    stage, first = stages.get(name, ("", 0))
    alike = {stages[each][1]: present for each, present in windows.items() if stages.get(each, ("",))[0] == stage}
    before = set().union(*(present for begin, present in alike.items() if begin < first))
    after = set().union(*(present for begin, present in alike.items() if begin > first))
    late = (ranks - before) & after
    left = (ranks & before) - after
    return [
        *_grouped(name, "joined-late", ((rank, "began to record later") for rank in late)),
        *_grouped(name, "left", ((rank, "recorded before, and not any more") for rank in left)),
        *_grouped(
            name,
            "absent",
            ((rank, "left nothing of it; the training's log may say why") for rank in ranks - late - left),
        ),
    ]


def _grouped(window: str | None, what: str, told: Iterable[tuple[int, str | None]]) -> list[dict[str, Any]]:
    """One entry for all ranks of which the same is to be said."""
    ranks: dict[str, list[int]] = {}
    for rank, text in told:
        if text is not None:
            ranks.setdefault(text, []).append(rank)
    return [
        {"window": window, "what": what, "ranks": sorted(mine), "text": f"{named(mine)} {text}"}
        for text, mine in ranks.items()
    ]


def named(ranks: Iterable[int]) -> str:
    """Ranks as a person would say them: ``ranks 0-3, 7``."""
    numbers = sorted(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {spans(numbers)}"


def spans(ranks: Iterable[int]) -> str:
    """Return the numbers of ranks: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(ranks):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    shown = ", ".join("-".join(map(str, run)) for run in runs[:_SHOWN])
    return f"{shown}{' ...' * (len(runs) > _SHOWN)}"
