from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis import ranks as ranks_of_run
from perfhooks.analysis.ranks.lanes import Lanes
from perfhooks.analysis.ranks.missing import name_ranks
from perfhooks.core.errors import OptionError, PerfhooksError, TraceError
from perfhooks.core.words import ms, size
from perfhooks.run import layout
from perfhooks.run.finished import FinishedRun
from perfhooks.run.layout import MANIFEST, MERGED
from perfhooks.run.publishing import OwnFolder, publish, shown
from perfhooks.run.reading import NotPlainError, check_plain
from perfhooks.trace.bounds import MAX_DIGITS, MAX_TIME_US
from perfhooks.trace.model import epoch
from perfhooks.trace.reading.events import decode_object
from perfhooks.trace.reading.packing import packed
from perfhooks.trace.writing.raw_events import RawEvents

if TYPE_CHECKING:
    import gzip
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

Event = dict[str, msgspec.Raw]

_PLAIN_TIME: Final = re.compile(rb"(\d{1,16})(?:\.(\d{1,3})0*)?")
_NAMING: Final = {
    b'"process_name"': "name",
    b'"process_labels"': "labels",
    b'"process_sort_index"': "sort_index",
    b'"thread_name"': "name",
    b'"thread_sort_index"': "sort_index",
}
"""Metadata events that describe a process or thread, each with the key of the argument that contains the description.
"""
_DECODE: Final = msgspec.json.Decoder(list[Event])
_ENCODE: Final = msgspec.json.Encoder()


@dataclass(frozen=True)
class Merged:
    path: Path
    ranks: tuple[int, ...]
    aligned: bool
    """Whether the clocks were aligned by collectives. If not, each time is from the clock of the rank's host."""
    error_ms: float | None
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        clocks = "times on the clock of each rank's host"
        if self.aligned and self.error_ms is not None:
            clocks = f"clocks aligned to {ms(self.error_ms)}"
        return f"{shown(self.path)} ({size(self.path.stat().st_size)}): {name_ranks(self.ranks)}, {clocks}"


def merge(
    target: Path,
    out: Path | None = None,
    *,
    ranks: Collection[int] | None = None,
    tell: Callable[[int, int], object] | None = None,
    follow_links: bool = False,
) -> Merged:
    """Merge the traces of all ranks of a window into one Chrome trace, block by block, in constant memory.

    Ids that link events are made unique per rank. Overlapping work of a stream gets separate lanes. Times are converted
    to the clock of the first rank. Ids in the arguments of events are not changed.

    Use ``follow_links`` only for folders that this process wrote: a link in a received folder may point to any file.
    """
    window = _find_window(target)
    paths = {rank: path for rank, path in _find_traces(window).items() if ranks is None or rank in ranks}
    if not paths:
        raise PerfhooksError(f"{window} has no trace of {'any rank' if ranks is None else f'ranks {sorted(ranks)}'}")
    clocks = ranks_of_run.clocks_of(window)
    path = window / MERGED if out is None else out
    home = OwnFolder(target, *() if window == target else (window.name,))
    problems = []
    with (
        home.publish(MERGED) if out is None else publish(path) as file,
        packed(file, compress=path.suffix == ".gz") as plain,
    ):
        writer = _Writer(plain, len(paths))
        for index, (rank, trace) in enumerate(sorted(paths.items())):
            if tell is not None:
                tell(index, len(paths))
            try:
                check_plain(trace.resolve() if follow_links else trace)
                writer.add(rank, index, trace, clocks.offset_ms.get(rank, 0.0))
            except (TraceError, NotPlainError) as error:
                problems.append(f"rank {rank} is incomplete: {error}")
        writer.close({"clock_offset_ms": dict(clocks.offset_ms), "clock_error_ms": clocks.error_ms})
    return Merged(path, tuple(sorted(paths)), len(clocks.offset_ms) > 1, clocks.error_ms, tuple(problems))


