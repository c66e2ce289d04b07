"""Measure what profiling costs, the peers and perfhooks in one run.

Examples: ``python benchmarks/run.py``, ``python benchmarks/run.py idle stall``.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import warnings

from comparison import machine

GROUPS = {
    "idle": ("idle", "a step while nothing is recorded"),
    "watch": ("watching", "what watching the steps takes of a core, over a minute at each of three paces"),
    "slow": (
        "slow_causes",
        "fourteen planted causes of slow steps: what is said of them, beside none and six busy programs",
    ),
    "run": ("launching", "perfhooks run while nothing is recorded: a fetch, an update, the start of a Python"),
    "launch": ("launch_cost", "perfhooks run with both windows and the report: CPU by process and phase, memory"),
    "lightning": ("lightning_fit", "a step of a Lightning fit while nothing is recorded"),
    "operators": ("operator_table", "the operator table of a capture"),
    "trace": ("trace_engine", "reading a trace and making its tables: a window, a gigabyte, ten million events"),
    "gpu": ("gpu_trace", "reading a generated GPU recording and making everything of it, wall time"),
    "ranks": ("ranks", "many ranks: a step of one that does not record, a report over 1,024"),
    "frontier": ("frontier", "50 planted delays on gloo ranks, and equal ranks beside none and six busy programs"),
    "compare": ("compare", "30 pairs of equal trainings and five planted changes: what is said, and how fast"),
    "worker": ("worker", "what the worker needs for the window of the demo"),
    "windows": ("long_run", "finishing one more window of a run that has had 100, 1,000 or 10,000"),
    "second": ("second_window", "what the second window, with stacks and shapes, takes of a training"),
    "stall": ("stall", "how long the loop stands still when a window ends"),
}


def main() -> None:
    """Print a table for each group that was asked for."""
    described = "; ".join(f"{name}: {what}" for name, (_, what) in GROUPS.items())
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], epilog=described)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"some of {', '.join(GROUPS)} (default: all)")
    groups = parser.parse_args().groups or list(GROUPS)
    for unknown in set(groups) - set(GROUPS):
        parser.error(f"no group is called {unknown!r}; there are {', '.join(GROUPS)}")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch is imported
    logging.getLogger("perfhooks").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*Profiler clears events", category=UserWarning)
    print(machine())
    for group in groups:
        for comparison in importlib.import_module(GROUPS[group][0]).measure():
            print(f"\n{comparison}", flush=True)


if __name__ == "__main__":
    main()
