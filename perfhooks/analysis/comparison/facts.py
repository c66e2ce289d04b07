from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core import json_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perfhooks.analysis.comparison.costs import Costs
    from perfhooks.run.capture import Capture
    from perfhooks.run.circumstances import Loader
    from perfhooks.run.manifest import Manifest

RECORDED: Final = ("record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops")
"""Profiler options that make profiled steps slower."""
COMMAND: Final = "command"
REVISION: Final = "revision"
HOST: Final = "host"
SAMPLES: Final = "samples a step"
GIVEN: Final = "given"
"""Stored value of a command line argument without a value."""
_LOCATION: Final = re.compile(r"_(?:DIR|PATH|FILE|HOME)$")
"""Pattern of names of environment variables that only locate files."""
_RESULT_ARGUMENT: Final = re.compile(
    r"-o|--?(?:out|output|log|logs|logging|save|cache|tmp|checkpoints?|ckpt|run|exp|experiment|job|port)"
    r"(?:[-_]?(?:dir|path|file|folder|root|name|id))?"
)
"""Pattern of command line arguments that name output files, which cannot be the model."""
_SECRET: Final = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_LATE_PREFIXES: Final = (HOST, "schedule", "option ", "version of perfhooks")
_PREFIX_ORDER: Final = (
    COMMAND,
    "batch",
    "loader ",
    SAMPLES,
    "world",
    "environment ",
    "version ",
    "machine",
    "device",
    REVISION,
)
"""Order of differing settings by name prefix: frequent causes of slower steps first."""


class Difference(NamedTuple):
    """A setting with different values in A and B. An empty value means that the setting is missing."""

    name: str
    a: str
    b: str


def facts(manifest: Manifest, capture: Capture, costs: Costs) -> dict[str, str]:
    loader = capture.circumstances.loader
    values: dict[str, Any] = {
        "batch": costs.batch,
        SAMPLES: _count_samples(loader, costs, manifest.world_size or 1),
        "batches a step": f"{costs.fetches / costs.steps:.3g}" if costs.steps and costs.fetches else None,
        **_loader_facts(loader),
        "world size": manifest.world_size,
        **{f"environment {name}": value for name, value in manifest.environment.items() if not _LOCATION.search(name)},
        **{f"version of {name}": text for name, text in (manifest.versions | capture.versions).items()},
        "machine": manifest.machine,
        "device": costs.device_name,
        HOST: manifest.host,
        REVISION: manifest.revision,
        "schedule": manifest.schedule,
        **{f"option {name}": value for name, value in (manifest.options | capture.options).items()},
    }
    command_fact = {COMMAND: json_values.text(command(manifest.command), 3000)} if manifest.command else {}
    return command_fact | {name: json_values.text(str(value), 300) for name, value in json_values.facts(values).items()}


def _loader_facts(loader: Loader | None) -> dict[str, Any]:
    if loader is None:
        return {}
    names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_sampler")
    return {f"loader {name}": getattr(loader, name) for name in names}


def _count_samples(loader: Loader | None, costs: Costs, world_size: int) -> int | None:
    if loader is None or loader.batch_size is None or not (costs.steps and costs.fetches):
        return None
    batches = costs.fetches / costs.steps
    is_whole = abs(batches - round(batches)) <= 0.02 * batches
    return loader.batch_size * round(batches) * world_size if is_whole else None


def samples(values: Mapping[str, str]) -> int | None:
    text = values.get(SAMPLES, "")
    return int(text) if text.isdecimal() and int(text) else None


def command(words: Sequence[str]) -> str:
    program, *arguments = words or ("",)
    shown: list[str] = []
    for argument in _split_values(arguments):
        is_secret = bool(shown) and shown[-1].startswith("-") and _SECRET.search(shown[-1])
        shown.append("..." if is_secret and not argument.startswith("-") else _without_folder(argument))
    return shlex.join([_without_folder(program, always=True), *shown])


def _split_values(arguments: Iterable[str]) -> Iterable[str]:
    for argument in arguments:
        name, equals, value = argument.partition("=")
        yield from (name, value) if equals and name.startswith("-") else (argument,)


def _without_folder(word: str, *, always: bool = False) -> str:
    for path in (PurePosixPath(word), PureWindowsPath(word)):
        if path.is_absolute() or word.startswith("~") or (always and len(path.parts) > 1):
            return path.name or word
    return word


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    """Return the differing settings, likely causes of slower steps first."""
    names = dict.fromkeys([*a, *b])
    all_facts = [Difference(name, a.get(name, ""), b.get(name, "")) for name in names]
    differing = [
        fact for fact in all_facts if fact.a != fact.b and _is_comparable(fact, a, b) and not _is_only_location(fact)
    ]
    return sorted(differing, key=lambda fact: (is_late(fact), _rank(fact)))


def _rank(fact: Difference) -> int:
    return next((index for index, start in enumerate(_PREFIX_ORDER) if fact.name.startswith(start)), len(_PREFIX_ORDER))


def is_late(fact: Difference) -> bool:
    return fact.name.startswith(_LATE_PREFIXES)


def _is_comparable(fact: Difference, a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    return (fact.name in a and fact.name in b) or fact.name.startswith(("option", "environment"))


def _is_only_location(fact: Difference) -> bool:
    return fact.name == COMMAND and not arguments(fact)


def arguments(fact: Difference) -> list[Difference]:
    a, b = (_parse(command_text) for command_text in (fact.a, fact.b))
    return [
        Difference(name if name.startswith("-") else "", a.get(name, ""), b.get(name, ""))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def normalize_command(text: str) -> str:
    shown = ((name if name.startswith("-") else "", value) for name, value in _parse(text).items())
    return " ".join(f"{name} {'' if value == GIVEN else value}".strip() for name, value in shown)


def _parse(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    name, count = "", 0
    for word in _split(text):
        if word.startswith("-") and not _is_number(word):
            name = word
            values.setdefault(name, GIVEN)
        elif name:
            values[name] = word if values[name] == GIVEN else f"{values[name]} {word}"
        else:
            values[str(count)] = word
            count += 1
    return {name: value for name, value in values.items() if not _RESULT_ARGUMENT.fullmatch(name)}


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def is_other_machine(differing: list[Difference], values: Mapping[str, str]) -> bool:
    """Return whether the hardware differs. If the hardware is unknown, return whether the host names differ."""
    names = {fact.name for fact in differing}
    return bool(names & {"machine", "device"}) or (HOST in names and "machine" not in values)
