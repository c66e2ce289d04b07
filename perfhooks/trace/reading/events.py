from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

import msgspec

MALFORMED: Final = (ValueError, RecursionError, msgspec.MsgspecError)

_STRING_OR_UNKNOWN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(?<=:)\s*N/A', re.DOTALL)
"""Pattern of strings, and of ``N/A``, which Kineto writes for unknown values and which is no JSON."""
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(?P<bad>))')
_LITERAL_BACKSLASH: Final = re.compile(r'\\(?!")')


class Event(msgspec.Struct, gc=False):
    """A trace event. ``ts`` and ``dur`` are in microseconds; ``args`` is raw JSON."""

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
    """An event whose times are exact to a nanosecond as doubles."""

    ts: float = math.nan


class ExactEvent(Event, gc=False):
    """An event with decimal times, because a double stores times since 1970 only to microseconds."""

    ts: Decimal = Decimal("NaN")


PLAIN: Final = msgspec.json.Decoder(list[PlainEvent])
EXACT: Final = msgspec.json.Decoder(list[ExactEvent])


def decode_object(text: bytes) -> dict[str, Any] | None:
    result = _loads(text)
    return result[0] if result is not None and isinstance(result[0], dict) else None


def decode_value(text: bytes) -> Any:
    """Decode a JSON value after repairs of Kineto's defects. If the repaired text is no JSON, return the text."""
    try:
        value = msgspec.json.decode(text)
        return _portable(value) if _LARGE.search(text) else value
    except MALFORMED:
        result = _loads(text)
    return text.decode("utf-8", "replace") if result is None else result[0]


def decode_end(text: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the last events of a file as ``traceEvents``, and the keys after the list; None for truncated text."""
    for closing in (b"", b"}"):  # files that are a list need the closing brace
        try:
            keys = msgspec.json.decode(b'{"traceEvents":[' + text + closing, type=dict[str, msgspec.Raw])
        except MALFORMED:
            continue
        return keys
    return None


def salvage(text: bytes) -> tuple[list[Event], int, bytes]:
    """Return the valid events, the number of lost events, and the text that begins at the end of the list."""
    events: list[Event] = []
    lost = 0
    for _ in range(8):
        text = text.lstrip(b", \r\n\t")
        if not text or text.startswith(b"]"):
            return events, lost, text
        result = _loads(text)
        if result is None:
            break
        events += [_lenient(result[0])] if isinstance(result[0], dict) else []
        lost += not isinstance(result[0], dict)
        text = result[1].encode()
    return events, lost + 1, b""


def _loads(text: bytes) -> tuple[Any, str] | None:
    decoded = text.decode("utf-8", "replace").lstrip()
    for attempt in (decoded, _STRING_OR_UNKNOWN.sub(_repair, decoded)):
        try:
            value, end = _DECODER.raw_decode(attempt)
            value = _portable(value) if _LARGE.search(text) else value
        except MALFORMED:
            continue
        return value, attempt[end:].lstrip()
    return None


def _repair(value: re.Match[str]) -> str:
    """Double the backslashes of a string with an invalid escape: Kineto does not escape Windows paths."""
    text = value[0]
    if not text.startswith('"'):
        return "null"
    is_valid = "\\" not in text or all(escape["bad"] is None for escape in _ESCAPE.finditer(text))
    return text if is_valid else _LITERAL_BACKSLASH.sub(r"\\\\", text)


def _portable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**64 else None
    if isinstance(value, list):
        return [_portable(item) for item in value]
    if isinstance(value, dict):
        return {_portable(key): _portable(item) for key, item in value.items()}
    return value


_DECODER: Final = json.JSONDecoder(strict=False)
_LARGE: Final = re.compile(rb"[0-9]{19}|\\u[dD][89a-fA-F]")


def _lenient(raw: dict[str, Any]) -> Event:
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
    # lone surrogates cannot be written to files
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _raw(value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(json.dumps(value).encode())
    except MALFORMED:  # nested too deeply to encode
        return msgspec.Raw(b"{}")


def _key(value: object) -> int | str:
    return value if type(value) is int else _text(value)


def _time(value: object) -> float | Decimal:
    if not isinstance(value, str):
        return number(value)
    try:
        time = Decimal(value)
    except ArithmeticError:
        return math.nan
    return time if time.is_finite() else math.nan


def number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    return math.nan
