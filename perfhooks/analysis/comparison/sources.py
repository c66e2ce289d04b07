"""Where the sides of a comparison come from: run folders, traces, baselines; and which loop of them is compared.

Runs of the same program that lie beside those compared tell how much its processes differ.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from perfhooks.analysis.comparison import baseline
from perfhooks.analysis.comparison.costs import Costs
from perfhooks.analysis.comparison.facts import HOST, REVISION, differences, facts, is_late
from perfhooks.analysis.comparison.history import began, runs_in
from perfhooks.analysis.comparison.side import RunOrTrace, Side, joined, timed_run
from perfhooks.core.errors import PerfhooksError
from perfhooks.run.capture import Capture
from perfhooks.run.finished import FinishedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from perfhooks.core.statistics import Level

_USUAL = "train"
_MOST_EARLIER: Final = 20
"""Other runs of a program that are read, the latest: more would not tell its processes better."""


def read(sides: Sequence[Sequence[Path]], stage: str | None = None) -> list[Side]:
    """Read what is to be compared.

    Args:
        sides: For each side its run folders, traces or baselines.
        stage: Which loop; None takes the training, else the first that all know.

    Returns:
        The sides, of that loop.

    Raises:
        PerfhooksError: Something is not there or not readable, or there is no loop that all know.
    """
    known = [[_opened(path) for path in side] for side in sides]
    chosen = _stage([each for side in known for each in side], stage)
    made = [joined([each if isinstance(each, Side) else each.side(chosen) for each in side]) for side in known]
    seen = {path.resolve() for side in sides for path in side}
    for side, given in zip(made, known, strict=True):
        runs = [each.run for each in given if isinstance(each, RunOrTrace) and each.run is not None]
        side.earlier = [_earlier(run, chosen, seen) for run in runs]
    _tell_apart(made)
    return made


def _opened(path: Path) -> Side | RunOrTrace:
    return baseline.decode(path) if path.is_file() and baseline.is_baseline(path) else RunOrTrace(path)


def _stage(known: Iterable[Side | RunOrTrace], wanted: str | None) -> str:
    """The loop to compare; traces go with any."""
    told = [[each.stage] if isinstance(each, Side) else each.stages for each in known]
    lists = [stages for stages in told if stages is not None]
    if not lists:
        return wanted or _USUAL
    common = [stage for stage in lists[0] if all(stage in stages for stages in lists)]
    if wanted is not None and wanted not in common:
        raise PerfhooksError(f"no stage {wanted!r} on both sides; there is {', '.join(common) or 'none in common'}")
    if not common:
        seen = " and ".join(", ".join(stages) for stages in lists)
        raise PerfhooksError(f"the sides have no stage in common: {seen}")
    return wanted or (_USUAL if _USUAL in common else common[0])


def _earlier(run: FinishedRun, stage: str, seen: set[Path]) -> list[Level]:
    """What steps take in the other runs of a program that lie in the same folder; ``seen`` are those counted before."""
    beside: list[Path] = []
    with contextlib.suppress(OSError):  # a folder that may be entered, and not listed
        beside = [path.resolve() for path in runs_in(run.folder.resolve().parent)]
    same = []
    for path in beside:
        with contextlib.suppress(PerfhooksError, OSError):
            other = FinishedRun(path)
            if path not in seen and _is_same_program(run, other):
                same.append((began(other.manifest, path), path, other))
    latest = [other for *_, other in sorted(same, key=lambda found: found[:2])[-_MOST_EARLIER:]]
    seen |= {other.folder for other in latest}
    timed = [timed_run(other, stage) for other in latest if stage in other.stages]
    return [each.level() for each in timed if each.is_enough]


def _is_same_program(a: FinishedRun, b: FinishedRun) -> bool:
    """Whether two runs are of one commit and one machine, and neither their arguments nor their settings differ."""
    known = [facts(run.manifest, Capture(), Costs()) for run in (a, b)]
    found = differences(*known)
    return all(REVISION in each for each in known) and all(is_late(each) and each.name != HOST for each in found)


def _tell_apart(sides: Sequence[Side]) -> None:
    """Runs in two folders may be called the same."""
    if len({side.label for side in sides}) < len(sides):
        for side, letter in zip(sides, "AB", strict=False):
            side.label = f"{letter} ({side.label})"