def is_ours(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or bool(layout.ranks_of_window(path.name for path in folder.iterdir()))


def _find_window(target: Path) -> Path:
    if not (target / MANIFEST).exists():
        return target
    recorded = [window for window in FinishedRun(target).recorded if not window.capture.explains]
    windows = [window.folder for window in recorded if _find_traces(window.folder)]
    if not windows:
        raise PerfhooksError(f"{target} has no window with traces")
    return windows[-1]


def _find_traces(window: Path) -> dict[int, Path]:
    if not window.is_dir():
        what = f"{window} is a file" if window.exists() else f"there is no folder {window}"
        raise PerfhooksError(f"{what}: pass a run, one of its windows, or a folder of traces")
    names = [path.name for path in window.iterdir()]
    return {rank: window / name for kind in layout.traces for rank, name in kind.ranks(names).items()}


def rank_set(text: str) -> set[int]:
    """Parse for example ``0,4-7``."""
    result: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True):
            raise OptionError(f"ranks must be numbers and ranges like 0,4-7; got {text!r}")
        result.update(range(int(first), int(last or first) + 1))
    return result


class _Writer:
    def __init__(self, file: IO[bytes] | gzip.GzipFile, count: int) -> None:
        self._file = file
        self._count = count
        self._base: int | None = None
        self._separator = b"\n"

    def add(self, rank: int, index: int, path: Path, offset_ms: float) -> None:
        source = RawEvents(path, _DECODE)
        processes, lanes = _Processes(rank, index), Lanes()
        try:
            for events in source.lists():
                if self._base is None:
                    self._begin(source.metadata)
                shift = epoch(source.metadata) - (self._base or 0) + round(offset_ms * 1e6)
                remaining = [event for event in events if not processes.is_name(event)]
                for event in remaining:
                    lanes.move(event)
                    self._move(event, index, processes, shift)
                self._write(remaining)
        finally:
            self._write(processes.name_events(lanes))

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

    def _move(self, event: Event, index: int, processes: _Processes, shift: int) -> None:
        if "pid" in event:
            event["pid"] = processes.number(bytes(event["pid"]))
        if "ts" in event and (shift or bytes(event["ts"]).startswith(b'"')):
            event["ts"] = msgspec.Raw(_shift_time(bytes(event["ts"]), shift))
        if "id" in event:
            event["id"] = msgspec.Raw(_make_unique(bytes(event["id"]), index, self._count))

    def _write(self, events: list[Event]) -> None:
        for event in events:
            self._file.write(self._separator + _ENCODE.encode(event))
            self._separator = b",\n"

    def close(self, facts: Mapping[str, Any]) -> None:
        if self._base is None:
            self._begin({})
        self._file.write(b'\n],\n"perfhooks": ' + _ENCODE.encode(facts) + b',\n"traceName": "merged"\n}\n')


