"""Where the devices' time of recorded traces went, beside HolisticTraceAnalysis (HTA) and TraceLens.

    python benchmarks/peers.py --python peers/bin/python TRACE.json.gz ...

The printed table has the percentage of compute, exposed communication, exposed copies and idle time in the span from
the first to the last work of any device. HTA counts in whole microseconds, and reports one number for communication and
copies together. TraceLens counts memsets as compute, perfhooks counts them as copies.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import numpy as np

from perfhooks import trace
from perfhooks.trace.nesting import device, intervals

ASKED = """
import json, os, shutil, sys, tempfile
path, shares = sys.argv[1], {}
try:
    from TraceLens import TreePerfAnalyzer
    table = TreePerfAnalyzer.from_file(path).get_df_gpu_timeline()
    found = dict(zip(table["type"], table["percent"]))
    names = "computation_time exposed_comm_time exposed_memcpy_time idle_time"
    shares["TraceLens"] = [found[name] for name in names.split()]
except Exception as error:
    shares["TraceLens"] = type(error).__name__
try:
    from hta.trace_analysis import TraceAnalysis
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        table = TraceAnalysis({0: copy}, folder).get_temporal_breakdown(visualize=False).iloc[0]
    shares["HTA"] = [table[name] for name in ("compute_time_pctg", "non_compute_time_pctg", "idle_time_pctg")]
except Exception as error:
    shares["HTA"] = type(error).__name__
print("shares", json.dumps(shares))
"""
"""Runs where they are installed: both need versions of libraries that nobody else does."""


def ours(path: Path) -> list[float]:
    """Percent of the span: compute, exposed communication, exposed copies and memsets, idle."""
    found = trace.read(path)
    rows, classes = found.device_rows, device.classes(found)
    span = found.end[rows].max() - found.start[rows].min()
    taken, shares = np.empty((0, 2), np.int64), []
    for chosen in (classes == 0, classes == 1, classes > 1):
        both = intervals.joined(taken, intervals.of_slices(found, rows[chosen]))
        shares.append(100 * float(intervals.total(both) - intervals.total(taken)) / span)
        taken = both
    return [*shares, 100 - sum(shares)]


def theirs(python: Path, path: Path) -> dict[str, list[float] | str]:
    """The same by HTA (without communication and copies apart) and TraceLens; or the error that they end with."""
    command = [str(python), "-c", ASKED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("shares "))
    found: dict[str, list[float] | str] = json.loads(line.removeprefix("shares "))
    return found


def _written(shares: list[float] | str) -> str:
    return shares if isinstance(shares, str) else " / ".join(f"{share:.1f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="the Python of an environment that has both")
    parser.add_argument("traces", type=Path, nargs="+")
    given = parser.parse_args()
    print("| trace | perfhooks | TraceLens | HTA |\n|---|---|---|---|")
    for path in given.traces:
        found = theirs(given.python, path)
        name = path.name.removesuffix(".gz").removesuffix(".json")
        print(f"| {name} | {_written(ours(path))} | {_written(found['TraceLens'])} | {_written(found['HTA'])} |")


if __name__ == "__main__":
    main()
