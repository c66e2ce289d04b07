"""Writes what the workers of many ranks leave of a run, without any of them: a job whose every number is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

BEGAN_NS = 1_795_000_000_000_000_000
STEPS_HEADER = (
    "rank,stage,step,wall_ms,data_ms,transfer_ms,forward_ms,backward_ms,optimizer_ms,validation_ms,checkpoint_ms,"
    "other_ms,device_span_ms,busy_ms,idle_ms,compute_ms,comm_ms,exposed_comm_ms,exposed_copy_ms,ops,launches,kernels,"
    "syncs,sync_ms,allocated_peak_mb,alloc_count"
)
COLLECTIVES_HEADER = (
    "rank,step,start_ns,operation,backend,group,group_size,dtype,bytes,duration_ms,exposed_ms,bus_gb_per_s,device,"
    "stream"
)
TIMELINE = "stage,step,phase,wall_ms,data_ms\n" + "".join(f"train,{step},wait,50.0,1.0\n" for step in range(10))
BYTES = 25 << 20


@dataclass(frozen=True, kw_only=True)
class ManyRanks:
    """A training in which all ranks wait for the slowest one in every collective.

    A step is: wait for data, then as many times compute and reduce. Nothing overlaps, so all times are exact.
    """

    ranks: int = 8
    windows: int = 2
    steps: int = 3
    collectives: int = 4
    """In each step."""
    node: int = 4
    """Ranks of a node; every other collective is among these only."""
    data_ms: float = 1.0
    compute_ms: float = 10.0
    """Between two collectives."""
    transfer_ms: float = 2.0
    """A collective, once all are there."""
    slow_data: dict[int, float] = field(default_factory=dict)
    """Milliseconds more, for each slow rank."""
    slow_compute: dict[int, float] = field(default_factory=dict)
    clock_ms: dict[int, float] = field(default_factory=dict)
    """What the clock of a rank is ahead."""
    unprofiled_ms: float | None = None
    """Time of an unprofiled step, if it is known."""

    def write(self, run):
        """Write the run folder."""
        run.mkdir(parents=True)
        names = [f"train-{first:06d}-{first + self.steps - 1:06d}" for first in self.firsts]
        everyone = list(range(self.ranks))
        manifest = {"format": 1, "world_size": self.ranks, "windows": names}
        (run / "run.json").write_text(json.dumps(manifest))
        for rank in everyone:
            (run / f"rank{rank}.timeline.csv").write_text(TIMELINE)
        for name, first in zip(names, self.firsts, strict=True):
            self._write_window(run / name, first)
        return run

    @property
    def firsts(self):
        return [10 + 100 * number for number in range(self.windows)]

    def _write_window(self, folder, first):
        folder.mkdir()
        rows = {rank: ([], []) for rank in range(self.ranks)}
        now = np.full(self.ranks, float(first))
        for step in range(first, first + self.steps):
            now = self._step(step, now, rows)
        for rank, (steps, collectives) in rows.items():
            facts = {"rank": rank, "first": first, "last": first + self.steps - 1, "reached": first + self.steps}
            facts |= {"node": f"node{rank // self.node}", "state": "done", "format": 1, "time": BEGAN_NS / 1e9 + first}
            facts |= {"cost": {"idle_step_ms": self.unprofiled_ms}}
            (folder / f"rank{rank}.capture.json").write_text(json.dumps(facts))
            (folder / f"rank{rank}.steps.csv").write_text("\n".join([STEPS_HEADER, *steps]) + "\n")
            (folder / f"rank{rank}.collectives.csv").write_text("\n".join([COLLECTIVES_HEADER, *collectives]) + "\n")

    def _step(self, step, now, rows):
        began, communication = now.copy(), np.zeros(self.ranks)
        data = self.data_ms + self._more(self.slow_data)
        compute = self.compute_ms + self._more(self.slow_compute) / self.collectives
        now = now + data
        for number in range(self.collectives):
            start = now + compute
            small = number % 2 == 0  # all meet at the end of a step
            size = self.node if small else self.ranks
            groups = np.arange(self.ranks) // size
            last = np.array([start[groups == group].max() for group in range(groups.max() + 1)])
            end = last[groups] + self.transfer_ms
            self._note(step, (start, end), groups + 1 if small else groups, rows)
            communication += end - start
            now = end
        busy = compute * self.collectives + communication
        for rank, wall in enumerate(now - began):
            host = f"{rank},train,{step},{wall:.6f},{data[rank]:.6f},,,,,,,{wall - data[rank]:.6f}"
            idle = wall - busy[rank]
            work = f"{wall:.6f},{busy[rank]:.6f},{idle:.6f},{compute[rank] * self.collectives:.6f}"
            rows[rank][0].append(f"{host},{work},{communication[rank]:.6f},{communication[rank]:.6f},0.0,,,,,,,")
        return now

    def _note(self, step, times, groups, rows):
        start, end = times
        size = self.ranks // len(set(groups))
        for rank in range(self.ranks):
            span = end[rank] - start[rank]
            begin = BEGAN_NS + round((start[rank] + self.clock_ms.get(rank, 0.0)) * 1e6)
            bus = BYTES / span / 1e6 * 2 * (size - 1) / size
            where = f"{rank},{step},{begin},all_reduce,nccl,{groups[rank]},{size},float"
            rows[rank][1].append(f"{where},{BYTES},{span:.6f},{span:.6f},{bus:.6f},0,20")

    def _more(self, slow):
        return np.array([slow.get(rank, 0.0) for rank in range(self.ranks)])
