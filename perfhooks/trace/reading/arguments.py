"""What the events of each kind carry beside their times, as typed structs; nothing that no table reads."""

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
"""A text that is absent; an absent integer is -1, an absent float is NaN."""


class Arguments(msgspec.Struct, gc=False):
    """Some arguments of an event, in the order of the files; what a struct does not name costs next to nothing."""


class Owned(Arguments, gc=False):
    """Of whatever belongs to an operator or label, as the shadows that labels throw on a stream."""

    external: int = msgspec.field(default=-1, name="External id")
    old_external: int = msgspec.field(default=-1, name="external id")


class Operator(Owned, gc=False):
    """Of operators and labels."""

    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")


class ShapedOperator(Operator, gc=False):
    """Of operators whose inputs were recorded."""

    inputs: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")


class StridedOperator(ShapedOperator, gc=False):
    """The same for those who run operators again; nobody else asks for it, and every field costs."""

    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")


MOVED_START: Final = "perfhooks start moved ns"
MOVED_END: Final = "perfhooks end moved ns"
"""Arguments of labels that `perfhooks.trace.writing.repair` moved: the distance of each end from its recorded time."""


class MovedShadow(Owned, gc=False):
    """Of the shadows of labels that moved."""

    moved_start: int = msgspec.field(default=-1, name=MOVED_START)
    moved_end: int = msgspec.field(default=-1, name=MOVED_END)


class MovedLabel(ShapedOperator, gc=False):
    """Of labels that moved."""

    moved_start: int = msgspec.field(default=-1, name=MOVED_START)
    moved_end: int = msgspec.field(default=-1, name=MOVED_END)


class PythonFrame(Arguments, gc=False):
    """Of Python frames."""

    frame: int = msgspec.field(default=-1, name="Python id")
    caller: int | None = msgspec.field(default=-1, name="Python parent id")


class Launch(Owned, gc=False):
    """Of runtime calls."""

    correlation: int = msgspec.field(default=-1, name="correlation")


class Work(Owned, gc=False):
    """Of kernels, copies and memsets."""

    device: int = msgspec.field(default=-1, name="device")
    # a handle in hexadecimal on ROCm's runtime events
    stream: int | str = msgspec.field(default=-1, name="stream")
    correlation: int = msgspec.field(default=-1, name="correlation")
    nbytes: int | str = msgspec.field(default=-1, name="bytes")
    occupancy: float = msgspec.field(default=math.nan, name="est. achieved occupancy %")
    graph_node: int = msgspec.field(default=-1, name="graph node id")
    region: msgspec.Raw = msgspec.field(default=NOTHING, name="name")
    original_stream: int = msgspec.field(default=-1, name="original_stream")
    autograd_phase: msgspec.Raw = msgspec.field(default=NOTHING, name="autograd_phase")  # there is only "backward"


class Copy(Work, gc=False):
    """Of copies; torch's next recorder calls them all ``Memcpy`` and says here which they are."""

    copy_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="copy kind")
    source_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="src kind")
    target_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="dst kind")


class Set(Work, gc=False):
    """Of memsets; the same."""

    memory_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="memory kind")


class Wait(Arguments, gc=False):
    """Of waits that the device's tracer reports."""

    correlation: int = msgspec.field(default=-1, name="correlation")
    sync_kind: msgspec.Raw = msgspec.field(default=NOTHING, name="cuda_sync_kind")


class Allocation(Arguments, gc=False):
    """Of the instants that record an allocation or a release."""

    address: int = msgspec.field(default=-1, name="Addr")
    size: int = msgspec.field(default=0, name="Bytes")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")


FIRST_OF_COLLECTIVES: Final = "collective"
"""The argument without which an event has none of the others that collectives have."""


def _collective(base: type[Arguments]) -> type[Arguments]:
    """The same of events that are collectives."""
    fields: tuple[tuple[str, Any, Any], ...] = (
        (FIRST_OF_COLLECTIVES, msgspec.Raw, msgspec.field(default=NOTHING, name="Collective name")),
        ("dtype", msgspec.Raw, msgspec.field(default=NOTHING, name="dtype")),
        ("in_elements", int, msgspec.field(default=-1, name="In msg nelems")),
        ("out_elements", int, msgspec.field(default=-1, name="Out msg nelems")),
        ("group_size", int, msgspec.field(default=-1, name="Group size")),
        ("group_name", msgspec.Raw, msgspec.field(default=NOTHING, name="Process Group Name")),
    )
    made: Any = msgspec.defstruct(f"Collective{base.__name__}", fields, bases=(base,), gc=False)
    return cast("type[Arguments]", made)


class MarkedStruct(NamedTuple):
    """A struct, and a text without which none of its fields beyond those of the next variant can occur."""

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
"""By kind, the richest first. A struct costs by the number of its fields, used or not: hence the small ones."""
STRIDED: Final[dict[Kind, tuple[MarkedStruct, ...]]] = VARIANTS | {
    Kind.OP: (
        MarkedStruct(_COLLECTIVE, _collective(StridedOperator)),
        MarkedStruct(b"Input", StridedOperator),
        MarkedStruct(b"", Operator),
    )
}
"""The same with the strides of operators' inputs."""

MEMORY: Final = (MarkedStruct(b"", Allocation),)
ON_STREAM: Final = (MarkedStruct(b"", Work),)


class Field(NamedTuple):
    """One argument of a struct."""

    name: str
    absent: Any
    value: Callable[[Arguments], Any]
    """Takes it from a struct."""


@functools.cache
def fields(of: type[Arguments]) -> tuple[Field, ...]:
    """The arguments that a struct has, in its order."""
    return tuple(Field(each.name, each.default, attrgetter(each.name)) for each in _fields(of))


def parsed(texts: Sequence[msgspec.Raw], variants: Sequence[MarkedStruct]) -> Sequence[Arguments]:
    """Read the arguments of some events, each a JSON object; those of a wrong type count as absent.

    Args:
        texts: the arguments, one text per event.
        variants: what they may be, the richest first; the last one has no mark.
    """
    joined = b"".join((b"[", b",".join(texts), b"]"))
    of = next(fields for mark, fields in variants if mark in joined)
    try:
        return _decoder(of).decode(joined)
    except MALFORMED:
        return [_parsed_alone(text, of) for text in texts]


@functools.cache
def _decoder(of: type[Arguments]) -> msgspec.json.Decoder[list[Arguments]]:
    return msgspec.json.Decoder(list[of])  # type: ignore[valid-type]  # of what is only known now


def _parsed_alone(text: msgspec.Raw, of: type[Arguments]) -> Arguments:
    try:
        return msgspec.json.decode(text, type=of)
    except MALFORMED:
        return _lenient(bytes(text), of)


_fields: Final = functools.cache(msgspec.structs.fields)
"""It takes 0.3 ms to find out."""


def _lenient(text: bytes, fields: type[Arguments]) -> Arguments:
    raw = decode_object(text) or {}
    found: dict[str, Any] = {}
    for field in _fields(fields):
        if field.encode_name not in raw:
            continue
        value = raw[field.encode_name]
        if isinstance(field.default, msgspec.Raw):
            found[field.name] = msgspec.Raw(json.dumps(value).encode())
        elif isinstance(field.default, float):
            found[field.name] = number(value)
        elif type(value) is int or (isinstance(value, str) and field.type == int | str):
            found[field.name] = value
    return fields(**found)
