from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import part_names, ranges
from perfhooks.trace.nesting.slices import inherited, nest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfhooks.trace.model import Column, Ints

_LABEL: Final = re.compile(ranges.NOT_OPERATORS)
_OPERATOR: Final = re.compile(rf"\w::|{ranges.BACKWARD_CLASS}|(?:{'|'.join(ranges.WRAPPERS)})$")
"""Names of operators, autograd nodes, and wrappers of models. Names such as ``aclnnMm`` are excluded, because labels
may have such names.
"""


def relabel(columns: Mapping[str, Column], names: Sequence[str]) -> None:
    """Correct the kind of labels that Ascend writes with the category of operators.

    Labels of the user are not inside operators, but contain operators.
    """
    kind, name = columns["kind"], columns["name"]
    rows = np.flatnonzero(kind == Kind.OP)
    has_label_name = np.array([_is_label(text) for text in names], np.bool_)[name[rows]]
    is_operator = (
        np.array([_OPERATOR.search(text) is not None for text in names], np.bool_)[name[rows]] & ~has_label_name
    )
    parent = nest(columns["thread"][rows], columns["start"][rows], columns["end"][rows]).parent
    is_in_operator = inherited(parent, np.where(is_operator, np.arange(len(rows)), -1)) >= 0
    kind[rows[has_label_name | (~is_in_operator & _contains(parent, is_operator))]] = Kind.ANNOTATION


def _is_label(name: str) -> bool:
    return any((_LABEL.match(name), part_names.of_label(name), part_names.of_automatic(name)))


def _contains(parent: Ints, inner: Column) -> Column:
    contains = np.zeros(len(parent), np.bool_)
    outer = parent[inner]
    while len(outer := np.unique(outer[outer >= 0])):
        outer = outer[~contains[outer]]
        contains[outer] = True
        outer = parent[outer]
    return contains
