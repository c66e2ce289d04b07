"""The events of a Kineto trace as typed structs, and what to do with those that do not fit the type."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

import msgspec

NOTHING: Final = msgspec.Raw(b"")
_ATTEMPTS: Final = 8
"""How often to go on behind something odd; each time costs the length of the text."""
_MALFORMED: Final = (ValueError, RecursionError, msgspec.MsgspecError)

# An escape that JSON does not know (a Windows path written as it is), and the literal that Kineto writes for "unknown".
_BAD_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrtu])')
_BAD_LITERAL: Final = re.compile(r"(?<=:)\s*N/A")


class Args(msgspec.Struct, gc=False, rename=None):
    """The arguments that the tables read; -1, NaN and nothing stand for absent. Order is that of the files."""

    external: int = msgspec.field(default=-1, name="External id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    python_parent: int | None = msgspec.field(default=-1, name="Python parent id")
    python_id: int = msgspec.field(default=-1, name="Python id")
    module: int = msgspec.field(default=-1, name="Python module id")
    inputs: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    call_stack: msgspec.Raw = msgspec.field(default=NOTHING, name="Call stack")
    device: int = msgspec.field(default=-1, name="device")
    # a handle in hexadecimal on ROCm's runtime events
    stream: int | str = msgspec.field(default=-1, name="stream")
    correlation: int = msgspec.field(default=-1, name="correlation")
    nbytes: int | str = msgspec.field(default=-1, name="bytes")
    bandwidth: float = msgspec.field(default=math.nan, name="memory bandwidth (GB/s)")
    registers: int = msgspec.field(default=-1, name="registers per thread")
    shared_memory: int = msgspec.field(default=-1, name="shared memory")
    blocks_per_sm: float = msgspec.field(default=math.nan, name="blocks per SM")
    warps_per_sm: float = msgspec.field(default=math.nan, name="warps per SM")
    grid: msgspec.Raw = msgspec.field(default=NOTHING, name="grid")
    block: msgspec.Raw = msgspec.field(default=NOTHING, name="block")
    occupancy: float = msgspec.field(default=math.nan, name="est. achieved occupancy %")
    graph: int = msgspec.field(default=-1, name="graph id")
    graph_node: int = msgspec.field(default=-1, name="graph node id")
    collective: msgspec.Raw = msgspec.field(default=NOTHING, name="Collective name")
    dtype: msgspec.Raw = msgspec.field(default=NOTHING, name="dtype")
    in_elements: int = msgspec.field(default=-1, name="In msg nelems")
    out_elements: int = msgspec.field(default=-1, name="Out msg nelems")
    group_size: int = msgspec.field(default=-1, name="Group size")
    group_name: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Name")
    group_ranks: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Ranks")
    sync_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="cuda_sync_kind")
    address: int = msgspec.field(default=-1, name="Addr")
    size: int = msgspec.field(default=0, name="Bytes")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")
    label: msgspec.Raw = msgspec.field(default=NOTHING, name="name")
    old_external: int = msgspec.field(default=-1, name="external id")


class Event(msgspec.Struct, gc=False):
    """One event; ``ts`` and ``dur`` in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float | Decimal = math.nan
    dur: float = 0.0
    args: Args | None = None
    id: int | str = -1


class PlainEvent(Event, gc=False):
    """An event whose time fits a double to the nanosecond: an integer, or relative to a base."""

    ts: float = math.nan


class ExactEvent(Event, gc=False):
    """An event whose time is microseconds since 1970 with decimals, of which a double would lose three."""

    ts: Decimal = Decimal("NaN")


PLAIN: Final = msgspec.json.Decoder(list[PlainEvent])
EXACT: Final = msgspec.json.Decoder(list[ExactEvent])

_INTEGERS: Final = {
    f.encode_name: f.name for f in msgspec.structs.fields(Args) if f.type in (int, int | str, int | None)
}
_FLOATS: Final = {f.encode_name: f.name for f in msgspec.structs.fields(Args) if f.type is float}
_RAW: Final = {f.encode_name: f.name for f in msgspec.structs.fields(Args) if f.type is msgspec.Raw}


def decode_object(text: bytes) -> dict[str, Any] | None:
    """Read one JSON object; None where it is none, even with the usual defects repaired."""
    found = _loads(text)
    return found[0] if found is not None and isinstance(found[0], dict) else None


def decode_value(text: bytes) -> Any:
    """Read any JSON value, even with the usual defects; where it is none, the text itself."""
    try:
        return msgspec.json.decode(text)
    except _MALFORMED:
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
        except _MALFORMED:
            continue
        return value, attempt[end:].lstrip()
    return None


_DECODER: Final = json.JSONDecoder(strict=False)


def _lenient(raw: dict[str, Any]) -> Event:
    """An event with the fields that have the right type; the others are absent."""
    args = raw.get("args")
    return PlainEvent(
        ph=_text(raw.get("ph")),
        cat=_text(raw.get("cat")),
        name=_text(raw.get("name")),
        pid=_key(raw.get("pid")),
        tid=_key(raw.get("tid")),
        ts=_number(raw.get("ts")),
        dur=_number(raw.get("dur", 0.0)),
        args=_lenient_args(args) if isinstance(args, dict) else None,
        id=_key(raw.get("id")),
    )


def _lenient_args(raw: dict[str, Any]) -> Args:
    found: dict[str, Any] = {}
    for key, value in raw.items():
        if key in _INTEGERS and type(value) is int and abs(value) < 2**63:
            found[_INTEGERS[key]] = value
        elif key in _FLOATS:
            found[_FLOATS[key]] = _number(value)
        elif key in _RAW:
            found[_RAW[key]] = msgspec.Raw(json.dumps(value).encode())
    return Args(**found)


def _text(value: object) -> str:
    # a lone surrogate, which JSON can spell, cannot be written to any file later
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _key(value: object) -> int | str:
    return value if type(value) is int else _text(value)


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    return math.nan
