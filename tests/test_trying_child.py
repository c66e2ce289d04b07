"""A recording is data: what an operator of it does to its process, its memory or its time costs that operator alone."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from test_trying import CPU, MM, nothing, offer, plain, signature, tensor

from perfhooks.run.circumstances import Circumstances
from perfhooks.trials import bench, trial, variants, written

pytestmark = pytest.mark.process

ADD = signature("add", tensor(8, 8), tensor(8, 8), plain("1"))
SUB = signature("sub", tensor(8, 8), tensor(8, 8), plain("1"))


def tried(*signatures, **wishes):
    return trial.run(offer(*((each, 1, 1) for each in signatures)), 100.0, wish(**wishes), Circumstances())


def wish(**wishes):
    return bench.TrialOptions(device=CPU, **wishes)


class Same:
    """The same call."""

    name, tolerance = "same", 1

    def suits(self, call):
        return True

    def changed(self, call):
        return call.with_tensors(torch.clone)


class Dies(Same):
    """Of a signal, where the call is an addition."""

    name = "dies"

    def changed(self, call):
        if call.name == "aten::add":
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().changed(call)


class Leaves(Same):
    """As libraries do that cannot have another thread."""

    name = "leaves"

    def changed(self, call):
        os._exit(7)


def test_crash_has_a_reason_and_keeps_other_measurements(monkeypatch):
    monkeypatch.setattr(variants, "VARIANTS", (Same(), Dies(), Leaves(), Same()))
    rows = tried(MM, ADD, SUB, seconds=60).rows
    assert [row.alone_ms is not None for row in rows] == [True] * 3
    problems = [[each.problem for each in row.tried] for row in rows]
    left = "crashed the child process: exit code 7"
    assert problems == [["", died, left, ""] for died in ("", "crashed the child process: SIGSEGV", "")]
    assert all(each.timing is not None for row in rows for each in row.tried if not each.problem)
    assert "not run: crashed the child process: SIGSEGV" in written.table(trial_of(rows))["verdict"].to_list()


def trial_of(rows):
    return trial.Trial(cut=offer(), step_ms=1.0, device="cpu", rows=rows)


def test_crashing_operator_is_a_row_and_the_next_operator_runs(monkeypatch):
    monkeypatch.setattr(bench.inputs, "build", dying(bench.inputs.build))
    first, second = tried(ADD, MM, variants=("bf16",), seconds=60).rows
    assert first.problem == "crashed the child process: SIGABRT"
    assert second.tried[0].timing is not None


def dying(build):
    def built(again, device):
        if again == ADD and device == CPU:
            os.abort()
        return build(again, device)

    return built


class Hangs(Same):
    """Longer than anybody waits, and takes no notice of Ctrl-C."""

    name = "hangs"

    def changed(self, call):
        time.sleep(3600)


def test_time_limit_holds_for_single_calls(monkeypatch):
    monkeypatch.setattr(variants, "VARIANTS", (Hangs(), Same()))
    began = time.monotonic()
    (row,) = tried(MM, seconds=40, limit=1).rows
    assert time.monotonic() - began < 300, "a child takes seconds to start on a busy machine, a call would take an hour"
    hung, same = row.tried
    assert hung.problem.startswith("exceeded its time limit of ")
    assert hung.problem.endswith("(--seconds)")
    assert same.timing is not None


def test_exhausted_time_is_stated(monkeypatch):
    monkeypatch.setattr(variants, "VARIANTS", (Hangs(),))
    done = tried(MM, ADD, SUB, seconds=0.5)
    assert done.is_out_of_time
    assert len(done.rows) < 3
    assert "Time limit reached before all operators had been tried: increase --seconds." in written.sentences(done)


def test_a_parent_that_is_killed_leaves_no_child_behind(tmp_path):
    script = """
import os, sys, time
from contextlib import contextmanager
from perfhooks.trials.child import ChildProcess

@contextmanager
def answering():
    yield lambda: os.getpid()

child = ChildProcess(answering, forks=True)
print(child.ask(60), flush=True)
time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()
    while psutil.pid_exists(child):  # a test that waits for ever is ended
        time.sleep(0.01)


# --- memory ---

LARGE = 10_000
GREEDY = {
    "outer": signature("outer", tensor(LARGE), tensor(LARGE)),
    "clone": signature("clone", tensor(LARGE, LARGE, strides=(0, 0)), nothing()),
    "arange": signature("arange", plain("100000000"), plain("6"), plain("0"), nothing(), plain("False")),
    "eye": signature("eye", plain("10000"), plain("6"), plain("0"), nothing(), plain("False")),
    "repeat": signature("repeat", tensor(LARGE), plain("[10000, 1]", "ScalarList")),
    "zeros": signature("zeros", plain("[10000, 10000]", "ScalarList"), plain("6"), plain("0"), nothing(), nothing()),
    "expand": signature("expand", tensor(1, 1), plain("[10000, 10000]", "ScalarList"), plain("False")),
    "mv": signature("mv", tensor(LARGE, LARGE, strides=(0, 0)), tensor(LARGE)),
    "add_": signature("add_", tensor(8000, 8000), tensor(1), plain("1")),
    "pad": signature("constant_pad_nd", tensor(9), plain("[50000000, 50000000]", "ScalarList"), plain("0")),
}
"""Small inputs, or such that are in memory once, and 200 MB or more that come of them or are copied meanwhile."""


MEASURED = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_trying_child import GREEDY, MM, signature, tensor, tried

def taken(memory, *signatures):
    # the first child of a program tells what children have to begin with, as the largest of all is what is told
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    rows = tried(*signatures, memory=memory, seconds=200, limit=99, variants=("threads",)).rows
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(memory, (after - before) << 10, *(row.problem for row in rows), sep="|")

taken(0.01, MM)
taken(0.01, *GREEDY.values())
taken(0.3, signature("outer", tensor(5000), tensor(5000)))
"""


def test_memory_counts_results_and_copies(run_script):
    """Where inputs alone were counted, each took 0.4 GB or more; what is allowed can be taken nevertheless."""
    done = run_script(MEASURED, timeout=300)
    assert done.returncode == 0, done.stderr
    _, refused, allowed = (line.split("|") for line in done.stdout.splitlines())
    assert [problem for problem in refused[2:] if "--memory" not in problem] == []
    assert len(refused[2:]) == len(GREEDY)
    assert int(refused[1]) < 0.01 * 2**30 + 200e6
    assert allowed[2:] == [""]
    assert 100e6 < int(allowed[1]) < 0.3 * 2**30 + 200e6


def test_a_child_that_dies_leaves_no_core_on_the_disk():
    with trial.contextlib.closing(trial.ChildProcess(limits, forks=True)) as child:
        assert child.ask(200)[0] == 0


@trial.contextlib.contextmanager
def limits():
    bench.safe.limit_memory(1.0, CPU)
    yield lambda: resource.getrlimit(resource.RLIMIT_CORE)
