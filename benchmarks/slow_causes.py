"""Fourteen planted causes of slow steps: how often what is said of them is right, wrong, or that nobody knows.

The trainings are those of the folder ``planted``, in three shapes as people write them, and one of two ranks. Each says
which step it makes slow and through what; what perfhooks says of that step is in the table of slow steps.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from comparison import Comparison, say

from perfhooks.run.live import slow_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDER: Final = Path(__file__).parent / "planted"
TIMES: Final = {"functions": 3, "top_level": 3, "trainer": 2, "two_ranks": 8}
"""How often each of the trainings makes a step slow by each cause: each cause eight times in all."""
BUSY: Final = 6
"""Programs that compute beside a training that is tried under load."""
LONGEST_S: Final = 900

RIGHT: Final = {
    "evaluation": ("evaluation", r"^(?:test|score|<module>) "),
    "rollouts": ("own code", r"^(?:collect_episodes|after_step|train|<module>) "),
    "wait": ("data", "__getitem__"),
    "read": ("data", "read_slowly"),
    "collection": ("garbage collection", "clean_up"),
    "checkpoint": ("checkpoint", r"^(?:keep|<module>) "),
    # on a busy machine, a thread waits for a CPU after each write
    "fsync": ("blocking call|own code", r"^(?:record_results|<module>) "),
    "lock": ("blocking call", r"^(?:publish|<module>) "),
    "allocation": ("own code", r"^(?:grow_buffer|<module>) "),
    "loop": ("own code", r"^(?:count_words|<module>) "),
    "items": ("own code", r"^(?:histogram|<module>) "),
    "rank": ("other ranks", r"^<module> "),
    "compilation": ("compilation", r"^specialize "),
    "neighbour": ("CPU contention", "^$"),
}
"""For each plant the causes that are right, and what a line may be that is given with it; none is right as well."""


class Said(NamedTuple):
    """What was planted, and what was said of it."""

    plant: str
    cause: str
    line: str

    @property
    def verdict(self) -> str:
        """Right, wrong, or unknown."""
        cause, line = RIGHT[self.plant]
        if self.cause == "unknown":
            return "unknown"
        return "right" if re.fullmatch(cause, self.cause) and (not self.line or re.search(line, self.line)) else "wrong"


def measure() -> Iterator[Comparison]:
    """All trainings, as the machine is and beside busy programs."""
    for busy in (0, BUSY):
        yield _table(f"beside {busy} busy programs", list(tried(busy)))


def _table(where: str, said: list[Said]) -> Comparison:
    verdicts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in said:
        verdicts[one.plant][one.verdict] += 1
        if one.verdict == "wrong":
            say(f"{one.plant} was said to be {one.cause}, {one.line}")
    rows = [(plant, float(verdicts[plant]["right"])) for plant in RIGHT]
    total = Counter(one.verdict for one in said)
    shares = ", ".join(f"{name} {total[name] / len(said):.0%}" for name in ("right", "wrong", "unknown"))
    title = f"Causes of slow steps that were told, {where}: {shares}"
    return Comparison(
        title=title, unit="told", rows=(("of each were planted", float(sum(verdicts["rank"].values()))), *rows)
    )


def tried(busy: int, times: dict[str, int] = TIMES) -> Iterator[Said]:
    """Run each training once.

    Args:
        busy: Programs that compute meanwhile.
        times: Which trainings, and how often each plants each cause.
    """
    with _busy(busy):
        for name, count in times.items():
            say(f"{name}, beside {busy} busy programs")
            with tempfile.TemporaryDirectory() as out:
                yield from _of(name, count, Path(out))


def _of(name: str, count: int, out: Path) -> Iterator[Said]:
    quiet = ("--schedule", "wait=1000000000 warmup=1 active=1", "--out", str(out))
    script = (sys.executable, f"{name}.py", str(count), str(out / "meeting"))
    done = subprocess.run(
        [sys.executable, "-m", "perfhooks", "run", *quiet, *script],
        cwd=FOLDER, timeout=LONGEST_S, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )  # fmt: skip
    rows = {row.step: row for file in out.glob("*/rank0.slow.csv") for row in slow_steps.read(file)}
    for step, plant in re.findall(r"^planted (\d+) (\w+)$", done.stdout, re.MULTILINE):
        # a training counts its own steps, and a batch that is late belongs to the step after
        near = [row for number in range(int(step) - 1, int(step) + 3) if (row := rows.get(number))]
        longest = max(near, key=lambda row: row.wall_ms, default=None)
        yield Said(plant, *(("unknown", "") if longest is None else (longest.cause, longest.line)))


@contextmanager
def _busy(count: int) -> Iterator[None]:
    alone = f"while kill -0 {os.getpid()}; do for i in 1 2 3 4 5 6 7 8 9; do :; done; done"
    others = [subprocess.Popen(["sh", "-c", alone], stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        _end(others)


def _end(others: Iterable[subprocess.Popen[bytes]]) -> None:
    for other in others:
        other.kill()
        other.wait()
