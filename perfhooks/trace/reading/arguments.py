"""Structs for the arguments of each kind of event, with only the arguments that tables need."""

from __future__ import annotations

import functools
import json
import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.reading.events import MALFORMED, decode_object, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOTHING: Final = msgspec.Raw(b"")
"""Value of an absent text. Absent integers are -1, absent floats NaN."""


class Arguments(msgspec.Struct, gc=False):
    """Arguments of events. Fields have the order of the arguments in trace files."""


class Owned(Arguments, gc=False):
    external: int = msgspec.field(default=-1, name="External id")
    old_external: int = msgspec.field(default=-1, name="external id")


class Operator(Owned, gc=False):
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")


class ShapedOperator(Operator, gc=False):
    inputs: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")


class StridedOperator(ShapedOperator, gc=False):
    """Arguments of an operator with strides. Strides are read only for replays, because decoding takes time."""

    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")


MOVED_START: Final = "perfhooks start moved ns"
MOVED_END: Final = "perfhooks end moved ns"
"""Arguments for the time in ns by which perfhooks shortened a label at its start and end."""


class MovedShadow(Owned, gc=False):
    moved_start: int = msgspec.field(default=-1, name=MOVED_START)
    moved_end: int = msgspec.field(default=-1, name=MOVED_END)


class MovedLabel(ShapedOperator, gc=False):
    moved_start: int = msgspec.field(default=-1, name=MOVED_START)
    moved_end: int = msgspec.field(default=-1, name=MOVED_END)


class PythonFrame(Arguments, gc=False):
    frame: int = msgspec.field(default=-1, name="Python id")
    caller: int | None = msgspec.field(default=-1, name="Python parent id")


class Launch(Owned, gc=False):
    correlation: int = msgspec.field(default=-1, name="correlation")


class Work(Owned, gc=False):
    device: int = msgspec.field(default=-1, name="device")
    # ROCm writes a handle in hexadecimal
    stream: int | str = msgspec.field(default=-1, name="stream")
    correlation: int = msgspec.field(default=-1, name="correlation")
    nbytes: int | str = msgspec.field(default=-1, name="bytes")
    occupancy: float = msgspec.field(default=math.nan, name="est. achieved occupancy %")
    graph_node: int = msgspec.field(default=-1, name="graph node id")
    region: msgspec.Raw = msgspec.field(default=NOTHING, name="name")
    original_stream: int = msgspec.field(default=-1, name="original_stream")
    autograd_phase: msgspec.Raw = msgspec.field(default=NOTHING, name="autograd_phase")  # the only value is "backward"


class Copy(Work, gc=False):
    """Arguments of a copy. The kinds are names in Kineto, but arguments in cuspy, the second recorder of torch."""

    copy_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="copy kind")
    source_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="src kind")
    target_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="dst kind")


class Set(Work, gc=False):
    memory_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="memory kind")


class Wait(Arguments, gc=False):
    correlation: int = msgspec.field(default=-1, name="correlation")
    sync_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="cuda_sync_kind")


class Allocation(Arguments, gc=False):
    address: int = msgspec.field(default=-1, name="Addr")
    size: int = msgspec.field(default=0, name="Bytes")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")


FIRST_OF_COLLECTIVES: Final = "collective"
"""First field about collectives. If all events of a chunk lack this field, the following fields are not read."""


def _collective(base: type[Arguments]) -> type[Arguments]:
    fields: tuple[tuple[str, Any, Any], ...] = (
        (FIRST_OF_COLLECTIVES, msgspec.Raw, msgspec.field(default=NOTHING, name="Collective name")),
        ("dtype", msgspec.Raw, msgspec.field(default=NOTHING, name="dtype")),
        ("in_elements", int, msgspec.field(default=-1, name="In msg nelems")),
        ("out_elements", int, msgspec.field(default=-1, name="Out msg nelems")),
        ("group_size", int, msgspec.field(default=-1, name="Group size")),
        ("group_name", msgspec.Raw, msgspec.field(default=NOTHING, name="Process Group Name")),
    )
    struct: Any = msgspec.defstruct(f"Collective{base.__name__}", fields, bases=(base,), gc=False)
    return cast("type[Arguments]", struct)


