"""What an integration is given: options by its user, counts by a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import logger
from perfhooks.core.options import check_names

UNITS: Final = ("batch", "optimizer")
"""What a training step may be: a batch, or an update of the optimizer, however many batches it takes."""


def check(face: Callable[..., Any], options: Mapping[str, Any], *, framework: str, step_unit: str = "batch") -> None:
    """Look through the arguments that all integrations have; a profiler looks through its options by itself.

    Args:
        face: What was called, for the names of its other arguments.
        options: The keywords that it hands on to the profiler.
        framework: How the framework is called.
        step_unit: Its argument of this name.

    Raises:
        OptionError: An argument has a value that it cannot have.
        TypeError: No option has this name.
    """
    check_names(options, inspect.signature(face).parameters)
    if "stage" in options:
        raise OptionError(f"stage is what {framework} runs: give a schedule for {options['stage']!r} instead")
    if step_unit not in UNITS:
        raise OptionError(f"step_unit must be 'batch' or 'optimizer', got {step_unit!r}")


def read_counts(state: object) -> dict[str, int]:
    """The steps of each stage from a checkpoint, less what cannot be read: that costs a log line, not the training.

    Args:
        state: What the checkpoint holds in the place where `Stages.counts` was put; None where it holds nothing.
    """
    if state is None:
        return {}
    saved = state if isinstance(state, Mapping) else {}
    counts = {name: count for name, count in saved.items() if isinstance(name, str) and _is_count(count)}
    if len(counts) != len(saved) or not isinstance(state, Mapping):
        logger.warning("the checkpoint's counts of steps cannot be read (%.200r): counting begins anew", state)
    return counts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
