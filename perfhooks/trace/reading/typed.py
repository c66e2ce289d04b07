"""Whole chunks of events decoded at once, with their arguments, as soon as it is known what a file's categories are.

An event says what it is in its ``cat``, so a union of structs that are told apart by it (msgspec's tagged unions) reads
events and arguments in the time that events alone take with arguments left as text. What does not fit, as an event
without a category, is for `perfhooks.trace.reading.events`, which takes anything.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Union, cast

import msgspec

from perfhooks.trace.reading.arguments import MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfhooks.trace.kinds import Kind
    from perfhooks.trace.reading.arguments import MarkedStruct
    from perfhooks.trace.reading.events import Event

_MOST: Final = 64
"""Categories of a file at most: Kineto has some 30, and each costs time when the structs are made."""
_PLACE: Final = re.compile(r"\$\[(\d+)\]")
"""How msgspec says which event of a list did not fit."""

_Fields = list[tuple[str, Any, Any]]


class Category(NamedTuple):
    """What the events of a category were so far."""

    phases: frozenset[str]
    kind: Kind | None
    """Of slices; None where they are flows or instants."""
    is_instant: bool


class OddEventError(Exception):
    """An event does not fit."""

    def __init__(self, place: int | None) -> None:
        super().__init__(place)
        self.place = place
        """Which one of the list; None if the text is no JSON, or no category is known."""


class TypedEvents:
    """Decodes the events of one file."""

    def __init__(self, variants: Mapping[Kind, Sequence[MarkedStruct]]) -> None:
        self._variants = variants
        self._categories: dict[str, Category] = {}
        self._decoders: dict[bool, msgspec.json.Decoder[Any]] = {}

    def learn(self, categories: Mapping[str, Category]) -> None:
        """Take what the events of each category were so far; what they have not been yet does not fit."""
        if categories != self._categories and len(categories) <= _MOST:
            self._categories = dict(categories)
            self._decoders.clear()

    def decode(self, text: bytes, *, exact: bool) -> Sequence[Event]:
        """Read a list of events.

        Args:
            text: JSON.
            exact: whether their times are to be decimals.

        Raises:
            OddEventError: one of them does not fit.
        """
        if not self._categories:
            raise OddEventError(None)
        if exact not in self._decoders:
            self._decoders[exact] = self._decoder(exact=exact)
        try:
            return cast("Sequence[Event]", self._decoders[exact].decode(text))
        except msgspec.ValidationError as error:
            place = _PLACE.search(str(error))
            raise OddEventError(int(place[1]) if place else None) from None
        except (ValueError, RecursionError, msgspec.MsgspecError):
            raise OddEventError(None) from None

    def _decoder(self, *, exact: bool) -> msgspec.json.Decoder[Any]:
        time: tuple[str, Any, Any] = ("ts", Decimal, Decimal("NaN")) if exact else ("ts", float, math.nan)
        structs = [self._struct(name, each, time) for name, each in self._categories.items()]
        any_of: Any = Union[tuple(structs)]  # noqa: UP007 -- how many there are is only known now
        return msgspec.json.Decoder(list[any_of])

    def _struct(self, name: str, category: Category, time: tuple[str, Any, Any]) -> type:
        fields: _Fields = [("ph", Literal[tuple(sorted(category.phases))], msgspec.field())]
        place: _Fields = [("pid", int | str, -1), ("tid", int | str, -1)]
        if category.kind is None and not category.is_instant:
            fields += [("id", int | str, -1), *place, time, ("name", str, "")]
        else:
            fields += [("name", str, ""), *place, time, ("dur", float, math.nan)]
        several = (
            MEMORY if category.is_instant else None if category.kind is None else self._variants.get(category.kind)
        )
        if several:
            richest = several[0].fields  # to look for the mark of a richer one costs more than its fields do
            fields.append(("args", richest, msgspec.field(default_factory=richest)))
        return msgspec.defstruct("TypedEvent", fields, tag_field="cat", tag=name, gc=False, namespace={"cat": name})
