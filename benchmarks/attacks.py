"""Traces that somebody made to take all memory or time: small files that ask for much.

    python benchmarks/attacks.py nested-unique labels          # these, at full size
    python benchmarks/attacks.py                               # all of them

Each is written, read, and made into every table, the page, flame graphs and a merged trace, in a process of its own
with a bound of address space and of processor time. What takes more fails.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from perfhooks import testing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perfhooks.testing import Event

SPACE = 1 << 30
"""Bytes of memory that a small file may cost, libraries and their threads not counted."""
SPACE_PER_BYTE = 10
SECONDS = 20
"""Of processor time for every `MEGABYTES` of a file, and for a smaller one."""
MEGABYTES = 10

NOTABLE = 100 << 20
NOTABLE_S = 2
"""Bytes and seconds of one use that are worth a line."""

HEAD = b'{"schemaVersion":1,"traceEvents":['
GOOD = b'{"ph":"X","cat":"cpu_op","name":"good","pid":1,"tid":1,"ts":5.0,"dur":1}'


def repeated(piece: bytes, size: int) -> Iterator[bytes]:
    """A piece again and again, until so many bytes are full."""
    block = piece * max((1 << 20) // len(piece), 1)
    for _ in range(size // len(block)):
        yield block
    yield block[: size % len(block)]


def bomb(before: bytes, piece: bytes, after: bytes = b"") -> Callable[[int], Iterator[bytes]]:
    """A file that is nearly all repetition, and as an archive nearly nothing."""
    return lambda size: itertools.chain([before], repeated(piece, size), [after])


BOMBS: dict[str, Callable[[int], Iterator[bytes]]] = {
    "space-before": bomb(b"", b" "),
    "space-in-the-list": bomb(HEAD, b" ", GOOD + b"]}"),
    "space-behind-an-event": bomb(HEAD + GOOD, b" ", b"," + GOOD + b"]}"),
    "lines": bomb(HEAD + b"\n  " + GOOD, b"\n  ", b"," + GOOD + b"]}"),
    "commas": bomb(HEAD + GOOD, b",", GOOD + b"]}"),
    "endless-string": bomb(HEAD + GOOD + b',{"ph":"X","ts":1,"name":"', b"a"),
    "endless-braces-in-a-string": bomb(HEAD + GOOD + b',{"ph":"X","ts":1,"name":"', b'},{\\"'),
    "endless-argument": bomb(HEAD + GOOD + b',{"ph":"X","ts":1,"args":{"Input Dims":[', b"[1],"),
    "brackets": bomb(HEAD + GOOD + b",", b"["),
    "brackets-first": bomb(HEAD, b"["),
    "brackets-in-an-event": bomb(HEAD + GOOD + b',{"ph":"X","ts":1,"args":', b"["),
    "braces": bomb(HEAD + GOOD + b",", b'{"args":'),
    "empty-events": bomb(HEAD + GOOD, b",{}", b"]}"),
    "numbers": bomb(HEAD + GOOD, b",1", b"]}"),
    "least-events": bomb(HEAD + GOOD, b',{"ph":"X","ts":1}', b"]}"),
    "digits": bomb(HEAD + GOOD + b',{"ph":"X","ts":', b"1"),
    "tail": bomb(HEAD + GOOD + b'],"x":"', b"a", b'"}'),
    "tail-brackets": bomb(HEAD + GOOD + b'],"x":', b"["),
    "tail-lists": bomb(HEAD + GOOD + b'],"x":[[]', b",[]", b"]}"),
    "tail-keys": bomb(HEAD + GOOD + b'],"x":1', b',"":{}', b"}"),
    "tail-numbers": bomb(HEAD + GOOD + b'],"baseTimeNanoseconds":', b"7", b"}"),
    "metadata": bomb(b'{"x":"', b"a", b'","traceEvents":[' + GOOD + b"]}"),
    "metadata-brackets": bomb(b'{"x":', b"["),
    "metadata-lists": bomb(b'{"x":[[]', b",[]", b'],"traceEvents":[' + GOOD + b"]}"),
    "metadata-numbers": bomb(b'{"x":', b"7", b',"traceEvents":[' + GOOD + b"]}"),
    "metadata-ranks": bomb(b'{"distributedInfo":{"rank":', b"7", b'},"traceEvents":[' + GOOD + b"]}"),
}
"""By size after unpacking."""


def nested(make: Callable[[int, int, int], Event], count: int) -> Iterator[Event]:
    """Slices of which each holds the next."""
    return (make(number, number, 3 * count - number) for number in range(count))


def nested_same(count: int) -> Iterator[Event]:
    return nested(lambda _, start, end: testing.op("aten::mm", start, end), count)


def nested_unique(count: int) -> Iterator[Event]:
    return nested(lambda number, start, end: testing.op(f"op{number}", start, end), count)


def nested_frames(count: int) -> Iterator[Event]:
    return nested(lambda number, start, end: testing.python_frame(f"a.py({number}): f", start, end), count)


def nested_modules(count: int) -> Iterator[Event]:
    return nested(lambda number, start, end: testing.python_frame(f"nn.Module: A_{number}", start, end), count)


def nested_labels(count: int) -> Iterator[Event]:
    parts = ("forward", "backward", "optimizer", "data")
    yield testing.step_mark(0, 0, 4 * count)
    yield from nested(lambda number, start, end: testing.annotation(parts[number % 4], start, end), count)


def nested_nodes(count: int) -> Iterator[Event]:
    name = "autograd::engine::evaluate_function: A"
    return nested(lambda number, start, end: testing.op(name, start, end, Sequence_number=number), count)


def nested_then_memory(count: int) -> Iterator[Event]:
    yield from nested_unique(count)
    yield from (testing.memory(3 * count + number, 8, allocated=8) for number in range(count))


def nested_then_kernels(count: int) -> Iterator[Event]:
    yield from nested_unique(count)
    for number in range(1, count):
        yield testing.launch(number, 3 * count - number, 3 * count - number)
        yield testing.kernel(number, 4 * count + number, 4 * count + number + 1)


def nested_then_flows(count: int) -> Iterator[Event]:
    yield from nested_unique(count)
    there = [testing.op("x", 3 * count + number, 3 * count + number, tid=testing.PID) for number in range(count)]
    for number, event in enumerate(there):
        yield from testing.flow(number, event, event)


def tall_and_wide(count: int) -> Iterator[Event]:
    """Some deep frames with long names, and within them many small ones."""
    for number in range(1000):
        yield testing.python_frame(f"{'x' * 1000}{number}.py(1): f", number, 20 * count - number)
    for number in range(count):
        yield testing.op(f"op{number}", 2000 + 10 * number, 2005 + 10 * number)


def long_names(count: int) -> Iterator[Event]:
    """Few frames with endless names, which many small things name as theirs."""
    for number in range(5):
        yield testing.python_frame(f"{'x' * 200_000}{number}.py(1): f", number, 40 * count + 9 - number)
    yield testing.op("y" * 200_000, 7, 40 * count, external=1)
    for number in range(1, count):
        start = 10 + 20 * number
        yield testing.op(f"op{number}", start, start + 9)
        yield testing.launch(number, start + 1, start + 5, name="cudaMemcpy", external=1)
        yield testing.kernel(number, start + 2, start + 4, name="Memcpy HtoD (Pageable -> Device)",
                             category="gpu_memcpy", external=1)  # fmt: skip
        yield testing.memory(start, 8, allocated=8 * number)


def crossing(count: int) -> Iterator[Event]:
    return (testing.op(f"op{number}", number, number + count) for number in range(count))


def threads_with_steps(count: int) -> Iterator[Event]:
    for number in range(count):
        start = 10 * number
        yield testing.step_mark(number, start, start + 9, tid=number)
        yield testing.annotation("forward", start, start + 5, tid=number)


def threads(count: int) -> Iterator[Event]:
    for number in range(count):
        yield testing.op(f"op{number}", number, number + 5, tid=number)
        yield testing.memory(number, 8, allocated=8, tid=number)
        yield testing.launch(number + 1, number, number + 1, tid=number)
        yield testing.kernel(number + 1, number + 2, number + 3, stream=number)


def devices(count: int) -> Iterator[Event]:
    for number in range(count):
        yield testing.op("a", 2 * number, 2 * number + 1)
        yield testing.memory(2 * number, 8, allocated=8, device=number)
        yield testing.launch(number + 1, 2 * number, 2 * number + 1)
        yield testing.kernel(number + 1, 2 * number, 2 * number + 1, device=number)


def steps_and_kernels(count: int) -> Iterator[Event]:
    for number in range(count):
        start = 10 * number
        yield testing.step_mark(number, start, start + 9)
        yield testing.launch(number + 1, start, start + 1)
        yield testing.kernel(number + 1, start + 1, start + 4)
        yield testing.kernel(number + 1, start + 4, start + 8, name="ncclDevKernel_AllReduce")
        yield testing.memory(start, 8, allocated=8, device=0)


def overlapping_steps(count: int) -> Iterator[Event]:
    for number in range(count):
        yield testing.step_mark(number, number, number + count)
        yield testing.memory(number, 8, allocated=8)


def collectives(count: int) -> Iterator[Event]:
    for number in range(count):
        start = 20 * number
        yield testing.annotation("nccl:all_reduce", start, start + 9, Input_Dims=[[number]], Input_type=["float"])
        yield testing.op("record_param_comms", start + 1, start + 8, Collective_name="allreduce", In_msg_nelems=number)
        yield testing.launch(number + 1, start + 2, start + 5)
        yield testing.kernel(number + 1, start + 9, start + 30, name="ncclDevKernel_AllReduce_Sum")


def waits(count: int) -> Iterator[Event]:
    for number in range(count):
        start = 20 * number
        yield testing.python_frame(f"train.py({number}): main", start, start + 19)
        yield testing.op("aten::item", start + 1, start + 18)
        yield testing.launch(number + 1, start + 2, start + 9, name="cudaStreamSynchronize")
        yield testing.slice_event("cuda_sync", "Stream Sync", start + 2, start + 9, tid=7, correlation=number + 1)


def huge_shapes(count: int) -> Iterator[Event]:
    big = {"Input_Dims": [[2**62] * count] * 3, "Input_type": ["float"] * count, "Concrete_Inputs": ["[7]"] * count}
    names = ("aten::mm", "aten::mul", "aten::conv2d", "aten::convolution", "nccl:all_gather")
    return (testing.op(name, 10 * number, 10 * number + 5, **big) for number, name in enumerate(names))


EVENTS: dict[str, Callable[[int], Iterator[Event]]] = {
    "nested-same": nested_same,
    "nested-unique": nested_unique,
    "nested-frames": nested_frames,
    "nested-modules": nested_modules,
    "nested-labels": nested_labels,
    "nested-nodes": nested_nodes,
    "nested-then-memory": nested_then_memory,
    "nested-then-kernels": nested_then_kernels,
    "nested-then-flows": nested_then_flows,
    "tall-and-wide": tall_and_wide,
    "long-names": long_names,
    "crossing": crossing,
    "threads-with-steps": threads_with_steps,
    "threads": threads,
    "devices": devices,
    "steps-and-kernels": steps_and_kernels,
    "overlapping-steps": overlapping_steps,
    "collectives": collectives,
    "waits": waits,
    "huge-shapes": huge_shapes,
}
"""By number of what there are many of."""


def joined(events: Iterable[bytes]) -> Iterator[bytes]:
    yield HEAD + GOOD
    for event in events:
        yield b"," + event
    yield b"]}"


TEXTS: dict[str, Callable[[int], Iterator[bytes]]] = {
    "bad-times": lambda count: joined(itertools.repeat(b'{"ph":"X","name":"a","ts":"x"}', count)),
    "bad-events": lambda count: joined(itertools.repeat(b'{"ph":"X","name":"\\q","ts":1,"pid":[]}', count)),
    "bad-ends": lambda count: joined(itertools.repeat(b'{"name":"a"}],{"name":"b"}', count)),
    "open-events": lambda count: joined(itertools.repeat(b'{"name":"a","args":{"x":[{"name":"a"},', count)),
    "ends-without-phase": lambda count: joined(itertools.repeat(b'{"name":"a"}]},{"name":7', count)),
    "ends-of-lists": lambda count: joined(itertools.repeat(b'{"ph":"X","ts":1,"name":"a"}]', count)),
    "bad-arguments": lambda count: joined(
        itertools.repeat(b'{"ph":"X","cat":"kernel","name":"a","ts":1,"args":{"device":"x"}}', count)
    ),
}
"""By number of pieces."""

FULL = {**dict.fromkeys(BOMBS, 4 << 30), **dict.fromkeys(TEXTS, 100_000), **dict.fromkeys(EVENTS, 100_000)} | {
    "nested-modules": 10_000,
    "threads-with-steps": 8_000,
    "threads": 8_000,
    "devices": 8_000,
    "tall-and-wide": 10_000,
    "long-names": 10_000,
}
"""The sizes at which each of them was found to hurt, or more."""


def write(name: str, size: int, file: IO[bytes]) -> None:
    """Write one of them; what is nearly all repetition as an archive."""
    if name in BOMBS:
        pack = zlib.compressobj(6, wbits=31)
        for block in BOMBS[name](size):
            file.write(pack.compress(block))
        file.write(pack.flush())
        return
    texts = TEXTS[name](size) if name in TEXTS else joined(map(msgspec.json.encode, EVENTS[name](size)))
    file.writelines(texts)


def used() -> int:
    """The most memory that this process ever had, in bytes."""
    # not getrusage, which in a child remembers its parent
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def bound_memory(space: int) -> None:
    """Give this process so many more bytes."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + space, resource.RLIM_INFINITY))