class _Processes:
    def __init__(self, rank: int, index: int) -> None:
        self._rank = rank
        self._first = (index + 1) * 1000  # Perfetto reserves process id 0 for the idle process
        self._numbers: dict[bytes, int] = {}
        self._raw: dict[bytes, msgspec.Raw] = {}
        self._facts: dict[bytes, dict[str, Any]] = {}
        self._threads: dict[tuple[bytes, bytes, bytes], Event] = {}
        self._time = msgspec.Raw(b"0")

    def number(self, pid: bytes) -> msgspec.Raw:
        raw = self._raw.get(pid)
        if raw is None:
            number = self._numbers[pid] = self._first + len(self._numbers)
            raw = self._raw[pid] = msgspec.Raw(b"%d" % number)
        return raw

    def is_name(self, event: Event) -> bool:
        kind = bytes(event.get("name", b'""'))
        if "pid" not in event or bytes(event.get("ph", b"")) != b'"M"' or kind not in _NAMING:
            return False
        self._time, pid = event.get("ts", self._time), bytes(event["pid"])
        if kind.startswith(b'"thread_'):
            self._threads[kind, pid, bytes(event.get("tid", b""))] = event
        else:
            args = decode_object(bytes(event.get("args", b"{}"))) or {}
            self._facts.setdefault(pid, {}).update({key: args[key] for key in (_NAMING[kind],) if key in args})
        return True

    def name_events(self, lanes: Lanes) -> list[Event]:
        events = []
        ordered = sorted(self._numbers, key=lambda pid: (not _is_number(pid), self._sort_index(pid)))
        names = {pid: self._name(pid) for pid in ordered}
        counts = Counter(names.values())
        for index, pid in enumerate(ordered):
            name = names[pid] if counts[names[pid]] == 1 else f"{names[pid]} (process {_text(pid)})"
            fields = {"name": name, "labels": self._label(pid), "sort_index": self._first + index}
            for key, value in fields.items():
                if value != "":
                    metadata = {"ph": "M", "name": f"process_{key}", "pid": self._numbers[pid], "tid": 0}
                    events.append(_encode_fields(metadata | {"args": {key: value}}) | {"ts": self._time})
        for (_, pid, _), event in self._threads.items():
            if pid in self._numbers:
                events.append(event | {"pid": self._raw[pid]})
        for (pid, tid), number, lane in lanes.added():
            args = {"name": f"stream {int(tid)}, lane {number + 1}"}
            thread_name = _encode_fields({"ph": "M", "name": "thread_name", "tid": lane, "args": args})
            events.append(thread_name | {"pid": self._raw[pid], "ts": self._time})
        return events

    def _sort_index(self, pid: bytes) -> float:
        index = self._facts.get(pid, {}).get("sort_index")
        return float(index) if isinstance(index, int) else 0.0

    def _name(self, pid: bytes) -> str:
        facts = self._facts.get(pid, {})
        if self._is_named(pid):
            return f"rank {self._rank} {facts['name']}"
        suffix = str(facts.get("labels", "")) if _is_number(pid) else _text(pid) or "marks"
        return f"rank {self._rank}" + (f" {suffix}" if suffix not in ("", "CPU") else "")

    def _is_named(self, pid: bytes) -> bool:
        labels = [facts.get("labels", "") for other, facts in self._facts.items() if other in self._numbers]
        facts = self._facts.get(pid, {})
        return bool(facts.get("name")) and labels.count(facts.get("labels", "")) > 1

    def _label(self, pid: bytes) -> str:
        key = "labels" if self._is_named(pid) else "name"
        return f"{self._facts.get(pid, {}).get(key, '')} {_text(pid)}".strip() if _is_number(pid) else ""


def _text(pid: bytes) -> str:
    return pid.decode("utf-8", "replace").strip('"')


def _is_number(pid: bytes) -> bool:
    return _text(pid).lstrip("-").isdigit()


def _encode_fields(event: Mapping[str, Any]) -> Event:
    return {key: msgspec.Raw(_ENCODE.encode(value)) for key, value in event.items()}


def _shift_time(time: bytes, shift: int) -> bytes:
    match = _PLAIN_TIME.fullmatch(time)
    if match is None:
        micros = _parse_time(time)
        if micros is None:
            return time
        nanos = round(micros * 1000)
    else:
        nanos = int(match[1]) * 1000 + int((match[2] or b"").ljust(3, b"0"))
    micros_whole, thousandths = divmod(abs(nanos + shift), 1000)
    return b"%s%d.%03d" % (b"-" if nanos + shift < 0 else b"", micros_whole, thousandths)


def _parse_time(time: bytes) -> Decimal | None:
    try:
        micros = Decimal(time.decode().strip('"'))
        return micros if abs(micros) < MAX_TIME_US else None
    except (ArithmeticError, ValueError):
        return None


def _make_unique(number: bytes, index: int, count: int) -> bytes:
    if number.isdigit() and len(number) < MAX_DIGITS:
        return b"%d" % (int(number) * count + index)
    return _ENCODE.encode(f"{index}.{number.decode('utf-8', 'replace')}")
