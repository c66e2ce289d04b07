"""What differs between two trainings besides their speed."""

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
"""Options that make recorded steps slower."""
COMMAND: Final = "command"
REVISION: Final = "revision"
HOST: Final = "host"
SAMPLES: Final = "samples a step"
"""Of all ranks together."""
GIVEN: Final = "given"
"""The value of an argument that has none."""
_TEXT: Final = 300
_COMMAND: Final = 3000
"""Letters of a command: one of a hundred arguments."""
_PLACE: Final = re.compile(r"_(?:DIR|PATH|FILE|HOME)$")
"""Variables that say where files are kept make no training slower."""
_RESULT: Final = re.compile(
    r"-o|--?(?:out|output|log|logs|logging|save|cache|tmp|checkpoints?|ckpt|run|exp|experiment|job|port)"
    r"(?:[-_]?(?:dir|path|file|folder|root|name|id))?"
)
"""Arguments that say where results go, or what they are called. Others that name files may name the model."""
_SECRET: Final = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_NEARLY: Final = 0.02
"""Of a whole number of batches: a step that a window cut off has one less."""
_LATE: Final = (HOST, "schedule", "option ", "version of perfhooks")
"""Facts that come last: what was recorded touches no step that nobody recorded."""
_ORDER: Final = (
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
"""How the names of others begin, what more often makes a step slower first."""


class Difference(NamedTuple):
    """A fact that is not the same; empty is not known, or not there."""

    name: str
    a: str
    b: str


def facts(manifest: Manifest, capture: Capture, costs: Costs) -> dict[str, str]:
    """The facts that two runs should share if their steps are compared, as texts.

    Args:
        manifest: That of the run; an empty one of a bare trace.
        capture: The facts of its last window.
        costs: Those of its windows.
    """
    loader = capture.circumstances.loader
    given: dict[str, Any] = {
        "batch": costs.batch,
        SAMPLES: _samples(loader, costs, manifest.world_size or 1),
        "batches a step": f"{costs.fetches / costs.steps:.3g}" if costs.steps and costs.fetches else None,
        **_of_loader(loader),
        "world size": manifest.world_size,
        **{f"environment {name}": value for name, value in manifest.environment.items() if not _PLACE.search(name)},
        **{f"version of {name}": text for name, text in (manifest.versions | capture.versions).items()},
        "machine": manifest.machine,
        "device": costs.device_name,
        HOST: manifest.host,
        REVISION: manifest.revision,
        "schedule": manifest.schedule,
        **{f"option {name}": value for name, value in (manifest.options | capture.options).items()},
    }
    started = {COMMAND: json_values.text(command(manifest.command), _COMMAND)} if manifest.command else {}
    return started | {name: json_values.text(str(value), _TEXT) for name, value in json_values.facts(given).items()}


def _of_loader(loader: Loader | None) -> dict[str, Any]:
    if loader is None:
        return {}
    names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_sampler")
    return {f"loader {name}": getattr(loader, name) for name in names}


def _samples(loader: Loader | None, costs: Costs, world_size: int) -> int | None:
    """How many samples a step takes, where the loader says how large its batches are."""
    if loader is None or loader.batch_size is None or not (costs.steps and costs.fetches):
        return None
    batches = costs.fetches / costs.steps
    is_whole = abs(batches - round(batches)) <= _NEARLY * batches
    return loader.batch_size * round(batches) * world_size if is_whole else None


def samples(known: Mapping[str, str]) -> int | None:
    """How many samples a step takes, as facts tell; None where they do not, or where runs of a side differ."""
    text = known.get(SAMPLES, "")
    return int(text) if text.isdecimal() and int(text) else None


def command(words: Sequence[str]) -> str:
    """How a training was started: without folders, which differ from machine to machine, and without secrets."""
    program, *given = words or ("",)
    shown: list[str] = []
    for each in _separate(given):
        is_secret = bool(shown) and shown[-1].startswith("-") and _SECRET.search(shown[-1])
        shown.append("..." if is_secret and not each.startswith("-") else _without_folder(each))
    return shlex.join([_without_folder(program, always=True), *shown])


def _separate(arguments: Iterable[str]) -> Iterable[str]:
    """Arguments with their values apart: ``--lr=1`` is ``--lr 1``."""
    for each in arguments:
        name, equals, value = each.partition("=")
        yield from (name, value) if equals and name.startswith("-") else (each,)


def _without_folder(word: str, *, always: bool = False) -> str:
    for path in (PurePosixPath(word), PureWindowsPath(word)):
        if path.is_absolute() or word.startswith("~") or (always and len(path.parts) > 1):
            return path.name or word
    return word


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    """The facts that differ, those that are more likely to make a training slower first.

    A fact that only one side knows is left out, unless it is an option or a variable of the environment.

    Args:
        a: What `facts` gave of one side.
        b: And of the other.
    """
    names = dict.fromkeys([*a, *b])
    told = [Difference(name, a.get(name, ""), b.get(name, "")) for name in names]
    found = [each for each in told if each.a != each.b and _is_known(each, a, b) and not _is_place(each)]
    return sorted(found, key=lambda each: (is_late(each), _place(each)))


def _place(found: Difference) -> int:
    return next((place for place, start in enumerate(_ORDER) if found.name.startswith(start)), len(_ORDER))


def is_late(found: Difference) -> bool:
    """Whether a fact says hardly anything about the steps that nobody recorded."""
    return found.name.startswith(_LATE)


def _is_known(each: Difference, a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    return (each.name in a and each.name in b) or each.name.startswith(("option", "environment"))


def _is_place(each: Difference) -> bool:
    """Whether two commands differ only in where their results go."""
    return each.name == COMMAND and not arguments(each)


def arguments(found: Difference) -> list[Difference]:
    """In what two commands differ; the name of an argument is empty where it has none.

    Args:
        found: Both commands, as `facts` wrote them; arguments that say where results go are passed over.
    """
    a, b = (_parsed(each) for each in (found.a, found.b))
    return [
        Difference(name if name.startswith("-") else "", a.get(name, ""), b.get(name, ""))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def asked(text: str) -> str:
    """A command without the arguments that say where results go: the same for runs of one training."""
    shown = ((name if name.startswith("-") else "", value) for name, value in _parsed(text).items())
    return " ".join(f"{name} {'' if value == GIVEN else value}".strip() for name, value in shown)


def _parsed(text: str) -> dict[str, str]:
    """The arguments of a command by their names, those without one by their places."""
    found: dict[str, str] = {}
    name, places = "", 0
    for each in _words(text):
        if each.startswith("-") and not _is_number(each):
            name = each
            found.setdefault(name, GIVEN)
        elif name:
            found[name] = each if found[name] == GIVEN else f"{found[name]} {each}"
        else:
            found[str(places)] = each
            places += 1
    return {name: value for name, value in found.items() if not _RESULT.fullmatch(name)}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # its middle was cut out
        return text.split()


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def is_elsewhere(found: list[Difference], known: Mapping[str, str]) -> bool:
    """Whether the two ran on different hardware; where that is not known, hosts of two names count as such."""
    named = {each.name for each in found}
    return bool(named & {"machine", "device"}) or (HOST in named and "machine" not in known)
