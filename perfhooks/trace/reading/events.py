"""The events of a Kineto trace as typed structs, and what to do with those that do not fit the type."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

import msgspec

_ATTEMPTS: Final = 8
"""How often to go on behind something odd; each time costs the length of the text."""
MALFORMED: Final = (ValueError, RecursionError, msgspec.MsgspecError)

# An escape that JSON does not know (a Windows path written as it is), and the literal that Kineto writes for "unknown".
_BAD_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BAD_LITERAL: Final = re.compile(r"(?<=:)\s*N/A")


class Event(msgspec.Struct, gc=False):
    """Any event; ``ts`` and ``dur`` in microseconds. Its arguments stay text until its kind is known."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float | Decimal = math.nan
    dur: float = math.nan
    args: msgspec.Raw = msgspec.Raw(b"{}")
    id: int | str = -1


class PlainEvent(Event, gc=False):
    """An event whose time fits a double to the nanosecond: an integer, or relative to a base."""

    ts: float = math.nan


class ExactEvent(Event, gc=False):
    """An event whose time is microseconds since 1970 with decimals, of which a double would lose three."""

    ts: Decimal = Decimal("NaN")


PLAIN: Final = msgspec.json.Decoder(list[PlainEvent])
EXACT: Final = msgspec.json.Decoder(list[ExactEvent])


def decode_object(text: bytes) -> dict[str, Any] | None:
    """Read one JSON object; None where it is none, even with the usual defects repaired."""
    found = _loads(text)
    return found[0] if found is not None and isinstance(found[0], dict) else None


def decode_value(text: bytes) -> Any:
    """Read any JSON value, even with the usual defects; where it is none, the text itself."""
    try:
        value = msgspec.json.decode(text)
        return _small(value) if _LARGE.search(text) else value
    except MALFORMED:
        found = _loads(text)
    return text.decode("utf-8", "replace") if found is None else found[0]


def salvage(text: bytes) -> tuple[list[Event], int, bytes]:
    """Read what can be read of a text that should be one event and is not.

    Returns:
        The events, how many others were lost, and the end of the list with what follows it, if it ends in here.
    """
    events: list[Event] = []
    lost = 0
    for _ in range(_ATTEMPTS):
        text = text.lstrip(b", \r\n\t")
        if not text or text.startswith(b"]"):
            return events, lost, text
        found = _loads(text)
        if found is None:
            break
        events += [_lenient(found[0])] if isinstance(found[0], dict) else []
        lost += not isinstance(found[0], dict)
        text = found[1].encode()
    return events, lost + 1, b""


def _loads(text: bytes) -> tuple[Any, str] | None:
    plain = text.decode("utf-8", "replace").lstrip()
    for attempt in (plain, _BAD_LITERAL.sub("null", _BAD_ESCAPE.sub(r"\\\\", plain))):
        try:
            value, end = _DECODER.raw_decode(attempt)
            value = _small(value) if _LARGE.search(text) else value
        except MALFORMED:
            continue
        return value, attempt[end:].lstrip()
    return None


def _small(value: Any) -> Any:
    """A value without what JSON can spell and nothing else takes: numbers beyond 64 bits, and halves of letters."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**64 else None
    if isinstance(value, list):
        return [_small(each) for each in value]
    if isinstance(value, dict):
        return {_small(key): _small(each) for key, each in value.items()}
    return value


_DECODER: Final = json.JSONDecoder(strict=False)
_LARGE: Final = re.compile(rb"[0-9]{19}|\\u[dD][89a-fA-F]")
"""What may be a number beyond 64 bits, or half of a letter."""


def _lenient(raw: dict[str, Any]) -> Event:
    """An event with the fields that have the right type; the others are absent."""
    return Event(
        ph=_text(raw.get("ph")),
        cat=_text(raw.get("cat")),
        name=_text(raw.get("name")),
        pid=_key(raw.get("pid")),
        tid=_key(raw.get("tid")),
        ts=_time(raw.get("ts")),
        dur=float(_time(raw.get("dur"))),
        args=_raw(raw.get("args", {})),
        id=_key(raw.get("id")),
    )


def _text(value: object) -> str:
    # a lone surrogate, which JSON can spell, cannot be written to any file later
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _raw(value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(json.dumps(value).encode())
    except MALFORMED:  # nested deeper than can be written again
        return msgspec.Raw(b"{}")


def _key(value: object) -> int | str:
    return value if type(value) is int else _text(value)


def _time(value: object) -> float | Decimal:
    """Return microseconds of a number or a text; NaN for anything else."""
    if not isinstance(value, str):
        return number(value)
    try:
        time = Decimal(value)
    except ArithmeticError:
        return math.nan
    return time if time.is_finite() else math.nan


def number(value: object) -> float:
    """A number that fits 64 bits as a float; NaN for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    return math.nan
