"""Damage real traces and run folders in every way we can think of: what is made of them is whole, or one line why not.

    python benchmarks/fuzz.py --cases 200000
    python benchmarks/fuzz.py --of baselines requests --cases 100000

Each case is a piece of a recorded trace (of the folder in PERFHOOKS_TRACES, or ../shared/traces, or of what this
repository can write itself), with fields, events, keys or bytes changed; or a small run folder, with files changed.
Some of what perfhooks makes of it is made: tables, on a terminal and in files, the page, every handler's files, flame
graphs, a merged trace, a comparison. With --of it is something else that others may have written, see `OTHERS`. A case
fails on any other exception, on what cannot be written or would move the cursor of a terminal, on more than ten seconds
of a processor, or on memory out of proportion to its size. Failing cases are kept beside the report, and the same
numbers give the same cases again: --seed 7 --first 4711 --cases 1.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import functools
import gzip
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

os.environ["POLARS_MAX_THREADS"] = "1"  # cases are small, and there may be several of us

import attacks
import baseline_cases
import call_cases
import examinations
import request_cases
import run_folders

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
LIMIT_S = 10
"""Of processor time for one case."""
LIMIT_WAITING_S = 300
"""Of a clock: nothing may wait for ever, but the machine may be busy."""
SPACE = 3 << 30
"""Address space beyond what is used at the start, in bytes; traces of these sizes need none of it."""
GROWTH = 200 << 20
"""How much one case may add to the memory that was ever used, in bytes."""
ALL = 0.0005
ONE = 0.15
"""The share of cases of which everything is made, and of those of which one thing is; all are read. Everything costs a
hundred times what reading does, so this is where most cases an hour find most."""
DEAR = ("merge", "page", "handler page", "findings")
SELDOM = 0.2
"""What takes ten times as long as other uses, as does a table on a terminal, and how often it is made beside them."""
SIZES = (1, 5, 20, 60, 200)
OFTEN = (4, 8, 8, 2, 1)
"""Events of a piece, and how often it has as many: what breaks something is mostly one event beside another."""
LONG = 500
"""Bytes of what stands beside the events of a trace that are left out of most cases."""
_STEP = "ProfilerStep#"
KEPT = 20
"""So many different failures are enough."""

NASTY = (
    *(0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 1e300, -1e300, 0.1, 1e-9, True, None),
    *("", "0", "-1", "0x7f", "nan", "[memory]", "ProfilerStep#1", "ProfilerStep#", "ProfilerStep#99999999999999999999"),
    *("é\u2028\ud800", "a;b\n\t", "x" * 5000, "nccl:all_reduce", "record_param_comms", "nn.Module: A_0", "[0, 1]"),
    *([], [[]], [[[[]]]], [2**70], ["a", None], [[1, -1]], {}, {"a": {"b": []}}, [[0] * 50]),
)
LITERALS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"N/A",
    b"1e999",
    b"0x10",
    b"'a'",
    b"{",
    b"]",
    b'"',
    b"\\",
    b"\xff",
    b"\x00",
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "s", "bp")
ARGUMENTS = (
    *("External id", "Sequence number", "Fwd thread id", "Python parent id", "Python id", "Python module id"),
    *("Concrete Inputs", "Input type", "Input Dims", "Call stack", "device", "stream", "correlation", "bytes"),
    *("est. achieved occupancy %", "grid", "graph id", "Collective name", "dtype", "In msg nelems", "Out msg nelems"),
    *("Group size", "Process Group Name", "cuda_sync_kind", "Addr", "Bytes", "Total Allocated", "Total Reserved"),
    *("Device Type", "Device Id", "name"),
)
KEYS = ("distributedInfo", "INFO", "WARNING", "deviceProperties", "baseTimeNanoseconds", "traceEvents", "schemaVersion")
CATEGORIES = (
    *("cpu_op", "user_annotation", "python_function", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset"),
    *("gpu_user_annotation", "cuda_sync", "overhead", "cpu_instant_event", "fwdbwd", "ac2g", "Trace", "", "new_kind"),
)


class Cases(Protocol):
    """A kind of cases: each is made, and then examined, by the same dice."""

    path: Path
    """What is kept of a case that fails."""

    def make(self, dice: random.Random, damage: Callable[[bytes], bytes]) -> None:
        """Make the next case; ``damage`` changes bytes."""

    def examine(self, dice: random.Random) -> str:
        """Use it; say what became of it."""


OTHERS: dict[str, Callable[[Path], Cases]] = {
    "baselines": baseline_cases.Cases,
    "calls": call_cases.Cases,
    "requests": request_cases.Cases,
}
"""What is neither a trace nor a run folder, by name: made with a folder of its own."""


class SlowError(Exception):
    """A case took too long."""


class GreedyError(Exception):
    """A case took too much memory."""


class Source:
    """A recorded trace, and its pieces as they stand in a file."""

    def __init__(self, content: dict[str, Any] | list[dict[str, Any]]) -> None:
        trace = {"traceEvents": content} if isinstance(content, list) else content
        self.events: list[dict[str, Any]] = sorted(trace["traceEvents"], key=lambda event: float(event.get("ts", 0)))
        self.keys = {key: value for key, value in trace.items() if key != "traceEvents"}
        self.steps = [place for place, event in enumerate(self.events) if str(event.get("name")).startswith(_STEP)]
        self._texts: dict[int | str, bytes] = {}

    def event(self, place: int) -> bytes:
        """One event as text."""
        return self._known(place, self.events[place])

    def key(self, name: str) -> bytes:
        """What stands beside the events, as text."""
        return self._known(name, self.keys[name])

    def _known(self, place: int | str, value: object) -> bytes:
        if place not in self._texts:
            self._texts[place] = encoded(value)
        return self._texts[place]


def encoded(value: object) -> bytes:
    """JSON, whatever the value; msgspec takes neither lone surrogates nor numbers beyond 64 bits."""
    return json.dumps(value).encode()


def sources() -> list[Source]:
    """The recorded traces."""
    folder = Path(os.environ.get("PERFHOOKS_TRACES", ROOT.parent / "shared" / "traces"))
    found = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob("*.json.gz"))]
    return [Source(trace) for trace in found or [written()]]


def written() -> dict[str, Any]:
    """A trace with something of everything, where no recorded ones are at hand."""
    from perfhooks import testing

    events: list[dict[str, Any]] = []
    for number in range(60):
        start, end = 1000 * number, 1000 * number + 900
        forward = testing.op("aten::mm", start, start + 100, external=2 * number + 1, Input_Dims=[[2, 3], [3, 4]])
        backward = testing.op("autograd::engine::evaluate_function: MmBackward0", start + 200, start + 300, tid=7)
        events += [testing.step_mark(number, start, end), forward, backward, *testing.flow(number, forward, backward)]
        events += [testing.launch(number + 1, start + 10, start + 20), testing.memory(start + 30, 64, allocated=64)]
        events += [testing.kernel(number + 1, start + 100, start + 400, external=2 * number + 1)]
        events += [
            testing.python_frame("train.py(3): main", start, end),
            testing.annotation("gloo:all_reduce", start, end),
        ]
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "0"}]}, "traceEvents": events}


class Case:
    """One damaged piece of a trace, the same for the same numbers."""

    def __init__(self, sources: list[Source], seed: int, number: int) -> None:
        self.dice = random.Random(f"{seed}:{number}")
        self.source = self.dice.choice(sources)
        count = len(self.source.events)
        size = self.dice.choices(SIZES, OFTEN)[0]
        first = self.dice.randrange(count)
        chosen = [*range(first, min(first + size, count))]
        chosen += [self.dice.randrange(count) for _ in range(min(count, size // 4))]
        if self.source.steps and self.dice.random() < 0.5:
            last = bisect.bisect_right(self.source.steps, first)
            chosen += self.source.steps[max(last - 1, 0) : last + 1]
        self.events: list[int | dict[str, Any]] = [*chosen]
        """Events that are changed, and the places of others."""
        self.odd: Any = {}
        self.keys: dict[str, Any] = {}
        """What is changed of what stands beside the events."""

    def text(self) -> bytes:
        """The file: perhaps packed, perhaps not even that."""
        for _ in range(self.dice.choice((0, 1, 1, 2, 5, 20))):
            self.dice.choice((self._field, self._argument, self._key, self._event, self._category, self._time))()
        data = self._whole()
        if self.dice.random() < 0.03:
            data = json.dumps(json.loads(data), indent=2).encode()
        if self.dice.random() < 0.4:
            data = self.bytes(data)
        if self.dice.random() < 0.1:
            data = gzip.compress(data, 1)
            data = self.bytes(data) if self.dice.random() < 0.5 else data
        return data

    def _whole(self) -> bytes:
        events = [self.source.event(each) if isinstance(each, int) else encoded(each) for each in self.events]
        if self.odd != {}:
            events.insert(self.dice.randrange(len(events) + 1), encoded(self.odd))
        every = b"[" + b",\n".join(events) + b"]"
        if self.dice.random() < 0.05:
            return every
        parts = [(name, self._beside(name)) for name in {**self.source.keys, **self.keys}]
        # what a trace says of all ranks and devices is long, and the same in many cases
        parts = [each for each in parts if len(each[1]) < LONG or self.dice.random() < 0.1]
        parts.append(("traceEvents", every))
        if self.dice.random() < 0.3:
            self.dice.shuffle(parts)
        return b"{" + b",\n".join(encoded(name) + b": " + text for name, text in parts) + b"}"

    def _beside(self, name: str) -> bytes:
        return encoded(self.keys[name]) if name in self.keys else self.source.key(name)

    def _one(self) -> dict[str, Any]:
        """An event to be changed."""
        if not self.events:
            return {}
        place = self.dice.randrange(len(self.events))
        event = self.events[place]
        if isinstance(event, int):
            self.events[place] = event = dict(self.source.events[event])
        return event

    def _field(self) -> None:
        event, name = self._one(), self.dice.choice(FIELDS)
        if self.dice.random() < 0.2:
            event.pop(name, None)
        else:
            event[name] = self.dice.choice(NASTY)

    def _argument(self) -> None:
        event = self._one()
        args = event.get("args")
        names = [*ARGUMENTS, *(args if isinstance(args, dict) else ())]
        event["args"] = (args if isinstance(args, dict) else {}) | {self.dice.choice(names): self.dice.choice(NASTY)}

    def _key(self) -> None:
        self.keys[self.dice.choice(KEYS)] = self.dice.choice(NASTY)

    def _event(self) -> None:
        place = self.dice.randrange(len(self.events) + 1)
        what = self.dice.random()
        if what < 0.4 and self.events:
            self.events.insert(place, dict(self._one()))
        elif what < 0.7 and self.events:
            self.events.pop(min(place, len(self.events) - 1))
        else:
            self.odd = self.dice.choice(NASTY)

    def _category(self) -> None:
        self._one()["cat"] = self.dice.choice(CATEGORIES)

    def _time(self) -> None:
        event, other = self._one(), self._one()
        event["ts"] = other.get("ts", 0)
        event["dur"] = self.dice.choice((0, 0.001, other.get("dur", 1), 10**6))

    def bytes(self, data: bytes) -> bytes:
        """Change some bytes."""
        return damaged_bytes(self.dice, data)


def damaged_bytes(dice: random.Random, data: bytes) -> bytes:
    """Change some bytes."""
    text = bytearray(data)
    for _ in range(dice.choice((1, 1, 3, 10))):
        first = dice.randrange(len(text) + 1)
        last = min(len(text), first + dice.choice((1, 1, 10, 100, 1000)))
        what = dice.randrange(5)
        if what == 0:
            del text[first:last]
        elif what == 1:
            text[first:first] = text[first:last]
        elif what == 2:
            text[first:last] = dice.choice(LITERALS)
        elif what == 3:
            text[first:last] = bytes(dice.randrange(256) for _ in range(last - first))
        else:
            del text[first:]
    return bytes(text)


def examine(path: Path, dice: random.Random, wanted: argparse.Namespace, made: collections.Counter[str]) -> str:
    """Read a trace and make something of it; say what became of it, and count what was made."""
    examination = examinations.Examination(path)
    uses = examination.uses()
    found = next(uses)[1]()
    others = list(uses)  # of what has been read: a file that is no trace has few
    what = dice.random()
    if wanted.only:
        chosen = [each for each in others if each[0] == wanted.only]
    elif what < wanted.all:
        chosen = others
    else:
        chosen = [each for each in dice.sample(others, 1) if what < wanted.all + often(each[0], wanted.one)]
    for name, use in chosen:
        use()
        made[name] += 1
    return "refused" if found.startswith("refused") else "doubtful" if "," in found else "read"


def often(use: str, share: float) -> float:
    return share * SELDOM if use in DEAR or use.endswith(" drawn") else share


def too_slow(_signal: int, _frame: object) -> None:
    raise SlowError(f"more than {LIMIT_S} s of a processor, or {LIMIT_WAITING_S} s in all")


def examined(path: Path, examine: Callable[[], str]) -> str:
    """Examine a case within its bounds of time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = {signal.ITIMER_PROF: LIMIT_S, signal.ITIMER_REAL: LIMIT_WAITING_S}
    for clock, seconds in limits.items():
        signal.setitimer(clock, seconds)
    try:
        found = examine()
    finally:
        for clock in limits:
            signal.setitimer(clock, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if grown > GROWTH:
        raise GreedyError(f"{grown >> 20} MiB for a file of {path.stat().st_size >> 10} KiB")
    return found


def bound_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, hard))


