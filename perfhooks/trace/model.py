"""A trace in memory: columns over its slices, sorted by thread and time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from perfhooks.trace.kinds import DEVICE_WORK, Kind, Lane
from perfhooks.trace.reading.events import decode_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Ints: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"
Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"
Column: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"


_MOST_RANKS: Final = 2**31
"""Ranks: no job has more, and the columns that count ranks have no room for more."""


_OTHER_DEVICES: Final = ("xpu", "mtia", "hpu", "privateuse1")
"""Beginnings of categories of devices that are none of ``torch.cuda``."""


class Thread(NamedTuple):
    """Where slices lie: a thread of the host, or a stream of a device."""

    lane: Lane
    pid: int | str
    tid: int | str
    name: str = ""


@dataclass(frozen=True)
class Doubt:
    """Something that makes the trace itself doubtful."""

    name: str
    """What it is, as one word for programs: ``cut-off``, ``dropped-events``, ..."""
    count: int
    text: str
    """What it is, for people."""


class Instants(NamedTuple):
    """The ``[memory]`` events, by time: one row for every allocation and release that was recorded."""

    thread: Ints
    time: Ints
    """Nanoseconds."""
    address: Ints
    size: Ints
    """Bytes; negative for a release."""
    allocated: Ints
    """Bytes that the device's allocator has handed out after this, or -1."""
    reserved: Ints
    device_type: Ints
    """0 is the host; c10's DeviceType."""
    device: Ints
    """-1 for the host."""


class Flows(NamedTuple):
    """The links from forward operators to the nodes of autograd they made; ends lie on the start of a slice."""

    thread: Ints
    time: Ints
    backward_thread: Ints
    backward_time: Ints


class Samples(NamedTuple):
    """Numbers that somebody read from time to time, as a device's power, by series and time."""

    names: list[str]
    """Of each series."""
    device: Ints
    """Of each series, or -1."""
    series: Ints
    """Of each sample."""
    time: Ints
    """Nanoseconds."""
    value: Floats


