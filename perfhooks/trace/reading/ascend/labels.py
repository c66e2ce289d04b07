"""Labels that torch_npu writes as operators."""

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
"""Names of operators that a program calls, of nodes of autograd, and of wrappers of models. The operators of torch_npu
have no such form: ``aclnnMm`` is named like a label."""


def relabel(columns: Mapping[str, Column], names: Sequence[str]) -> None:
    """Turn slices with the category of operators into labels.

    Their names tell labels of torch, of perfhooks and of parts of a step. Any other label of the user is outside of all
    operators and holds some.

    Args:
        columns: Of all slices, sorted as in a `Trace`. Kinds change.
        names: By number.
    """
    kind, name = columns["kind"], columns["name"]
    rows = np.flatnonzero(kind == Kind.OP)
    is_known = np.array([_is_label(text) for text in names], np.bool_)[name[rows]]
    is_operator = np.array([_OPERATOR.search(text) is not None for text in names], np.bool_)[name[rows]] & ~is_known
    parent = nest(columns["thread"][rows], columns["start"][rows], columns["end"][rows]).parent
    inside = inherited(parent, np.where(is_operator, np.arange(len(rows)), -1)) >= 0
    kind[rows[is_known | (~inside & _holding(parent, is_operator))]] = Kind.ANNOTATION


def _is_label(name: str) -> bool:
    return any((_LABEL.match(name), part_names.of_label(name), part_names.of_automatic(name)))


def _holding(parent: Ints, inner: Column) -> Column:
    """Return which entries hold one of some inner ones."""
    holds = np.zeros(len(parent), np.bool_)
    around = parent[inner]
    while len(around := np.unique(around[around >= 0])):
        around = around[~holds[around]]
        holds[around] = True
        around = parent[around]
    return holds
