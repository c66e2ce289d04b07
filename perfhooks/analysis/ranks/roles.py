"""Group the ranks that do the same work and can be compared.

Comparable ranks take part in the same kinds of collectives and messages, about equally often per step. In a pipeline,
middle stages send and receive more often than the first and last stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from perfhooks.analysis.ranks.collectives import BETWEEN_TWO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    Counts: TypeAlias = dict[tuple[object, ...], int]


def of_ranks(ranks: Iterable[int], table: pl.DataFrame) -> dict[int, int]:
    counts = _count_kinds(table)
    roles: dict[int, int] = {}
    firsts: list[Counts] = []
    for rank in sorted(ranks):
        own_counts = counts.get(rank, {})
        role = next((role for role, first in enumerate(firsts) if _are_alike(first, own_counts)), len(firsts))
        if role == len(firsts):
            firsts.append(own_counts)
        roles[rank] = role
    return roles


def _count_kinds(table: pl.DataFrame) -> dict[int, Counts]:
    operations = table.filter(pl.col("operation").is_not_null())
    kind = ("operation", "group_size")
    max_counts = operations.group_by("rank", "step", *kind).len().group_by("rank", *kind).agg(pl.col("len").max())
    messages = operations.filter(pl.col("operation").is_in(BETWEEN_TWO)).sort("start_ns")
    first = messages.group_by("rank", "step").agg(pl.col("operation").first())
    begins = first.group_by("rank").agg(pl.col("operation").mode().min())
    counts: dict[int, Counts] = {}
    for rank, *key, count in [*max_counts.iter_rows(), *((*row, "first", 1) for row in begins.iter_rows())]:
        counts.setdefault(rank, {})[tuple(key)] = count
    return counts


def _are_alike(a: Mapping[tuple[object, ...], int], b: Mapping[tuple[object, ...], int]) -> bool:
    pairs = [sorted((a.get(kind, 0), b.get(kind, 0))) for kind in {*a, *b}]
    return all(high <= low * 1.25 for low, high in pairs)
