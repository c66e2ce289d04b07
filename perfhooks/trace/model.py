from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from perfhooks.core import words
from perfhooks.trace.bounds import MAX_ID, MAX_NUMBER
from perfhooks.trace.kinds import DEVICE_WORK, Kind, Lane
from perfhooks.trace.reading.events import decode_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Ints: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"
Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"
Column: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"


_OTHER_DEVICES: Final = ("xpu", "mtia", "hpu", "privateuse1")
"""Category prefixes of devices outside of ``torch.cuda``."""


class Thread(NamedTuple):
    lane: Lane
    pid: int | str
    tid: int | str
    name: str = ""


@dataclass(frozen=True)
class Doubt:
    name: str
    """Machine-readable name of the problem: ``cut-off``, ``dropped-events``, ..."""
    count: int
    text: str


class Instants(NamedTuple):
    thread: Ints
    time: Ints
    address: Ints
    size: Ints
    """Allocated bytes; negative for a release."""
    allocated: Ints
    """Allocator's total bytes after the event, or -1."""
    reserved: Ints
    device_type: Ints
    """Number in c10's DeviceType; 0 is the host."""
    device: Ints


class Flows(NamedTuple):
    """Links from forward operators to autograd nodes, with the thread and start time of both slices."""

    thread: Ints
    time: Ints
    backward_thread: Ints
    backward_time: Ints


class Samples(NamedTuple):
    """Sampled numbers, for example the power of a device, sorted by series and time."""

    names: list[str]
    device: Ints
    series: Ints
    time: Ints
    value: Floats


