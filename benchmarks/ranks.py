"""What a rank that does not record pays, and how long it takes to compare very many that do."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import repeat
from pathlib import Path
from typing import Any

from comparison import Comparison, per_pass, say

import perfhooks

RANKS, WINDOWS, COLLECTIVES = 1024, 3, 50
"""As the issue asks; three steps of so many collectives in each window."""
CALLS = 1_000_000

GATHER = """
import json, sys, time
began = time.perf_counter()
from pathlib import Path
from perfhooks.analysis import ranks
data = ranks.gather(Path(sys.argv[1]))
found = ranks.findings(data)
took = time.perf_counter() - began
used = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps([took, used, len(json.dumps(data)) / 1e6, found[0]["rank"]]))
"""
REPORT = """
import json, sys, time
began = time.perf_counter()
from pathlib import Path
sys.argv = ["perfhooks", "report", sys.argv[1]]
from perfhooks.cli.app import app
app(standalone_mode=False)
took = time.perf_counter() - began
print(json.dumps([took, int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024]))
"""


def measure() -> list[Comparison]:
    """An idle step of a rank that records and of one that does not; the small files of 1,024 ranks."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from many_ranks import ManyRanks

    with tempfile.TemporaryDirectory() as folder:
        idle = (
            ("a rank that records, between its windows", idle_step(folder, ranks="all")),
            ("a rank that does not record", idle_step(folder, ranks=[7])),
        )
        say(f"writing a run of {RANKS} ranks")
        many = ManyRanks(ranks=RANKS, windows=WINDOWS, collectives=COLLECTIVES, node=8, slow_data={700: 60.0})
        run = many.write(Path(folder) / "run")
        say("comparing them")
        took, used, size, rank = measured(GATHER, run)
        if rank != 700:
            raise RuntimeError(f"rank 700 is slow, and rank {rank} was named")
        say("the whole report")
        report, report_used = measured(REPORT, run)
    title = f"{RANKS} ranks, {WINDOWS} windows"
    seconds = (("what is allowed", 20.0), ("ranks.gather", took), ("perfhooks report", report))
    memory = (
        ("what is allowed", 1000.0),
        ("ranks.gather", used),
        ("perfhooks report", report_used),
        ("its data", size),
    )
    return [
        Comparison(title="One idle step of one rank of many", unit="us", rows=idle),
        Comparison(title=f"{title}: time", unit="s", rows=seconds),
        Comparison(title=f"{title}: memory", unit="MB", rows=memory),
    ]


def idle_step(folder: str, **options: Any) -> float:
    say("idle steps")
    never = perfhooks.Schedule(wait=10**9, warmup=1, active=1)
    prof = perfhooks.Profiler(schedule=never, out=folder, run="idle", **options)
    prof.start()
    found = per_pass(lambda: repeat(None, CALLS), CALLS, prof.step)
    prof.pause()
    prof.abandon()  # or it tells at exit that no window came
    return found


def measured(script: str, run: Path) -> list[float]:
    done = subprocess.run([sys.executable, "-c", script, run], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found
