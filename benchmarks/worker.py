"""What the worker needs to turn the window of `perfhooks demo` into everything it becomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from comparison import Comparison, say

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 5

# The interpreter and its libraries are there before the clock starts; one thread, as in the worker. The first round
# warms up what is made once in a process.
PROBE = """
import io, json, sys, time
from pathlib import Path
import perfhooks.report.page.window_data
from perfhooks.report import handlers
from perfhooks import trace
from perfhooks.run.capture import Place
place = Place(Path(sys.argv[1]))
capture = place.load()
def finish():
    began = time.process_time()
    read = trace.read(place.artifact("pt.trace.json.gz"))
    after = time.process_time()
    for wanted in capture.handlers:
        if wanted["type"] != "trace":
            for artifact in handlers.build(wanted).artifacts(capture, read):
                artifact.write(io.BytesIO())
    return after - began, time.process_time() - began
print(json.dumps(min((finish() for _ in range(int(sys.argv[2]))), key=lambda taken: taken[1])))
"""


def measure() -> Iterator[Comparison]:
    """Milliseconds of one core."""
    from perfhooks.cli import demo

    with tempfile.TemporaryDirectory() as name:
        say("the demo")
        demo.run(Path(name))
        (window,) = {path.resolve() for path in Path(name).glob("*/train-*")}
        environment = os.environ | {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", PROBE, window, str(ROUNDS)],
            capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        reading, everything = json.loads(done.stdout)
    rows = (("reading its trace", 1e3 * reading), ("reading, all tables, files and page data", 1e3 * everything))
    yield Comparison(title="The worker, for the window of the demo", unit="ms", rows=rows)