@dataclass(eq=False, repr=False, kw_only=True)
class Trace:
    """A Kineto trace as columns; times are integer nanoseconds on the trace's own clock.

    All columns have one entry per slice (complete event), sorted by thread, start, end (longest first) and place
    in the file, so that a slice comes before what it contains.
    """

    path: str
    metadata: dict[str, Any]
    """The keys of the file beside ``traceEvents``."""
    names: Sequence[str]
    categories: Sequence[str]
    threads: Sequence[Thread]
    texts: Sequence[bytes]
    """Arguments that are lists or strings, as JSON; each once."""
    kind: Column
    """A `Kind` for each slice."""
    category: Column
    """An index into `categories`."""
    name: Column
    """An index into `names`."""
    thread: Column
    """An index into `threads`."""
    start: Ints
    end: Ints
    order: Column
    """The slice's place among all events of the file."""
    given: dict[str, tuple[Ints, Column]]
    """The arguments of slices by name, see `sparse`."""
    instants: Instants
    flows: Flows
    counters: Samples
    doubts: list[Doubt]
    overflowed: Ints = field(default_factory=lambda: np.empty(0, np.int64), init=False)
    """Work of devices whose recorded length is wrong, ascending; it ends where the next one of its stream begins."""
    is_npu: bool = False
    """Whether torch_npu recorded it, on an Ascend NPU."""
    communication: str | None = field(default=None, init=False)
    """Parts of names of kernels that communicate, beside those of `perfhooks.trace.names.communication`."""
    known: dict[object, Any] = field(default_factory=dict, init=False)
    """What has been computed of it; see `perfhooks.trace.once`."""

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        return f"<Trace {self.path}: {len(self)} slices on {len(self.threads)} threads>"

    @cached_property
    def correlation(self) -> Ints:
        """The number that a launch shares with its work on the device, or -1."""
        return self.argument("correlation")

    @cached_property
    def external(self) -> Ints:
        """The number that an operator shares with what it launches, or -1; absent where the file's is no such thing."""
        return self.argument("external")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments that any slice has; what `argument` takes."""
        return tuple(self.given)

    def argument(self, name: str) -> Column:
        """One argument of every slice: an integer (-1 where absent), a float (NaN) or an index into `texts` (-1)."""
        rows, values = self.sparse(name)
        absent = np.nan if values.dtype.kind == "f" else -1
        full = np.full(len(self), absent, dtype=values.dtype)
        full[rows] = values
        return full

    def sparse(self, name: str) -> tuple[Ints, Column]:
        """The rows that have an argument, ascending, and its values there."""
        empty = np.empty(0, np.int64)
        return self.given.get(name, (empty, empty))

    def text(self, index: int) -> Any:
        """An entry of `texts`, decoded; None for -1."""
        return decode_value(self.texts[index]) if index >= 0 else None

    def name_of(self, row: int) -> str | None:
        """The name of a slice; None for -1."""
        return self.names[self.name[row]] if row >= 0 else None

    def rows(self, *kinds: Kind) -> Ints:
        """The slices of these kinds, ascending."""
        chosen = np.zeros(len(self), np.bool_)
        for kind in kinds:
            chosen |= self.kind == int(kind)  # bytes are compared with bytes only if it is a plain number
        return np.flatnonzero(chosen)

    def matching(self, pattern: re.Pattern[str], rows: Ints) -> Flags:
        """In the names of which of these slices a regular expression is found; each name is asked once."""
        asked = self.name[rows]
        numbers = np.flatnonzero(np.bincount(asked, minlength=1)) if len(asked) else asked
        found = np.zeros(len(self.names) + 1, np.bool_)
        found[numbers] = [pattern.search(self.names[number]) is not None for number in numbers.tolist()]
        return found[asked]

    def chosen(self, wanted: Callable[[str], object], *kinds: Kind) -> Ints:
        """The slices of these kinds with a name that is wanted; each of their names is asked once."""
        numbers = [number for number in self.names_of(*kinds) if wanted(self.names[number])]
        if not numbers:  # as of most that is looked for
            return np.empty(0, np.int64)
        rows = self.rows(*kinds)
        match = np.zeros(len(self.names), np.bool_)
        match[numbers] = True
        return rows[np.flatnonzero(match[self.name[rows]])]

    def searched(self, pattern: str, *kinds: Kind) -> Ints:
        """The slices of these kinds in whose name a regular expression is found."""
        if not self.names_of(*kinds):  # then it need not be compiled, which takes a millisecond
            return np.empty(0, np.int64)
        return self.chosen(re.compile(pattern).search, *kinds)

    def names_of(self, *kinds: Kind) -> list[int]:
        """The numbers of the names that slices of these kinds have, ascending."""
        found = np.zeros(len(self.names), np.bool_)
        for kind in kinds:
            found |= self._has_name[kind]
        numbers: list[int] = np.flatnonzero(found).tolist()
        return numbers

    @cached_property
    def _has_name(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """For each kind and name whether any slice has both."""
        found = np.zeros((len(Kind), len(self.names)), np.bool_)
        found[self.kind, self.name] = True
        return found

    def named(self, *kinds: Kind, prefix: str = "", names: Sequence[str] = ()) -> Ints:
        """The slices of these kinds whose name is one of ``names`` or begins with ``prefix``."""
        return self.chosen(lambda name: name in names or bool(prefix and name.startswith(prefix)), *kinds)

    @cached_property
    def rank(self) -> int | None:
        """The rank of the process in its job, if the trace says so."""
        info = self.metadata.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if type(rank) is int and 0 <= rank < _MOST_RANKS else None

    @cached_property
    def device_rows(self) -> Ints:
        """The slices that are work of a device: kernels, copies and memsets."""
        return self.rows(*DEVICE_WORK)

    @cached_property
    def calls(self) -> Ints:
        """For each of `device_rows`, the slice of the runtime call that has its correlation, or -1."""
        return by_number(self.correlation, self.rows(Kind.RUNTIME)).of(self.correlation[self.device_rows])

    @cached_property
    def launches(self) -> Ints:
        """For each of `device_rows`, the slice of the host that launched it, or -1.

        It is the operator that the recorder links to the work, if it does so, else the call.
        """
        linked = self.argument("launch")[self.device_rows]
        return np.where(linked >= 0, linked, self.calls)

    @cached_property
    def launch_spans(self) -> tuple[Ints, Ints]:
        """For each of `device_rows`, when its launch began and ended, in nanoseconds: as recorded, else its slice."""
        edges = []
        for name, column in (("launch_begin", self.start), ("launch_end", self.end)):
            rows, values = self.sparse(name)
            edge = column[self.launches]
            edge[np.searchsorted(self.device_rows, rows)] = values
            edges.append(edge)
        return edges[0], edges[1]

    @property
    def has_cuda(self) -> bool:
        """Whether its device is one of ``torch.cuda`` (NVIDIA, AMD), which has CUDA graphs."""
        return not self.is_npu and not any(category.startswith(_OTHER_DEVICES) for category in self.categories)

    @cached_property
    def is_device_traced(self) -> bool:
        """Whether any device was seen working."""
        return len(self.device_rows) > 0


class Numbered(NamedTuple):
    """Slices by a number that they bear."""

    number: Ints
    """Ascending."""
    row: Ints
    """The slice of each."""

    def of(self, wanted: Ints) -> Ints:
        """The first slice that bears each number, or -1."""
        if not len(self.number):
            return np.full(len(wanted), -1, np.int64)
        place = np.minimum(np.searchsorted(self.number, wanted), len(self.number) - 1)
        return np.where(self.number[place] == wanted, self.row[place], -1)


def by_number(numbers: Ints, rows: Ints) -> Numbered:
    """Put some slices in the order of the number that each bears; those that bear none are left out.

    Args:
        numbers: that of every slice of the trace; what is not above 0 is none.
        rows: some of them.
    """
    rows = rows[numbers[rows] > 0]
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    return Numbered(numbers[rows], rows)


_FARTHEST: Final = 2**62
"""The year 2116: a base beyond it is damaged, and would leave no room for what is counted from it."""


def epoch(metadata: Mapping[str, Any]) -> int:
    """What a trace counts its nanoseconds from, since 1970: since torch 2.4 they are small numbers from a base."""
    base = metadata.get("baseTimeNanoseconds")
    return base if type(base) is int and abs(base) < _FARTHEST else 0
