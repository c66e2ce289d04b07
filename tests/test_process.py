"""Who is called when a process ends or forks: one list, in an order that is written down."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfhooks.core import clocks

PACKAGE = Path(__file__).parents[1] / "perfhooks"

ORDER = """
import atexit, os, sys
from perfhooks.core import process
from perfhooks.core.process import Child, End

atexit.register(lambda: print("what was registered before"))
process.at_end(End.PROFILERS, lambda: print("profilers"))
process.at_end(End.WATCHER, lambda: (print("watcher"), 1 / 0))
process.at_end(End.COUNTS, lambda: print("forgotten"))
process.at_end(End.COUNTS, lambda: print("counts"))
process.in_child(Child.STEPS, lambda: print("steps", flush=True))
process.in_child(Child.SIGNALS, lambda: print("signals"))
process.around_forks(lambda: print("about to fork", flush=True), lambda: forked.append("have forked"))
print("begin", flush=True)
forked = []
if not os.fork():
    os._exit(0)
os.wait()
print(*forked)
"""


@pytest.mark.process
def test_work_at_forks_and_at_the_end_keeps_its_order():
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True, check=False, timeout=300)
    words = ["begin", "about to fork", "signals", "steps", "have forked"]
    words += ["counts", "watcher", "profilers", "what was registered before"]
    assert done.stdout.splitlines() == words
    assert "ZeroDivisionError" in done.stderr


def test_only_two_modules_register_for_ends_and_forks():
    pattern = re.compile(r"\batexit\.|\bregister_at_fork\b|_register_atexit")
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if pattern.search(path.read_text())}
    # its first handler is called last: it prints the exit summary
    assert found == {"core/process.py", "record/launch/site/sitecustomize.py"}


def test_threads_are_started_only_in_listed_modules():
    pattern = re.compile(r"threading\.(?:Thread|Timer)\(|start_new_thread\(")
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if pattern.search(path.read_text())}
    in_training = {
        "record/watch/watcher.py",
        "record/launch/startup.py",
        "record/loop/ending/in_step.py",
        "record/loop/limits/run_opening.py",
        "record/launch/recordings.py",
        "record/loop/labelling.py",
        "record/loop/ending/signals.py",
    }
    # the worker, a terminal, the process that samples loader workers, and a trial of a loader
    elsewhere = {
        "report/finishing/serving.py",
        "cli/actions/top.py",
        "record/workers/interpreter.py",
        "record/workers/layout.py",
        "trials/loader_runner.py",
    }
    assert found == in_training | elsewhere
    said = (PACKAGE / "core/process.py").read_text(encoding="utf-8")
    assert all(path.removesuffix(".py").replace("/", ".").removeprefix("record.") in said for path in in_training)


def test_interpreter_without_forks_works(monkeypatch):
    """Windows has none."""
    from perfhooks.core import process

    monkeypatch.delattr(os, "register_at_fork")
    process.around_forks(lambda: None, lambda: None)


def test_sleep_is_that_of_the_program(monkeypatch):
    """gevent replaces it, to let its other threads run meanwhile."""
    naps = []
    monkeypatch.setattr("time.sleep", naps.append)
    clocks.time.sleep(5)
    assert naps == [5]