class MarkedStruct(NamedTuple):
    """A struct that decodes the arguments of an event if their JSON contains ``mark``."""

    mark: bytes
    fields: type[Arguments]


_COLLECTIVE: Final = b'"Collective name"'
_MOVED: Final = b'"perfhooks start moved ns"'
_OPERATOR: Final = (
    MarkedStruct(_COLLECTIVE, _collective(ShapedOperator)),
    MarkedStruct(b"Input", ShapedOperator),
    MarkedStruct(b"", Operator),
)
_WORK: Final[tuple[type[Work], ...]] = (Work, Copy, Set)
VARIANTS: Final[dict[Kind, tuple[MarkedStruct, ...]]] = {
    Kind.OP: _OPERATOR,
    Kind.ANNOTATION: (MarkedStruct(_MOVED, _collective(MovedLabel)), *_OPERATOR),
    Kind.PYTHON: (MarkedStruct(b"", PythonFrame),),
    Kind.RUNTIME: (MarkedStruct(b"", Launch),),
    Kind.DEVICE_ANNOTATION: (MarkedStruct(_MOVED, MovedShadow), MarkedStruct(b"", Owned)),
    Kind.SYNC: (MarkedStruct(b"", Wait),),
    **{
        kind: (MarkedStruct(_COLLECTIVE, _collective(fields)), MarkedStruct(b"", fields))
        for kind, fields in zip(DEVICE_WORK, _WORK, strict=True)
    },
}
"""Structs of arguments for each kind of slice, the largest first. Small structs save decoding time."""
STRIDED: Final[dict[Kind, tuple[MarkedStruct, ...]]] = VARIANTS | {
    Kind.OP: (
        MarkedStruct(_COLLECTIVE, _collective(StridedOperator)),
        MarkedStruct(b"Input", StridedOperator),
        MarkedStruct(b"", Operator),
    )
}

MEMORY: Final = (MarkedStruct(b"", Allocation),)
ON_STREAM: Final = (MarkedStruct(b"", Work),)


class Field(NamedTuple):
    name: str
    absent: Any
    value: Callable[[Arguments], Any]


@functools.cache
def fields(struct: type[Arguments]) -> tuple[Field, ...]:
    return tuple(Field(field.name, field.default, attrgetter(field.name)) for field in _fields(struct))


def parsed(texts: Sequence[msgspec.Raw], variants: Sequence[MarkedStruct]) -> Sequence[Arguments]:
    """Decode JSON texts with the first struct whose mark occurs in one of the texts.

    Arguments of a wrong type count as absent.
    """
    array = b"".join((b"[", b",".join(texts), b"]"))
    struct = next(fields for mark, fields in variants if mark in array)
    try:
        return _decoder(struct).decode(array)
    except MALFORMED:
        return [_parsed_alone(text, struct) for text in texts]


@functools.cache
def _decoder(struct: type[Arguments]) -> msgspec.json.Decoder[list[Arguments]]:
    return msgspec.json.Decoder(list[struct])  # type: ignore[valid-type]  # the type is a runtime value


def _parsed_alone(text: msgspec.Raw, struct: type[Arguments]) -> Arguments:
    try:
        return msgspec.json.decode(text, type=struct)
    except MALFORMED:
        return _lenient(bytes(text), struct)


_fields: Final = functools.cache(msgspec.structs.fields)


def _lenient(text: bytes, fields: type[Arguments]) -> Arguments:
    raw = decode_object(text) or {}
    values: dict[str, Any] = {}
    for field in _fields(fields):
        if field.encode_name not in raw:
            continue
        value = raw[field.encode_name]
        if isinstance(field.default, msgspec.Raw):
            values[field.name] = msgspec.Raw(json.dumps(value).encode())
        elif isinstance(field.default, float):
            values[field.name] = number(value)
        elif type(value) is int or (isinstance(value, str) and field.type == int | str):
            values[field.name] = value
    return fields(**values)
