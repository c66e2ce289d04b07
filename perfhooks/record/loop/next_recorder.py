"""torch's new recorder cuspy (since torch 2.15): selection, fallback to Kineto, and output files.

Cuspy records the device, and Kineto still records the host. Cuspy merges both traces and always compresses the file.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.guard import cause_of, guard, logger

if TYPE_CHECKING:
    from collections.abc import Callable

NAME: Final = "cuspy"
_OBSERVER: Final = "torch.profiler._cuspy.observers.profiler"
"""Name of cuspy's module that records the device. The module imports the package cupti-python."""
_SWITCH: Final = "enable_"
"""Prefix of the boolean options of cuspy, torch's second recorder. Users write options without the prefix:
``cuspy+environment_counters``.
"""
_TYPE: Final = "type"

_FAILURES: Final = (ImportError, AttributeError, OSError, RuntimeError, TypeError, ValueError, PerfhooksError)
"""Errors that CUPTI, its Python package, or the settings of the device raise."""

_logged: set[str] = set()


class UnavailableError(PerfhooksError):
    """Cuspy is not available."""


def config_of_text(words: str) -> Any:
    """Return the configuration for text like ``cuspy+environment_counters``; None if torch has no cuspy."""
    name, *switches = words.lower().split("+")
    if name != NAME:
        raise OptionError(
            f"activities: unknown recorder {name!r}; torch's new recorder is {NAME!r}, for example 'cuda:{NAME}'"
        )
    fields = {_TYPE: "CuspyConfig", **{_SWITCH + switch: True for switch in switches}}
    return config_of_mapping({"profiler_configs": [fields]})


def config_of_mapping(mapping: Mapping[str, Any]) -> Any:
    """Return the configuration for a mapping like ``{"profiler_configs": [{"type": "CuspyConfig"}]}``.

    Return None if torch has no ``ProfilerActivityConfig``.
    """
    activity_config = getattr(torch.profiler, "ProfilerActivityConfig", None)
    if activity_config is None:
        _log_unavailable(f"torch {torch.__version__} has none")
        return None
    configs = mapping.get("profiler_configs") or []
    try:
        return activity_config(**{**mapping, "profiler_configs": [_config(config) for config in configs]})
    except TypeError as error:
        raise OptionError(f"activities: {dict(mapping)!r} is not a valid activity configuration ({error})") from None


def _config(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    fields = {**config}
    name = fields.pop(_TYPE, "")
    kind = getattr(torch.profiler, name, None) if name in torch.profiler.__all__ and name.endswith("Config") else None
    if kind is None:
        raise OptionError(f"activities: {config!r} must name one of torch.profiler's configurations as its {_TYPE!r}")
    return kind(**fields)


def check_activity(activity: Any) -> Any:
    """Remove cuspy from an activity, with a warning, if cuspy cannot be imported."""
    if not isinstance(activity, Mapping) or not any(map(_has_cuspy, activity.values())):
        return activity
    try:
        importlib.import_module(_OBSERVER)
    except _FAILURES as error:
        remedy = "; it needs cupti-python" if isinstance(error, ImportError) else ""
        _log_unavailable(f"{cause_of(error)}{remedy}")
        return {key: _without_configs(config) for key, config in activity.items()}
    return activity


def _has_cuspy(config: Any) -> bool:
    return any(type(part).__name__ == "CuspyConfig" for part in getattr(config, "profiler_configs", ()))


def _without_configs(config: Any) -> Any:
    return dataclasses.replace(config, profiler_configs=[]) if getattr(config, "profiler_configs", ()) else config


def _log_unavailable(why: str) -> None:
    if why not in _logged:
        _logged.add(why)
        logger.warning("torch's new recorder (%s) is not available (%s): Kineto records the device", NAME, why)


def is_used(window: Any) -> bool:
    return bool(getattr(window, "_use_cuspy", False))


def prepare(window: Any, prepare_trace: Callable[[], None]) -> None:
    """Prepare the recorders of a window. If cuspy is not available, Kineto also records the device."""
    if not is_used(window):
        prepare_trace()
        return
    source = logging.getLogger("torch.profiler._cuspy.observers.base")
    reasons: list[str] = []
    source.addFilter(listener := _Listener(reasons))  # torch logs the reason instead of raising it
    try:
        _check_possible()
        prepare_trace()
    except _FAILURES as error:
        if not _logged:
            last = str(error) if isinstance(error, UnavailableError) else cause_of(error)
            _log_unavailable(reasons[-1] if reasons else last)
    else:
        return
    finally:
        source.removeFilter(listener)
    configs = {key: _without_configs(config) for key, config in window.activity_configs.items()}
    # torch has no public function for this; its profiler was created for the host only
    vars(window).update(_use_cuspy=False, _cuspy_config=None, profiler=None, activity_configs=configs)
    prepare_trace()


def _check_possible() -> None:
    if _logged:
        raise UnavailableError
    if not _has_device():  # CUPTI without a driver ends the process by a signal
        raise UnavailableError("there is no CUDA device")


def _has_device() -> bool:
    return torch.cuda.is_available()


class _Listener(logging.Filter):
    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self._messages = messages

    def filter(self, record: logging.LogRecord) -> bool:
        self._messages.append(record.getMessage())
        return False


def drain(window: Any) -> None:
    """Wait for the device, because torch stops cuspy without this wait."""
    if is_used(window) and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def check_observer(observer: Any) -> None:
    """Raise an UnavailableError if cuspy, torch's new recorder, cannot record the device.

    Kineto, which can be prepared only once, is prepared after this check.
    """
    if not getattr(observer, "available", True):
        raise UnavailableError("cuspy's observer is not available")


def export_path(window: Any, path: Path) -> Path:
    """Return the path of the trace: ``path``, or a compressed file next to ``path``.

    The function waits until torch has written the file, even with ``cuspy_async_export``. An export in a thread would
    also block the training, because torch merges two traces in Python.
    """
    if is_used(window):
        window.wait_for_exports()
    packed = Path(f"{path}.gz")
    if path.exists() or packed.exists():
        return path if path.exists() else packed
    if is_used(window) and window.profiler is not None:
        # its observer had no events, for which torch writes no file
        window.profiler.export_chrome_trace(str(path))
        window.notes.append("torch's new recorder cuspy wrote no device events: this window contains the host only")
    return path


def finish_exports(window: Any) -> None:
    if is_used(window):
        with guard("ending torch's new recorder cuspy"):
            window.wait_for_exports()
