from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import logger
from perfhooks.core.options import check_names

UNITS: Final = ("batch", "optimizer")
"""Values of ``step_unit``: a step is a batch, or an optimizer update of one or more batches."""


def check(
    constructor: Callable[..., Any], options: Mapping[str, Any], *, framework: str, step_unit: str = "batch"
) -> None:
    """Check the arguments that the constructors of all integrations have."""
    check_names(options, inspect.signature(constructor).parameters)
    if "stage" in options:
        raise OptionError(f"{framework} sets the stage: instead of stage=, pass schedule={{{options['stage']!r}: ...}}")
    if step_unit not in UNITS:
        raise OptionError(f"step_unit must be 'batch' or 'optimizer', got {step_unit!r}")


def read_counts(state: object) -> dict[str, int]:
    """Return the step counts of a checkpoint. Unreadable counts are skipped with a log line."""
    if state is None:
        return {}
    saved = state if isinstance(state, Mapping) else {}
    counts = {name: count for name, count in saved.items() if isinstance(name, str) and _is_count(count)}
    if len(counts) != len(saved) or not isinstance(state, Mapping):
        logger.warning("the checkpoint's step counts cannot be read (%.200r): counting starts at 0", state)
    return counts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
