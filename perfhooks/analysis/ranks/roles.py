"""Which ranks do the same work, so that they can be compared: those of one stage of a pipeline, not those of two.

Ranks have one role if they take part in the same kinds of collectives and messages, about equally often in a step. That
needs no names: replicas, shards of a tensor and experts all do; the stages of a pipeline send and receive in another
order, and more often in its middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.analysis.ranks.collectives import BETWEEN_TWO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    Counts: TypeAlias = dict[tuple[object, ...], int]

_ALIKE: Final = 1.25
"""Counts that differ by no more than this factor are alike: some rows of a step may not have been recorded."""


def of_ranks(ranks: Iterable[int], table: pl.DataFrame) -> dict[int, int]:
    """The role of each rank: a number, from 0 on in the order of the ranks.

    Args:
        ranks: Those that are compared.
        table: ``collectives.csv`` of all of them, one below the other.
    """
    counts = _counts(table)
    found: dict[int, int] = {}
    firsts: list[Counts] = []
    for rank in sorted(ranks):
        mine = counts.get(rank, {})
        role = next((role for role, first in enumerate(firsts) if _are_alike(first, mine)), len(firsts))
        if role == len(firsts):
            firsts.append(mine)
        found[rank] = role
    return found


def _counts(table: pl.DataFrame) -> dict[int, Counts]:
    """Of each rank: of each kind the most of a step, since first and last ones may be cut; and what it begins with."""
    known = table.filter(pl.col("operation").is_not_null())
    kind = ("operation", "group_size")
    most = known.group_by("rank", "step", *kind).len().group_by("rank", *kind).agg(pl.col("len").max())
    messages = known.filter(pl.col("operation").is_in(BETWEEN_TWO)).sort("start_ns")
    first = messages.group_by("rank", "step").agg(pl.col("operation").first())
    begins = first.group_by("rank").agg(pl.col("operation").mode().min())
    found: dict[int, Counts] = {}
    for rank, *key, count in [*most.iter_rows(), *((*row, "first", 1) for row in begins.iter_rows())]:
        found.setdefault(rank, {})[tuple(key)] = count
    return found


def _are_alike(a: Mapping[tuple[object, ...], int], b: Mapping[tuple[object, ...], int]) -> bool:
    pairs = [sorted((a.get(kind, 0), b.get(kind, 0))) for kind in {*a, *b}]
    return all(high <= low * _ALIKE for low, high in pairs)
