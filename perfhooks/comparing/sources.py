"""Where the sides of a comparison come from: run folders, traces, baselines; and which loop of them is compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfhooks.comparing import baseline
from perfhooks.comparing.side import RunOrTrace, Side, joined
from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_USUAL = "train"


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


def _tell_apart(sides: Sequence[Side]) -> None:
    """Runs in two folders may be called the same."""
    if len({side.label for side in sides}) < len(sides):
        for side, letter in zip(sides, "AB", strict=False):
            side.label = f"{letter} ({side.label})"
