"""One trace of all ranks of a window, side by side, for Perfetto and whatever else opens Chrome's format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis import ranks as ranks_of_run
from perfhooks.analysis.ranks.lanes import Lanes
from perfhooks.analysis.ranks.missing import named
from perfhooks.core.errors import OptionError, PerfhooksError, TraceError
from perfhooks.core.words import ms, size
from perfhooks.run import layout
from perfhooks.run.finished import FinishedRun
from perfhooks.run.layout import MANIFEST, MERGED
from perfhooks.run.publishing import OwnFolder, publish, shown
from perfhooks.run.reading import NotPlainError, check_plain
from perfhooks.trace.model import epoch
from perfhooks.trace.reading.events import decode_object
from perfhooks.trace.reading.packing import packed
from perfhooks.trace.writing.raw_events import RawEvents

if TYPE_CHECKING:
    import gzip
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

Event = dict[str, msgspec.Raw]

_PROCESSES: Final = 1000
"""Process numbers that each rank gets: rank 0 those from 1000 on. Perfetto takes 0 for the idle process."""
_LATEST: Final = 4.0e15
"""Microseconds; no event is later, and a number so large may have more digits than memory has room for."""
_PLAIN_TIME: Final = re.compile(rb"(\d{1,16})(?:\.(\d{1,3})0*)?")
_DIGITS: Final = 18
"""Of an id that still fits 64 bits when all ranks have one like it."""
_DECODE: Final = msgspec.json.Decoder(list[Event])
_ENCODE: Final = msgspec.json.Encoder()


@dataclass(frozen=True)
class Merged:
    """What became of a merge."""

    path: Path
    ranks: tuple[int, ...]
    """The ranks that are in it."""
    aligned: bool
    """Whether clocks were brought together; otherwise each rank's times are by the clock of its host."""
    error_ms: float | None
    """Half of the ends of collectives are this close to each other's middle, after that."""
    problems: tuple[str, ...] = ()
    """Ranks of which something is missing, and why."""

    def __str__(self) -> str:
        clocks = "times by the clock of each rank's host"
        if self.aligned and self.error_ms is not None:
            clocks = f"clocks brought together to {ms(self.error_ms)}"
        return f"{shown(self.path)} ({size(self.path.stat().st_size)}): {named(self.ranks)}, {clocks}"


def merge(
    target: Path,
    out: Path | None = None,
    *,
    ranks: Collection[int] | None = None,
    tell: Callable[[int, int], object] | None = None,
    follow_links: bool = False,
) -> Merged:
    """Write the traces of all ranks of a window into one, block by block: memory does not grow with their size.

    Every process of every rank gets a number and a name of its own (``rank 3``, ``rank 3 GPU 0``), sorted by rank; ids
    that join events are kept apart. Work that overlaps other work of its stream gets a lane of its own, because viewers
    drop slices that cross others. Times are brought to the clock of the first rank, as
    `perfhooks.analysis.ranks.clocks.align` finds it. Arguments stay as they are, so that numbers in them (``External
    id``, ``correlation``) are those of the rank's own trace: make tables of that.

    Args:
        target: The folder of a window, or of a run: then its latest window that has traces.
        out: The file to write, packed if its name ends in ``.gz``; None is `MERGED` in the window's folder.
        ranks: Which ranks; None takes all.
        tell: Is told how many ranks are done, and of how many.
        follow_links: Read traces that are links too. Only for folders that this process made: a link in a folder that
            somebody sent may lead to any file, or to none that ends.

    Raises:
        PerfhooksError: There is no trace to merge.
        OSError: The file cannot be written.
    """
    window = _window(target)
    found = {rank: path for rank, path in _traces(window).items() if ranks is None or rank in ranks}
    if not found:
        raise PerfhooksError(f"{window} has no trace of {'any rank' if ranks is None else f'ranks {sorted(ranks)}'}")
    clocks = ranks_of_run.clocks_of(window)
    path = window / MERGED if out is None else out
    home = OwnFolder(target, *() if window == target else (window.name,))
    problems = []
    with (
        home.publish(MERGED) if out is None else publish(path) as file,
        packed(file, compress=path.suffix == ".gz") as plain,
    ):
        writer = _Writer(plain, len(found))
        for place, (rank, trace) in enumerate(sorted(found.items())):
            if tell is not None:
                tell(place, len(found))
            try:
                check_plain(trace.resolve() if follow_links else trace)
                writer.add(rank, place, trace, clocks.offset_ms.get(rank, 0.0))
            except (TraceError, NotPlainError) as error:
                problems.append(f"rank {rank} is not whole: {error}")
        writer.close({"clock_offset_ms": dict(clocks.offset_ms), "clock_error_ms": clocks.error_ms})
    return Merged(path, tuple(sorted(found)), len(clocks.offset_ms) > 1, clocks.error_ms, tuple(problems))