@dataclass(eq=False, repr=False, kw_only=True)
class Trace:
    """A Kineto trace as columns; times are integer nanoseconds of the trace's own clock.

    All columns have one entry per slice (complete event). Slices are sorted by thread, start, end (longest first) and
    position in the file, so a slice precedes the slices that it contains.
    """

    path: str
    metadata: dict[str, Any]
    """Keys of the file other than ``traceEvents``."""
    names: Sequence[str]
    categories: Sequence[str]
    threads: Sequence[Thread]
    texts: Sequence[bytes]
    """Distinct arguments that are lists or strings, as JSON."""
    kind: Column
    category: Column
    name: Column
    thread: Column
    start: Ints
    end: Ints
    order: Column
    """Position of each slice among all events of the file."""
    sparse_columns: dict[str, tuple[Ints, Column]]
    instants: Instants
    flows: Flows
    counters: Samples
    doubts: list[Doubt]
    overflowed: Ints = field(default_factory=lambda: np.empty(0, np.int64), init=False)
    """Rows of device work whose recorded end was too late and was corrected."""
    is_npu: bool = False
    communication: str | None = field(default=None, init=False)
    """Parts of kernel names that the user declared as communication."""
    cache: dict[object, Any] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        return f"<Trace {self.path}: {words.count(len(self), 'slice')} on {words.count(len(self.threads), 'thread')}>"

    @cached_property
    def correlation(self) -> Ints:
        """Number shared by a launch and its device work, or -1."""
        return self.argument("correlation")

    @cached_property
    def external(self) -> Ints:
        """Number shared by an operator and its launches, or -1."""
        return self.argument("external")

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.sparse_columns)

    def argument(self, name: str) -> Column:
        """Return the values of an argument for all slices. Missing integers and indices are -1, missing floats NaN."""
        rows, values = self.sparse(name)
        absent = np.nan if values.dtype.kind == "f" else -1
        full = np.full(len(self), absent, dtype=values.dtype)
        full[rows] = values
        return full

    def sparse(self, name: str) -> tuple[Ints, Column]:
        """Return the ascending rows that have an argument, and the values of this argument."""
        empty = np.empty(0, np.int64)
        return self.sparse_columns.get(name, (empty, empty))

    def text(self, index: int) -> Any:
        return decode_value(self.texts[index]) if index >= 0 else None

    def name_of(self, row: int) -> str | None:
        return self.names[self.name[row]] if row >= 0 else None

    def rows(self, *kinds: Kind) -> Ints:
        is_selected = np.zeros(len(self), np.bool_)
        for kind in kinds:
            is_selected |= self.kind == int(kind)
        return np.flatnonzero(is_selected)

    def matching(self, pattern: re.Pattern[str], rows: Ints) -> Flags:
        name_numbers = self.name[rows]
        numbers = np.flatnonzero(np.bincount(name_numbers, minlength=1)) if len(name_numbers) else name_numbers
        is_match = np.zeros(len(self.names) + 1, np.bool_)
        is_match[numbers] = [pattern.search(self.names[number]) is not None for number in numbers.tolist()]
        return is_match[name_numbers]

    def chosen(self, is_wanted: Callable[[str], object], *kinds: Kind) -> Ints:
        numbers = [number for number in self.names_of(*kinds) if is_wanted(self.names[number])]
        if not numbers:
            return np.empty(0, np.int64)
        rows = self.rows(*kinds)
        match = np.zeros(len(self.names), np.bool_)
        match[numbers] = True
        return rows[np.flatnonzero(match[self.name[rows]])]

    def searched(self, pattern: str, *kinds: Kind) -> Ints:
        if not self.names_of(*kinds):
            return np.empty(0, np.int64)
        return self.chosen(re.compile(pattern).search, *kinds)

    def names_of(self, *kinds: Kind) -> list[int]:
        is_used = np.zeros(len(self.names), np.bool_)
        for kind in kinds:
            is_used |= self._has_name[kind]
        numbers: list[int] = np.flatnonzero(is_used).tolist()
        return numbers

    @cached_property
    def _has_name(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        has_name = np.zeros((len(Kind), len(self.names)), np.bool_)
        has_name[self.kind, self.name] = True
        return has_name

    def named(self, *kinds: Kind, prefix: str = "", names: Sequence[str] = ()) -> Ints:
        return self.chosen(lambda name: name in names or bool(prefix and name.startswith(prefix)), *kinds)

    @cached_property
    def rank(self) -> int | None:
        info = self.metadata.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if type(rank) is int and 0 <= rank < MAX_ID else None

    @cached_property
    def device_rows(self) -> Ints:
        return self.rows(*DEVICE_WORK)

    @cached_property
    def calls(self) -> Ints:
        """Row of the runtime call that launched each of `device_rows` (with equal correlation), or -1."""
        return by_number(self.correlation, self.rows(Kind.RUNTIME)).of(self.correlation[self.device_rows])

    @cached_property
    def launches(self) -> Ints:
        """Host slice that launched each of `device_rows`, or -1: an operator (Ascend), otherwise the runtime call."""
        linked = self.argument("launch")[self.device_rows]
        return np.where(linked >= 0, linked, self.calls)

    @cached_property
    def launch_spans(self) -> tuple[Ints, Ints]:
        """Start and end of the launch of each of `device_rows`, in ns; if not recorded, of the slice in `launches`."""
        edges = []
        for name, column in (("launch_begin", self.start), ("launch_end", self.end)):
            rows, values = self.sparse(name)
            edge = column[self.launches]
            edge[np.searchsorted(self.device_rows, rows)] = values
            edges.append(edge)
        return edges[0], edges[1]

    @property
    def has_cuda(self) -> bool:
        """Whether the device supports CUDA graphs (NVIDIA or AMD)."""
        return not self.is_npu and not any(category.startswith(_OTHER_DEVICES) for category in self.categories)

    @cached_property
    def is_device_traced(self) -> bool:
        return len(self.device_rows) > 0


class Numbered(NamedTuple):
    number: Ints
    row: Ints

    def of(self, numbers: Ints) -> Ints:
        if not len(self.number):
            return np.full(len(numbers), -1, np.int64)
        index = np.minimum(np.searchsorted(self.number, numbers), len(self.number) - 1)
        return np.where(self.number[index] == numbers, self.row[index], -1)


def by_number(numbers: Ints, rows: Ints) -> Numbered:
    """Sort slices by a number, for example their correlation. Slices without a positive number are dropped."""
    rows = rows[numbers[rows] > 0]
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    return Numbered(numbers[rows], rows)


def epoch(metadata: Mapping[str, Any]) -> int:
    """Return the time in ns since 1970 to which times of a trace are relative; 0 before torch 2.4."""
    base = metadata.get("baseTimeNanoseconds")
    return base if type(base) is int and abs(base) < MAX_NUMBER else 0
