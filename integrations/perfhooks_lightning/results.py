from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfhooks.adapters import Place, markdown, scalars
from perfhooks_lightning.framework import is_a

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch.loggers import Logger

    from perfhooks import Capture


def log_summary(logger: Logger, capture: Capture, place: Place, step: int) -> None:
    """Log the means of the step table as scalars and, in TensorBoard, the table as text.

    ``step`` is the trainer's global step during the last step of the window.
    """
    logger.log_metrics(scalars(capture), step=step)
    if is_a(logger, "TensorBoardLogger"):
        _text(logger, f"perf/{capture.stage}", markdown(capture, place), step)


def log_files(logger: Logger, capture: Capture, place: Place) -> None:
    """Upload the files of a window to Weights & Biases or MLflow; skip other loggers."""
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