def is_ours(folder: Path) -> bool:
    """Whether a folder is that of a run, or of a window of one: then `merge` knows its traces."""
    return (folder / MANIFEST).exists() or bool(layout.ranks_of_window(path.name for path in folder.iterdir()))


def _window(target: Path) -> Path:
    if not (target / MANIFEST).exists():
        return target
    found = [window for window in FinishedRun(target).recorded if not window.capture.explains]
    windows = [window.folder for window in found if _traces(window.folder)]
    if not windows:
        raise PerfhooksError(f"{target} has no window with traces")
    return windows[-1]


def _traces(window: Path) -> dict[int, Path]:
    if not window.is_dir():
        what = f"{window} is a file" if window.exists() else f"there is no folder {window}"
        raise PerfhooksError(f"{what}: merge takes a run, a window of one, or a folder of traces")
    names = [path.name for path in window.iterdir()]
    return {rank: window / name for kind in layout.traces for rank, name in kind.ranks(names).items()}


def rank_set(text: str) -> set[int]:
    """Ranks as a person writes them: ``0,4-7``.

    Raises:
        OptionError: They are not written so.
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True):
            raise OptionError(f"ranks must be numbers and ranges like 0,4-7; got {text!r}")
        found.update(range(int(first), int(last or first) + 1))
    return found


class _Writer:
    """Writes the ranks one after the other."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, count: int) -> None:
        self._file = file
        self._count = count
        self._base: int | None = None
        self._separator = b"\n"

    def add(self, rank: int, place: int, path: Path, offset_ms: float) -> None:
        """Write one rank's events, and then what its processes and threads are called."""
        source = RawEvents(path, _DECODE)
        processes, lanes = _Processes(rank, place), Lanes()
        try:
            for events in source.lists():
                if self._base is None:
                    self._begin(source.metadata)
                shift = epoch(source.metadata) - (self._base or 0) + round(offset_ms * 1e6)
                kept = [event for event in events if not processes.names(event)]
                for event in kept:
                    lanes.move(event)
                    self._move(event, place, processes, shift)
                self._write(kept)
        finally:
            self._write(processes.called(lanes))

    def _begin(self, metadata: Mapping[str, Any]) -> None:
        self._base = epoch(metadata)
        job = metadata.get("distributedInfo")
        head = {
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "deviceProperties": metadata.get("deviceProperties", []),
            "distributedInfo": {key: job[key] for key in ("backend", "world_size") if key in job}
            if isinstance(job, dict)
            else {},
            "baseTimeNanoseconds": self._base,
        }
        self._file.write(_ENCODE.encode(head)[:-1] + b',\n"traceEvents": [')

    def _move(self, event: Event, place: int, processes: _Processes, shift: int) -> None:
        if "pid" in event:
            event["pid"] = processes.number(bytes(event["pid"]))
        if "ts" in event and (shift or bytes(event["ts"]).startswith(b'"')):  # viewers expect numbers
            event["ts"] = msgspec.Raw(_later(bytes(event["ts"]), shift))
        if "id" in event:
            event["id"] = msgspec.Raw(_apart(bytes(event["id"]), place, self._count))

    def _write(self, events: list[Event]) -> None:
        for event in events:
            self._file.write(self._separator + _ENCODE.encode(event))
            self._separator = b",\n"

    def close(self, facts: Mapping[str, Any]) -> None:
        """Write what comes after the events."""
        if self._base is None:
            self._begin({})
        self._file.write(b'\n],\n"perfhooks": ' + _ENCODE.encode(facts) + b',\n"traceName": "merged"\n}\n')


