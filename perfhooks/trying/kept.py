"""What was measured of findings, kept in the run for its page."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perfhooks.errors import PerfhooksError
from perfhooks.report.data import TRIED_FORMAT, Tried, TriedFile, read_tried
from perfhooks.run.layout import TRIED
from perfhooks.run.publishing import publish_json
from perfhooks.trying import advice

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.trying.trial import Trial


def keep(trial: Trial, folder: Path) -> list[Tried]:
    """Write what a trial says of findings beside what earlier ones said of others.

    Args:
        trial: What was tried.
        folder: A run folder.

    Returns:
        What it says; nothing is written where that is nothing.
    """
    new = [
        Tried(
            rule=each.rule,
            variant=each.variant,
            times=each.times,
            saved_ms=each.saved_ms,
            saved_percent=100 * each.saved_ms / trial.step_ms,
            operators=each.operators,
            device=trial.device,
        )
        for each in advice.measured(trial)
    ]
    if new:
        earlier: list[Tried] = []
        with contextlib.suppress(FileNotFoundError, PerfhooksError):  # a broken one is written anew
            earlier = read_tried(folder / TRIED)
        others = [each for each in earlier if each.rule not in {said.rule for said in new}]
        publish_json(folder / TRIED, TriedFile(format=TRIED_FORMAT, measured=[*others, *new]))
    return new