def bound_time(seconds: int) -> None:
    """Give this process so many more seconds of a processor."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, resource.RLIM_INFINITY))


def examine(paths: list[Path], *, tell: bool) -> None:
    """Make everything of some files; what it costs to standard output."""
    import examinations

    examinations.warm_up()
    size = max(path.stat().st_size for path in paths)
    bound_memory(SPACE + SPACE_PER_BYTE * size)
    begun = highest = used()
    for name, use in itertools.chain.from_iterable(examinations.Examination(path).uses() for path in paths):
        bound_time(max(SECONDS, SECONDS * size // (MEGABYTES << 20)))
        began = time.process_time()
        outcome = use()
        taken, grown, highest = time.process_time() - began, used() - highest, used()
        if tell or taken > NOTABLE_S or grown > NOTABLE:
            print(f"    {name:<24} {taken:7.2f} s {(highest - begun) >> 20:6d} MiB  {outcome}", flush=True)


def attack(names: Sequence[str], size: int | None, *, tell: bool) -> bool:
    """Try some of them in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name in names:
            paths.append(Path(folder, f"{name}.json"))
            with paths[-1].open("wb") as file:
                write(name, size or FULL[name], file)
            print(f"{name}: {size or FULL[name]}, a file of {paths[-1].stat().st_size >> 10} KiB", flush=True)
        command = [sys.executable, __file__, *(["--tell"] if tell else []), "--examine", *map(str, paths)]
        done = subprocess.run(command, check=False, env=os.environ | {"POLARS_MAX_THREADS": "1"})
    if done.returncode:
        print(f"    failed with {done.returncode}", flush=True)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FULL)}")
    parser.add_argument("--size", type=int)
    parser.add_argument("--together", action="store_true", help="in one process")
    parser.add_argument("--tell", action="store_true", help="what each use costs")
    parser.add_argument("--examine", type=Path, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.examine:
        examine(options.examine, tell=options.tell)
        return
    names = options.names or list(FULL)
    groups = [names] if options.together else [[name] for name in names]
    failed = [name for group in groups if not attack(group, options.size, tell=options.tell) for name in group]
    sys.exit(f"these failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
