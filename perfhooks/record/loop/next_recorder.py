"""torch's next recorder ("cuspy", since torch 2.15): asked for in words, left out where it is not, and what it leaves.

It looks at the device in Kineto's place, merges what it saw into the host's trace, and packs the file, whatever name it
was given. Kineto goes on recording the host.
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
"""What torch calls it."""
_OBSERVER: Final = "torch.profiler._cuspy.observers.profiler"
"""What looks at the device; it needs the package cupti-python."""
_SWITCH: Final = "enable_"
"""How the names of its options begin, less which they are words: ``environment_counters``."""
_TYPE: Final = "type"
"""In a mapping, the name of torch's class."""

_FAILURES: Final = (ImportError, AttributeError, OSError, RuntimeError, TypeError, ValueError, PerfhooksError)
"""What comes of CUPTI, of its Python package and of the settings of the device's owner."""

_said: set[str] = set()
"""Why it is not available: said once, and from then on Kineto records."""


class UnavailableError(PerfhooksError):
    """It is not available."""


def of_words(words: str) -> Any:
    """What the part of an activity behind the colon asks for: ``cuspy``, or ``cuspy+environment_counters``.

    Returns:
        torch's configuration of an activity; None where the installed torch has no such recorder, which is said.

    Raises:
        OptionError: It asks for something else.
    """
    name, *switches = words.lower().split("+")
    if name != NAME:
        raise OptionError(f"activities: {name!r} is no recorder; {NAME!r} is torch's next one, as in 'cuda:{NAME}'")
    return of_mapping({"profiler_configs": [{_TYPE: "CuspyConfig", **{_SWITCH + each: True for each in switches}}]})


def of_mapping(given: Mapping[str, Any]) -> Any:
    """torch's ``ProfilerActivityConfig`` as a configuration file says it.

        {"profiler_configs": [{"type": "CuspyConfig"}, {"type": "PerformanceMetricsConfig", "metric_names": [...]}]}

    Returns:
        As `of_words` does.

    Raises:
        OptionError: It has other fields than torch's classes.
    """
    whole = getattr(torch.profiler, "ProfilerActivityConfig", None)
    if whole is None:
        _say(f"torch {torch.__version__} has none")
        return None
    listed = given.get("profiler_configs") or []
    try:
        return whole(**{**given, "profiler_configs": [_config(each) for each in listed]})
    except TypeError as error:
        raise OptionError(f"activities: {dict(given)!r} is no configuration of an activity ({error})") from None


def _config(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    fields = {**given}
    name = fields.pop(_TYPE, "")
    kind = getattr(torch.profiler, name, None) if name in torch.profiler.__all__ and name.endswith("Config") else None
    if kind is None:
        raise OptionError(f"activities: {given!r} must name one of torch.profiler's configurations as its {_TYPE!r}")
    return kind(**fields)


def checked(activity: Any) -> Any:
    """An activity without this recorder where it cannot be imported, which is said.

    Args:
        activity: As torch takes it.
    """
    if not isinstance(activity, Mapping) or not any(map(_asks, activity.values())):
        return activity
    try:
        importlib.import_module(_OBSERVER)
    except _FAILURES as error:
        _say(f"{cause_of(error)}; it needs cupti-python" if isinstance(error, ImportError) else cause_of(error))
        return {key: _without(config) for key, config in activity.items()}
    return activity


def _asks(config: Any) -> bool:
    return any(type(each).__name__ == "CuspyConfig" for each in getattr(config, "profiler_configs", ()))


def _without(config: Any) -> Any:
    """What is left for Kineto: its counters would need a device, as the recorder's do."""
    return dataclasses.replace(config, profiler_configs=[]) if getattr(config, "profiler_configs", ()) else config


def _say(why: str) -> None:
    if why not in _said:
        _said.add(why)
        logger.warning("torch's next recorder (%s) is not available (%s): Kineto records", NAME, why)


def is_used(window: Any) -> bool:
    """Whether a window is recorded by it."""
    return bool(getattr(window, "_use_cuspy", False))


def prepare(window: Any, prepare_trace: Callable[[], None]) -> None:
    """Prepare a window's recorders; where this one is not available, which only it knows, have Kineto record it all.

    Args:
        window: It has not begun.
        prepare_trace: That of torch.
    """
    if not is_used(window):
        prepare_trace()
        return
    source = logging.getLogger("torch.profiler._cuspy.observers.base")
    why: list[str] = []
    source.addFilter(listener := _Listener(why))  # torch says why, and does not tell
    try:
        _check_possible()
        prepare_trace()
    except _FAILURES as error:
        if not _said:
            _say(why[-1] if why else str(error) if isinstance(error, UnavailableError) else cause_of(error))
    else:
        return
    finally:
        source.removeFilter(listener)
    configs = {key: _without(config) for key, config in window.activity_configs.items()}
    # torch has no public way; its profiler was made for the host alone
    vars(window).update(_use_cuspy=False, _cuspy_config=None, profiler=None, activity_configs=configs)
    prepare_trace()


def _check_possible() -> None:
    """Whether it may be tried at all.

    Raises:
        UnavailableError: It was not available to a window before, and all are to be recorded alike; or no device is.
    """
    if _said:
        raise UnavailableError
    if not _has_device():  # CUPTI without a driver ends the process by a signal
        raise UnavailableError("there is no CUDA device")


def _has_device() -> bool:
    return torch.cuda.is_available()


class _Listener(logging.Filter):
    """Keeps what torch says of it for our own line."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def filter(self, record: logging.LogRecord) -> bool:
        self._said.append(record.getMessage())
        return False


def drain(window: Any) -> None:
    """Let the device end what a window asked for, as torch does before Kineto stops, and not before this one does.

    Work that begins after it has stopped is in no window.
    """
    if is_used(window) and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def check(observer: Any) -> None:
    """Called with what looks at the device, before Kineto prepares: it prepares once, with a device or without.

    Raises:
        UnavailableError: It cannot see the device.
    """
    if not getattr(observer, "available", True):
        raise UnavailableError("its observer is not available")


def written(window: Any, path: Path) -> Path:
    """Where a window's recorder wrote what it was asked for: there, or packed beside it.

    It is waited for here, also where torch was asked to write it later (``cuspy_async_export``). What the device did is
    in the memory of this process, so that no other can write it. A thread could, and would take the interpreter from
    the training for as long: torch merges both traces in Python, 25 us an event, a third of that in one call.

    Args:
        window: torch has been asked to export it.
        path: The name that torch was given.
    """
    if is_used(window):
        window.wait_for_exports()
    packed = Path(f"{path}.gz")
    if path.exists() or packed.exists():
        return path if path.exists() else packed
    if is_used(window) and window.profiler is not None:
        # its observer had nothing to look through, which torch says by writing nothing
        window.profiler.export_chrome_trace(str(path))
        window.notes.append("torch's next recorder wrote nothing of the device: this window has the host alone")
    return path


def let_go(window: Any) -> None:
    """End what still looks at the device for a window that nobody saved."""
    if is_used(window):
        with guard("ending torch's next recorder"):
            window.wait_for_exports()
