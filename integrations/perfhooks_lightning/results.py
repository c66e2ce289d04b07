"""What a window says, in the trainer's loggers."""

from __future__ import annotations

import csv
import importlib
from typing import TYPE_CHECKING, Any

from perfhooks_lightning.framework import is_a

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch.loggers import Logger

    from perfhooks import Capture
    from perfhooks.run.capture import Place


def log_summary(logger: Logger, capture: Capture, place: Place, step: int) -> None:
    """Log the means of the step table as scalars and, in TensorBoard, the table itself as text.

    Args:
        logger: One of the trainer's.
        capture: The facts of a finished window.
        place: Where its files are.
        step: The trainer's global step during the last step of the window.
    """
    prefix = f"perf/{capture.stage}"
    logger.log_metrics({f"{prefix}/{name}": value for name, value in capture.summary.items()}, step=step)
    if is_a(logger, "TensorBoardLogger"):
        _text(logger, prefix, _markdown(capture, place), step)


def log_files(logger: Logger, capture: Capture, place: Place) -> None:
    """Upload a window's files to a logger that keeps files: Weights & Biases or MLflow.

    Args:
        logger: One of the trainer's; another kind is passed over.
        capture: The facts of a finished window.
        place: Where its files are.
    """
    for name, upload in _UPLOADS.items():
        if is_a(logger, name):
            upload(logger, capture, place)


def _text(logger: Any, tag: str, text: str, step: int) -> None:
    logger.experiment.add_text(tag, text, global_step=step)


def _to_wandb(logger: Any, capture: Capture, place: Place) -> None:
    wandb = importlib.import_module("wandb")
    artifact = wandb.Artifact(f"perf-{place.folder.parent.name}-{place.folder.name}", type="profile")
    for name in capture.artifacts:
        artifact.add_file(str(place.folder / name))
    logger.experiment.log_artifact(artifact)


def _to_mlflow(logger: Any, capture: Capture, place: Place) -> None:
    for name in capture.artifacts:
        logger.experiment.log_artifact(logger.run_id, str(place.folder / name), f"perf/{place.folder.name}")


_UPLOADS: dict[str, Callable[[Any, Capture, Place], None]] = {"WandbLogger": _to_wandb, "MLFlowLogger": _to_mlflow}


def _markdown(capture: Capture, place: Place) -> str:
    """The headline, the place of the files and the step table."""
    lines = [f"**{capture.headline}**", "", f"`{place.folder}`", ""]
    table = place.artifact("steps.csv")
    if table.exists():
        with table.open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        lines += [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
