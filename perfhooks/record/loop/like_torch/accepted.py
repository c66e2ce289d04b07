from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import logger
from perfhooks.record.loop import next_recorder, stack_support
from perfhooks.record.loop.like_torch.results import TorchProfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def check_recording(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the supported options. Unsupported options are dropped, with one log line."""
    supported = inspect.signature(TorchProfile.__init__).parameters if options else {}
    unsupported = [name for name in options if name not in supported]
    if unsupported:
        names = ", ".join(f"{name}=" for name in unsupported)
        logger.warning("torch %s does not support %s: ignored", torch.__version__, names)
    if options.get("with_stack") and (danger := stack_support.danger()) is not None:
        logger.warning("with_stack=True: %s", danger)
    checked = {name: value for name, value in options.items() if name in supported}
    if checked.get("activities") is not None:
        activities = checked["activities"] = [
            next_recorder.check_activity(part)
            for entry in _listed(checked["activities"])
            for part in _activities(entry)
        ]
        named = [name for entry in activities for name in (entry if isinstance(entry, Mapping) else [entry])]
        if len({*named}) < len(named):
            raise OptionError(f"activities must name each activity once, got {activities!r}")
    config = checked.get("experimental_config")
    if config is not None and not isinstance(config, torch._C._profiler._ExperimentalConfig):  # noqa: SLF001 -- its only name
        raise OptionError(f"experimental_config must be torch's _ExperimentalConfig, got {config!r}")
    return checked


def legacy_activities(activities: Any, use_cpu: bool | None, use_device: str | None) -> list[str]:
    """Return the activities for the arguments of ``torch.autograd.profiler.profile``."""
    named = [*(["cpu"] if use_cpu is not False else []), *([_LEGACY.get(use_device, use_device)] if use_device else [])]
    if activities is not None or not named:
        raise OptionError(
            "use_cpu and use_device replace activities=: do not pass both, and select at least one activity; "
            f"got {use_cpu!r}, {use_device!r} and activities={activities!r}"
        )
    return named


_LEGACY: Final = {"privateuseone": "privateuse1"}


def _listed(activities: Any) -> Iterable[Any]:
    if isinstance(activities, str | Mapping):
        return [activities]
    try:
        listed = list(activities)
    except TypeError:
        raise OptionError(f"activities must be a list, got {activities!r}") from None
    if not listed:
        raise OptionError("activities must name at least one activity, got none; leave it out to record all")
    return listed


def _activities(entry: Any) -> Iterator[Any]:
    if isinstance(entry, Mapping):
        for key, value in entry.items():
            config = next_recorder.config_of_mapping(value) if isinstance(value, Mapping) else value
            yield _named(key) if config is None else {_named(key): config}
    elif isinstance(entry, str) and ":" in entry:
        name, _, recorder = entry.partition(":")
        config = next_recorder.config_of_text(recorder)
        yield _named(name) if config is None else {_named(name): config}
    else:
        yield _named(entry)


def _named(activity: Any) -> torch.profiler.ProfilerActivity:
    if isinstance(activity, torch.profiler.ProfilerActivity):
        return activity
    names = {name.lower(): value for name, value in torch.profiler.ProfilerActivity.__members__.items()}
    if not isinstance(activity, str) or activity.lower() not in names:
        raise OptionError(f"activities must be one or more of {', '.join(sorted(names))}, got {activity!r}")
    return names[activity.lower()]


def metadata_json(value: str) -> str:
    """Return a value as JSON without escapes, because Kineto replaces every backslash by a slash."""
    try:
        return json.dumps(_without_escapes(json.loads(value)), ensure_ascii=False)
    except ValueError as error:
        raise OptionError(f"metadata must be JSON, got {value!r} ({error})") from None


def _without_escapes(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"[\x00-\x1f\x7f]", " ", value.replace('"', "'").replace("\\", "/"))
    if isinstance(value, list):
        return [_without_escapes(item) for item in value]
    if isinstance(value, dict):
        return {_without_escapes(key): _without_escapes(item) for key, item in value.items()}
    return value
