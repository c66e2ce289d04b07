"""Fast decoding of events: the category (``cat``) selects a struct of a tagged union of msgspec.

The first chunks of a file show which categories occur.
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
"""Maximum categories of a file for typed decoding, because each category takes time. Kineto has about 30 categories."""
_INDEX: Final = re.compile(r"\$\[(\d+)\]")

_Fields = list[tuple[str, Any, Any]]


class Category(NamedTuple):
    phases: frozenset[str]
    kind: Kind | None
    """Kind of slices; None for flows and instants."""
    is_instant: bool


class OddEventError(Exception):
    def __init__(self, index: int | None) -> None:
        super().__init__(index)
        self.index = index
        """Index of the event that differs from its category; None if unknown."""


class TypedEvents:
    def __init__(self, variants: Mapping[Kind, Sequence[MarkedStruct]]) -> None:
        self._variants = variants
        self._categories: dict[str, Category] = {}
        self._decoders: dict[bool, msgspec.json.Decoder[Any]] = {}

    def learn(self, categories: Mapping[str, Category]) -> None:
        """Set the categories of events.

        An event that differs from the first event of its category is odd: it needs the slower decoder.
        """
        if categories != self._categories and len(categories) <= _MOST:
            self._categories = dict(categories)
            self._decoders.clear()

    def decode(self, text: bytes, *, exact: bool) -> Sequence[Event]:
        """Decode a list of events; raises OddEventError for an event that differs from its category.

        If ``exact`` is set, times are decimals.
        """
        if not self._categories:
            raise OddEventError(None)
        if exact not in self._decoders:
            self._decoders[exact] = self._decoder(exact=exact)
        try:
            return cast("Sequence[Event]", self._decoders[exact].decode(text))
        except msgspec.ValidationError as error:
            index = _INDEX.search(str(error))
            raise OddEventError(int(index[1]) if index else None) from None
        except (ValueError, RecursionError, msgspec.MsgspecError):
            raise OddEventError(None) from None

    def _decoder(self, *, exact: bool) -> msgspec.json.Decoder[Any]:
        time: tuple[str, Any, Any] = ("ts", Decimal, Decimal("NaN")) if exact else ("ts", float, math.nan)
        structs = [self._struct(name, category, time) for name, category in self._categories.items()]
        any_of: Any = Union[tuple(structs)]  # noqa: UP007 -- the number of structs is a runtime value
        return msgspec.json.Decoder(list[any_of])

    def _struct(self, name: str, category: Category, time: tuple[str, Any, Any]) -> type:
        fields: _Fields = [("ph", Literal[tuple(sorted(category.phases))], msgspec.field())]
        thread: _Fields = [("pid", int | str, -1), ("tid", int | str, -1)]
        if category.kind is None and not category.is_instant:
            fields += [("id", int | str, -1), *thread, time, ("name", str, "")]
        else:
            fields += [("name", str, ""), *thread, time, ("dur", float, math.nan)]
        variants = (
            MEMORY if category.is_instant else None if category.kind is None else self._variants.get(category.kind)
        )
        if variants:
            largest = variants[0].fields  # a search for a mark takes longer than decoding the additional fields
            fields.append(("args", largest, msgspec.field(default_factory=largest)))
        return msgspec.defstruct("TypedEvent", fields, tag_field="cat", tag=name, gc=False, namespace={"cat": name})
