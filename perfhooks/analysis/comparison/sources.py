from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perfhooks.analysis.comparison import baseline
from perfhooks.analysis.comparison.costs import Costs
from perfhooks.analysis.comparison.facts import HOST, REVISION, differences, facts, is_late
from perfhooks.analysis.comparison.history import runs_in, start_time
from perfhooks.analysis.comparison.side import RunOrTrace, Side, merge_runs, timed_run
from perfhooks.core.errors import PerfhooksError
from perfhooks.run.capture import Capture
from perfhooks.run.finished import FinishedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from perfhooks.core.statistics import Level

_DEFAULT_STAGE = "train"


def read(sides: Sequence[Sequence[Path]], stage: str | None = None) -> list[Side]:
    opened = [[_open(path) for path in side] for side in sides]
    stage_name = _choose_stage([source for side in opened for source in side], stage)
    result = [
        merge_runs([source if isinstance(source, Side) else source.side(stage_name) for source in side])
        for side in opened
    ]
    read_paths = {path.resolve() for side in sides for path in side}
    for side, sources in zip(result, opened, strict=True):
        runs = [source.run for source in sources if isinstance(source, RunOrTrace) and source.run is not None]
        side.earlier = [_read_earlier(run, stage_name, read_paths) for run in runs]
    _distinguish_labels(result)
    return result


def _open(path: Path) -> Side | RunOrTrace:
    return baseline.decode(path) if path.is_file() and baseline.is_baseline(path) else RunOrTrace(path)


def _choose_stage(sources: Iterable[Side | RunOrTrace], requested: str | None) -> str:
    stages_of = [[source.stage] if isinstance(source, Side) else source.stages for source in sources]
    lists = [stages for stages in stages_of if stages is not None]
    if not lists:
        return requested or _DEFAULT_STAGE
    common = [stage for stage in lists[0] if all(stage in stages for stages in lists)]
    if requested is not None and requested not in common:
        raise PerfhooksError(f"stage {requested!r} is not on both sides; common stages: {', '.join(common) or 'none'}")
    if not common:
        available = " and ".join(", ".join(stages) for stages in lists)
        raise PerfhooksError(f"the sides have no stage in common: {available} (a stage is a loop, for example train)")
    return requested or (_DEFAULT_STAGE if _DEFAULT_STAGE in common else common[0])


def _read_earlier(run: FinishedRun, stage: str, read_paths: set[Path]) -> list[Level]:
    paths: list[Path] = []
    with contextlib.suppress(OSError):
        paths = [path.resolve() for path in runs_in(run.folder.resolve().parent)]
    matching = []
    for path in paths:
        with contextlib.suppress(PerfhooksError, OSError):
            other = FinishedRun(path)
            if path not in read_paths and _is_same_program(run, other):
                matching.append((start_time(other.manifest, path), path, other))
    latest = [other for *_, other in sorted(matching, key=lambda item: item[:2])[-20:]]
    read_paths |= {other.folder for other in latest}
    timed = [timed_run(other, stage) for other in latest if stage in other.stages]
    return [run_steps.level() for run_steps in timed if run_steps.is_enough]


def _is_same_program(a: FinishedRun, b: FinishedRun) -> bool:
    facts_of = [facts(run.manifest, Capture(), Costs()) for run in (a, b)]
    differing = differences(*facts_of)
    return all(REVISION in fact for fact in facts_of) and all(is_late(fact) and fact.name != HOST for fact in differing)


def _distinguish_labels(sides: Sequence[Side]) -> None:
    if len({side.label for side in sides}) < len(sides):
        for side, letter in zip(sides, "AB", strict=False):
            side.label = f"{letter} ({side.label})"