class _Processes:
    """The processes of one rank's trace: itself, its devices, and what else Kineto lists as one."""

    def __init__(self, rank: int, place: int) -> None:
        self._rank = rank
        self._first = (place + 1) * _PROCESSES
        self._numbers: dict[bytes, int] = {}
        self._raw: dict[bytes, msgspec.Raw] = {}
        self._told: dict[bytes, dict[str, Any]] = {}
        self._threads: dict[tuple[bytes, bytes, bytes], Event] = {}
        self._time = msgspec.Raw(b"0")

    def number(self, pid: bytes) -> msgspec.Raw:
        """The number of a process in the merged trace, as JSON."""
        found = self._raw.get(pid)
        if found is None:
            number = self._numbers[pid] = self._first + len(self._numbers)
            found = self._raw[pid] = msgspec.Raw(b"%d" % number)
        return found

    def names(self, event: Event) -> bool:
        """Whether an event only names a process or a thread; it is kept for later, as only some are used."""
        if "pid" not in event or bytes(event.get("ph", b"")) != b'"M"':
            return False
        self._time = event.get("ts", self._time)
        kind, pid = bytes(event.get("name", b'""')), bytes(event["pid"])
        if kind.startswith(b'"thread_'):
            self._threads[kind, pid, bytes(event.get("tid", b""))] = event
        else:
            self._told.setdefault(pid, {}).update(decode_object(bytes(event.get("args", b"{}"))) or {})
        return True

    def called(self, lanes: Lanes) -> list[Event]:
        """The events that name all processes and threads in which anything happened."""
        found = []
        ordered = sorted(self._numbers, key=lambda pid: (not pid.isdigit(), self._sort_index(pid)))
        for index, pid in enumerate(ordered):
            told = {"name": self._name(pid), "labels": self._label(pid), "sort_index": self._first + index}
            for key, value in told.items():
                if value != "":
                    named = {"ph": "M", "name": f"process_{key}", "pid": self._numbers[pid], "tid": 0}
                    found.append(_raw(named | {"args": {key: value}}) | {"ts": self._time})
        for (_, pid, _), event in self._threads.items():
            if pid in self._numbers:
                found.append(event | {"pid": self._raw[pid]})
        for (pid, tid), number, lane in lanes.added():
            args = {"name": f"stream {int(tid)} ({number + 1})"}
            called = _raw({"ph": "M", "name": "thread_name", "tid": lane, "args": args})
            found.append(called | {"pid": self._raw[pid], "ts": self._time})
        return found

    def _sort_index(self, pid: bytes) -> float:
        index = self._told.get(pid, {}).get("sort_index")
        return float(index) if isinstance(index, int) else 0.0

    def _name(self, pid: bytes) -> str:
        """``rank 3`` for the process itself, ``rank 3 GPU 0`` for a device, ``rank 3 Spans`` for what is neither.

        Processes with one label are called by their names, as ``rank 3 CANN``.
        """
        told = self._told.get(pid, {})
        label = str(told.get("labels", ""))
        if sum(label == each.get("labels") for each in self._told.values()) > 1 and told.get("name"):
            return f"rank {self._rank} {told['name']}"
        other = label if pid.lstrip(b"-").isdigit() else pid.decode("utf-8", "replace").strip('"') or "marks"
        return f"rank {self._rank}" + (f" {other}" if other not in ("", "CPU") else "")

    def _label(self, pid: bytes) -> str:
        name = str(self._told.get(pid, {}).get("name", ""))
        return f"{name} {pid.decode('utf-8', 'replace')}".strip() if pid.isdigit() else ""


def _raw(event: Mapping[str, Any]) -> Event:
    return {key: msgspec.Raw(_ENCODE.encode(value)) for key, value in event.items()}


def _later(time: bytes, shift: int) -> bytes:
    """Microseconds as JSON, so many nanoseconds later, exact to the last digit."""
    match = _PLAIN_TIME.fullmatch(time)
    if match is None:
        micros = _number(time)
        if micros is None:
            return time
        nanos = round(micros * 1000)
    else:
        nanos = int(match[1]) * 1000 + int((match[2] or b"").ljust(3, b"0"))
    whole, rest = divmod(abs(nanos + shift), 1000)
    return b"%s%d.%03d" % (b"-" if nanos + shift < 0 else b"", whole, rest)


def _number(time: bytes) -> Decimal | None:
    """A time in whatever way JSON can spell it; None for what is no time."""
    try:
        micros = Decimal(time.decode().strip('"'))
        return micros if abs(micros) < _LATEST else None
    except (ArithmeticError, ValueError):
        return None


def _apart(number: bytes, place: int, count: int) -> bytes:
    """An id that no other rank has."""
    if number.isdigit() and len(number) < _DIGITS:
        return b"%d" % (int(number) * count + place)
    return _ENCODE.encode(f"{place}.{number.decode('utf-8', 'replace')}")