class OtherBench:
    """Where cases of one other kind are made and tried."""

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        folder.mkdir()
        self._cases = OTHERS[kind](folder)
        self.path, self._seed = self._cases.path, f"{kind} {seed}"
        dice = random.Random(0)
        for _ in range(3):  # whatever is imported late
            self._cases.make(dice, bytes)
            self._cases.examine(dice)
        self.made: collections.Counter[str] = getattr(self._cases, "made", collections.Counter())
        """What the kind counts itself."""

    def attempt(self, number: int) -> str:
        """Make and try a case; say what became of it."""
        dice = random.Random(f"{self._seed}:{number}")
        self._cases.make(dice, functools.partial(damaged_bytes, dice))
        return examined(self.path, lambda: self._cases.examine(dice))


class Bench:
    """Where cases are made and tried, one after the other."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.path = folder / "case.json"
        self._sources = sources()
        self._run = run_folders.template(folder / "whole")
        self._options = options
        self.made: collections.Counter[str] = collections.Counter()
        """What was made of traces, how often."""
        examinations.warm_up()  # imports everything
        dice = random.Random(0)
        run_folders.examine(run_folders.damaged(self._run, folder / "run", dice, bytes), dice, some=99)

    def attempt(self, number: int) -> str:
        """Make and try a case; say what became of it."""
        case = Case(self._sources, self._options.seed, number)
        if case.dice.random() < self._options.folders:
            run = run_folders.damaged(self._run, self.path.with_name("run"), case.dice, case.bytes)
            return examined(self.path, lambda: run_folders.examine(run, case.dice))
        self.path.write_bytes(case.text())
        return examined(self.path, lambda: examine(self.path, case.dice, self._options, self.made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--folders", type=float, default=0.002, help="the share of cases that are run folders")
    parser.add_argument("--all", type=float, default=ALL, help="the share of traces of which everything is made")
    parser.add_argument("--one", type=float, default=ONE, help="the share of traces of which one thing is made")
    parser.add_argument("--of", choices=OTHERS, nargs="*", help="so many cases of each of these, and of nothing else")
    parser.add_argument("--only", metavar="USE", help="make this of each trace, and nothing else: page, try, ...")
    parser.add_argument("--attacks", action="store_true", help="the traces of attacks.py as well, at full size")
    parser.add_argument("--keep", type=Path, default=Path(), help="folder for cases that fail")
    options = parser.parse_args()
    logging.disable()
    for each in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(each, too_slow)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        benches = [OtherBench(folder / kind, kind, options.seed) for kind in options.of or ()]
        benches = benches or [Bench(folder, options)]
        if Path("/proc/self/statm").exists():
            bound_memory()
        failed = sum(tried(bench, options) for bench in benches)
    attacked = [name for name in attacks.FULL if options.attacks and not attacks.attack([name], None, tell=False)]
    sys.exit(f"failed: {', '.join(attacked)}" if attacked else bool(failed))


def tried(bench: Bench | OtherBench, options: argparse.Namespace) -> int:
    """Try all cases of a bench, and tell of them; how many failed in different ways."""
    outcomes: collections.Counter[str] = collections.Counter()
    failures: dict[str, str] = {}
    began = time.perf_counter()
    for number in range(options.first, options.first + options.cases):
        try:
            outcomes[bench.attempt(number)] += 1
        except Exception as error:  # noqa: BLE001 -- this is what we are looking for
            outcomes["failed"] += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
            if place not in failures:
                failures[place] = f"case {number}: {traceback.format_exc(limit=-6)}"
                print(failures[place], flush=True)
                (options.keep / f"fuzz-{options.seed}-{number}.json").write_bytes(bench.path.read_bytes())
            if len(failures) >= KEPT:
                break
        if sum(outcomes.values()) % 1000 == 0:
            rate = sum(outcomes.values()) / (time.perf_counter() - began)
            print(f"{sum(outcomes.values())} cases, {rate:.0f} a second: {dict(outcomes)}", flush=True)
    print(f"{sum(outcomes.values())} cases: {dict(outcomes)}")
    print("made", dict(bench.made.most_common()))
    print(*failures.values(), sep="\n")
    return len(failures)


if __name__ == "__main__":
    main()
