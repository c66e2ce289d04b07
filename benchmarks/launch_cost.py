"""What `perfhooks run` adds to a short training with both windows and the report: CPU time and memory, by process.

CPU times are those of the processes, so that other programs on the machine matter little. Each is the least of
`ROUNDS` trainings, with and without perfhooks in alternation.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
from comparison import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROUNDS = 10
POLL_S = 0.02
"""Between two readings of the memory of all processes."""
_SET_CHILD_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` in Linux' ``prctl.h``."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LOGGED = re.compile(r" INFO (?P<task>.+): (?P<seconds>\d+\.\d+) s of CPU$", re.MULTILINE)

TRAINING = """
import json, sys, time
cpu = [time.process_time()]
import torch
cpu.append(time.process_time())
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(12_800, 256)), batch_size=64)
cpu.append(time.process_time())
for step, (batch,) in enumerate(loader):
    for _ in range(4):
        model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 7:
        cpu.append(time.process_time())
cpu.append(time.process_time())
with open(sys.argv[1], "w") as file:
    json.dump(cpu, file)
"""
PHASES = ("start of Python", "import torch", "model and loader", "steps 0-7", "steps 8-199", "end")


class Ended(NamedTuple):
    """CPU seconds of one process that has ended, less those of its children."""

    pid: int
    cpu_s: float


class Memory(NamedTuple):
    """Memory of a process in MB."""

    resident: float
    """Includes the pages of shared libraries. The system counts them once, and frees them if memory is short."""
    anonymous: float
    """Heap and stacks, which belong to one process."""


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """CPU time and memory by process and phase, without and with perfhooks."""

    rows: Mapping[tuple[str, str], tuple[float, float]]
    """Milliseconds without and with perfhooks, by process and phase."""
    memory: Mapping[str, tuple[float, float]]
    """Peak memory in MB, without and with perfhooks, by process and kind of memory."""

    def __str__(self) -> str:
        lines = ["CPU by process and phase, ms", f"  {'':36} {'without':>9} {'with':>9} {'added':>9}"]
        process = ""
        for (of, phase), (bare, ours) in self.rows.items():
            if of != process:
                process = of
                every = [each for (name, _), each in self.rows.items() if name == of]
                lines.append(_line(process, sum(each[0] for each in every), sum(each[1] for each in every)))
            lines.append(_line(f"  {phase}", bare, ours))
        lines.append(_line("all processes", *(sum(column) for column in zip(*self.rows.values(), strict=True))))
        lines += ["", "Peak memory, MB"]
        lines += [_line(name, *each) for name, each in self.memory.items()]
        return "\n".join(lines)


def _line(name: str, bare: float, ours: float) -> str:
    return f"  {name:36} {bare:9.0f} {ours:9.0f} {ours - bare:+9.0f}"


def measure() -> Iterator[CostTable]:
    """Measure the training, and a command that is no Python, with and without perfhooks."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)  # what the training leaves behind is waited for as well
    bare: list[dict[tuple[str, str], float]] = []
    ours: list[dict[tuple[str, str], float]] = []
    memory: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for count in range(ROUNDS):
        say(f"a short training with and without perfhooks, {count + 1} of {ROUNDS}")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "train.py").write_text(TRAINING, encoding="utf-8")
            marks, runs = folder / "marks.json", folder / "runs"
            command = [str(folder / "train.py"), str(marks)]
            start = [sys.executable, "-m", "perfhooks", "run", "--out", str(runs)]
            (alone,), alone_mb = _ended([sys.executable, *command])
            bare.append(_of_training(alone, marks, 0.0))
            (launched, *_), _ = _ended([*start, "true"])
            (training, *others), peaks = _ended([*start, *command])
            waiting = {("process that reports a kill", "all"): sum(each.cpu_s for each in others)}
            profiled = _of_training(training, marks, launched.cpu_s) | waiting
            profiled["command line", "start to exec"] = launched.cpu_s
            ours.append(profiled | _of_worker(next(runs.glob("*/rank0.worker.log"))))
            for place, kind in enumerate(Memory._fields):
                of_all = {pid: peak[place] for pid, peak in peaks.items()}
                of_training = of_all.pop(training.pid)
                memory[f"training, {kind}"].append((alone_mb[alone.pid][place], of_training))
                memory[f"other processes, {kind}"].append((0.0, sum(of_all.values())))
    keys = dict.fromkeys(key for each in (*bare, *ours) for key in each)
    yield CostTable(
        rows={key: (_least(bare, key), _least(ours, key)) for key in keys},
        memory={name: tuple(map(min, zip(*each, strict=True))) for name, each in memory.items()},  # type: ignore[misc]
    )


def _least(rounds: Sequence[Mapping[tuple[str, str], float]], key: tuple[str, str]) -> float:
    return min((each[key] for each in rounds if key in each), default=0.0) * 1e3


def _ended(words: list[str]) -> tuple[list[Ended], dict[int, Memory]]:
    """Run a command to its end.

    Returns:
        The command, then each process that it left behind; and the peak memory of all processes.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    ended: list[Ended] = []
    peaks: dict[int, Memory] = {}
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(OSError, KeyError, psutil.Error):
                memory, before = _memory(process.pid), peaks.get(process.pid, Memory(0, 0))
                peaks[process.pid] = Memory(memory.resident, max(memory.anonymous, before.anonymous))
        try:
            known = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            break
        if known is None:
            time.sleep(POLL_S)
            continue
        # a process that has not been reaped tells its own time apart from that of its children
        columns = Path(f"/proc/{known.si_pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ended.append(Ended(known.si_pid, sum(int(column) for column in columns[11:13]) * _TICK_S))
        os.waitpid(known.si_pid, 0)
    child.returncode = 0
    return sorted(ended, key=lambda each: each.pid != child.pid), peaks


def _memory(pid: int) -> Memory:
    """Return the peak of the resident memory, and the present anonymous memory."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    values = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines if line.endswith(" kB")}
    return Memory(values["VmHWM:"], values["RssAnon:"])


def _of_training(ended: Ended, marks: Path, before_s: float) -> dict[tuple[str, str], float]:
    """Return the CPU seconds of each phase of the training."""
    edges = [before_s, *json.loads(marks.read_text(encoding="utf-8")), ended.cpu_s]
    return {("training", phase): edges[place + 1] - edges[place] for place, phase in enumerate(PHASES)}


def _of_worker(log: Path) -> dict[tuple[str, str], float]:
    """Return the CPU seconds of each kind of task of the worker."""
    spent: dict[str, float] = defaultdict(float)
    for task, seconds in _LOGGED.findall(log.read_text(encoding="utf-8")):
        name = Path(task).name
        kind = "reports" if name == "report.html" else "windows" if name.startswith("train-") else name
        spent[kind] += float(seconds)
    spent["other"] = spent.pop("all") - sum(spent.values())
    return {("worker", kind): seconds for kind, seconds in spent.items()}
