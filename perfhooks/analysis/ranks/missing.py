from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perfhooks.analysis.ranks import lost_kernels
from perfhooks.core.words import ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perfhooks.analysis.ranks.files import RankedWindow

MAX_SHOWN: Final = 12
"""Maximum rank numbers or ranges in a sentence."""
_PLURALS: Final = {"has": "have", "is": "are", "lacks": "lack"}


def of_window(window: RankedWindow) -> list[dict[str, Any]]:
    facts = window.facts
    steps = dict(window.steps.group_by("rank").agg("step").iter_rows())
    all_steps = set().union(*steps.values()) if steps else set()
    finished = {rank: fact for rank, fact in facts.items() if fact.state == "done"}
    rules: list[tuple[str, Callable[[int], str | None]]] = [
        ("unfinished", lambda rank: None if rank in finished else "is not finished; run `perfhooks report`"),
        ("partial", lambda rank: _describe_partial(facts[rank].partial, facts[rank].reached)),
        ("no-table", lambda rank: _describe_no_table(rank, finished, steps)),
        (
            "fewer-steps",
            lambda rank: _describe_fewer_steps(all_steps - set(steps.get(rank, all_steps)), facts[rank].partial),
        ),
    ]
    of_last = [rank for rank in facts if rank not in window.earlier]
    entries = [
        entry
        for what, rule in rules
        for entry in _group_by_text(window.name, what, ((rank, rule(rank)) for rank in of_last))
    ]
    texts_by_kind = {
        "unreadable": ((rank, f"cannot be read: {why}") for rank, why in window.unreadable.items()),
        "earlier": ((rank, _describe_earlier(seconds)) for rank, seconds in window.earlier.items()),
        "lost-kernels": lost_kernels.find(window).items(),
    }
    return entries + [
        entry for what, texts in texts_by_kind.items() for entry in _group_by_text(window.name, what, texts)
    ]


def _describe_earlier(seconds: float) -> str:
    return f"has only files from {ms(seconds * 1e3)} before the last attempt of the job began; they are not compared"


def _describe_partial(cause: str | None, reached: int) -> str | None:
    return None if cause is None else f"ended in step {reached}: {cause}"


def _describe_no_table(rank: int, finished: Mapping[int, Any], steps: Mapping[int, Any]) -> str | None:
    if rank not in finished or rank in steps:
        return None
    return f"has no step table{': ' if finished[rank].notes else ''}{'; '.join(finished[rank].notes)}"


def _describe_fewer_steps(lacking: set[int | None], partial: str | None) -> str | None:
    numbers = sorted(number for number in lacking if number is not None)
    if not numbers or partial is not None:
        return None
    listed = ", ".join(map(str, numbers[:MAX_SHOWN]))
    return f"has no step {listed}{' ...' if len(numbers) > MAX_SHOWN else ''}, unlike other ranks"


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
    """Return the ranks without files in a window or in the run, with reasons.

    If each rank deletes its own old windows (``trimmed``), only the last window of each loop is checked.
    """
    expected = began.union(*windows.values(), *died.values())
    entries = []
    for name in sorted({*windows, *died}, key=lambda name: (stages.get(name, (name, 0)), name)):
        ended = died.get(name, set())
        entries += _group_by_text(
            name, "died", ((rank, "ended while it recorded, and wrote no files") for rank in ended)
        )
        if not trimmed or _is_last(name, stages):
            entries += _find_absent(name, expected - windows.get(name, set()) - ended, windows, stages)
    never = set(range(world_size or 0)) - expected
    return entries + _group_by_text(None, "not-recorded", ((rank, _describe_never(rank, asked)) for rank in never))


def _is_last(name: str, stages: Mapping[str, tuple[str, int]]) -> bool:
    stage, first = stages.get(name, ("", 0))
    return first == max((start for window_stage, start in stages.values() if window_stage == stage), default=first)


def _describe_never(rank: int, requested: object) -> str | None:
    if requested is None:
        return "has no files: no recording was requested, or the files are lost"
    is_asked = requested == "all" or (isinstance(requested, tuple) and rank in requested)
    return "has no files, although a recording was requested" if is_asked else None


def _find_absent(
    name: str, ranks: set[int], windows: Mapping[str, set[int]], stages: Mapping[str, tuple[str, int]]
) -> list[dict[str, Any]]:
    if not ranks:
        return []
    stage, first = stages.get(name, ("", 0))
    ranks_by_start = {
        stages[window][1]: window_ranks
        for window, window_ranks in windows.items()
        if stages.get(window, ("",))[0] == stage
    }
    earlier_ranks = set().union(*(window_ranks for start, window_ranks in ranks_by_start.items() if start < first))
    later_ranks = set().union(*(window_ranks for start, window_ranks in ranks_by_start.items() if start > first))
    joined = (ranks - earlier_ranks) & later_ranks
    ended = (ranks & earlier_ranks) - later_ranks
    return [
        *_group_by_text(name, "joined-late", ((rank, "began to record later") for rank in joined)),
        *_group_by_text(name, "left", ((rank, "recorded earlier windows only") for rank in ended)),
        *_group_by_text(
            name,
            "absent",
            ((rank, "has no files of this window; check the log of the training") for rank in ranks - joined - ended),
        ),
    ]


def _group_by_text(window: str | None, what: str, texts: Iterable[tuple[int, str | None]]) -> list[dict[str, Any]]:
    ranks: dict[str, list[int]] = {}
    for rank, text in texts:
        if text is not None:
            ranks.setdefault(text, []).append(rank)
    return [
        {"window": window, "what": what, "ranks": sorted(members), "text": _sentence(members, text)}
        for text, members in ranks.items()
    ]


def _sentence(ranks: list[int], text: str) -> str:
    verb, space, rest = text.partition(" ")
    return f"{name_ranks(ranks)} {_PLURALS.get(verb, verb) if len(ranks) > 1 else verb}{space}{rest}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return for example ``ranks 0-3, 7``."""
    numbers = sorted(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {spans(numbers)}"


def spans(ranks: Iterable[int]) -> str:
    """Return for example ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(ranks):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    shown = ", ".join("-".join(map(str, run)) for run in runs[:MAX_SHOWN])
    return f"{shown}{' ...' * (len(runs) > MAX_SHOWN)}"
