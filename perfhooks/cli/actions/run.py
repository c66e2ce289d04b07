"""Read the options of ``perfhooks run``, and replace this process by the command.

The options are parsed without typer, because its import would delay each training. `perfhooks.cli.run` handles
``--help`` and errors.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from perfhooks.core.errors import CommandError, OptionError
from perfhooks.core.guard import stderr_file, write_error
from perfhooks.core.options import Option, all_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TYPES: Final = {bool: bool, int: int, float: float, str: str}
_LISTS: Final = ("activities", "ranks")
"""Options whose values are words with commas, or JSON."""
_OWN: Final = {"schedule": str, "handler": list, "patience": float}


class Parsed(NamedTuple):
    words: Sequence[str]
    options: Mapping[str, Any]


def parsed(arguments: Sequence[str]) -> Parsed | None:
    """Return the command and the options of ``run``; None for another verb, for ``--help`` and for errors."""
    if list(arguments[:1]) != ["run"]:
        return None
    flags, kinds = _flags(), _kinds()
    remaining, options = list(arguments[1:]), dict[str, Any]()
    while remaining and remaining[0].startswith("--") and remaining[0] != "--":
        name, has_value, value = remaining.pop(0).partition("=")
        if name in flags and not has_value:
            options.update(flags[name])
        elif name in kinds and (has_value or (remaining and not remaining[0].startswith("-"))):
            option, kind = kinds[name]
            value = value if has_value else remaining.pop(0)
            try:
                options[option] = [*options.get(option, ()), value] if kind is list else kind(value)
            except ValueError:
                return None
        else:
            return None
    words = remaining[1:] if remaining[:1] == ["--"] else remaining
    return (
        Parsed(words, options)
        if words and (words != remaining or remaining[0] == "-m" or remaining[0][:1] != "-")
        else None
    )


def _flags() -> dict[str, dict[str, bool]]:
    switches = [option for option in all_options() if kind_of(option) is bool]
    return {_written(option.name): {option.name: True} for option in switches} | {
        f"--no-{_written(option.name)[2:]}": {option.name: False} for option in switches if option.default is True
    }


def _kinds() -> dict[str, tuple[str, Callable[[str], Any]]]:
    valued = {option.name: kind_of(option) for option in all_options()} | _OWN
    return {_written(name): (name, kind) for name, kind in valued.items() if kind not in (None, bool)}


def _written(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def kind_of(option: Option) -> Any:
    """Return the kind of values of an option; None for objects that cannot be written as text."""
    if option.name in _LISTS:
        return str
    kinds = [option.type, *getattr(option.type, "__args__", ())]
    literal = isinstance(option.default, str)
    return next((_TYPES[kind] for kind in kinds if kind in _TYPES), str if literal else None)


def start(parsed: Parsed) -> None:
    from perfhooks.record.launch import command_line, detached, exit_summary, notes

    options = {name: _read(name, value) for name, value in parsed.options.items() if name not in _OWN}
    schedule, handlers, patience = (parsed.options.get(name) for name in _OWN)
    words = command_line.command(parsed.words)
    seconds = command_line.PATIENCE_S if patience is None else patience
    request = command_line.request(schedule, handlers or (), options, seconds)
    reason = exit_summary.known_before(words)
    if reason is not None:
        write_error(f"perfhooks: recording may fail: {reason}\n")
    folder = _folder_for_notes()
    is_watched = bool(folder) and detached.is_possible()
    request = msgspec.structs.replace(
        request, notes=folder, command=os.getpid(), stderr=stderr_file(), is_watched=is_watched
    )
    if is_watched:
        detached.start(os.getpid(), folder, words)
    try:
        os.execve(words[0], words, command_line.environment(request, os.environ))  # noqa: S606 -- it is what the user asked for
    except OSError as error:
        if folder and not is_watched:
            notes.delete(folder)
        code = 127 if isinstance(error, FileNotFoundError) else 126
        raise CommandError(f"{words[0]} cannot be run: {error.strerror}", code) from error


def _folder_for_notes() -> str:
    try:
        return tempfile.mkdtemp(prefix="perfhooks-run-")
    except OSError:  # only a part of the exit summary is lost, and the recording continues
        return ""


def separated(arguments: Sequence[str]) -> list[str]:
    """Insert ``--`` before ``-m``, because the command begins there, as in ``python -m module``."""
    words = list(arguments)
    if words[:1] == ["run"] and "-m" in words:
        place = words.index("-m")
        ours = itertools.pairwise(words[:place])
        if "--" not in words[:place] and all(_is_option(before) or _is_option(word) for before, word in ours):
            words.insert(place, "--")
    return words


def _is_option(word: str) -> bool:
    return word.startswith("--")


def _read(name: str, value: Any) -> Any:
    if name not in _LISTS:
        return value
    if name == "activities" and value.lstrip().startswith("["):
        return written_out(value)
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if name == "ranks":
        return value if value in ("all", "first-of-node") else numbers(parts, value)
    return parts


def written_out(value: str) -> list[Any]:
    try:
        activities: list[Any] = json.loads(value)
    except ValueError as error:
        raise OptionError(
            f"activities must be words such as cpu,cuda or a JSON list, got {value!r} ({error})"
        ) from None
    return activities


def numbers(parts: Sequence[str], value: str) -> list[int]:
    try:
        return sorted({number for part in parts for number in _span(part)})
    except ValueError:
        raise OptionError(f"ranks must be 'all', 'first-of-node' or numbers such as 0,4-7, got {value!r}") from None


def _span(part: str) -> range:
    first, dash, last = part.partition("-")
    return range(int(first), int(last if dash else first) + 1)
