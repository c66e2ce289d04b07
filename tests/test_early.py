"""`perfhooks run` never ends empty-handed: short scripts, as `torch.utils.bottleneck` had them, leave a page."""

from __future__ import annotations

import csv
import gzip
import json
import signal
import textwrap
import threading

import pytest
import torch
from terminal import steps_of_mean

from perfhooks import Profiler
from perfhooks.core.schedule.unplanned import FromStartToStop
from perfhooks.record.launch import calls, early, profiling
from perfhooks.record.launch.command_line import Request
from perfhooks.record.launch.early import STEPS, StartupRecorder
from perfhooks.record.launch.step_detectors import Events
from perfhooks.record.loop import window
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.like_torch.results import TorchProfile
from perfhooks.report.finishing.leftovers import finish_all

pytestmark = pytest.mark.process

RUN = ["--run", "it"]
FAST = [*RUN, "--handler", "steps"]
PLANNED = ["--schedule", "skip_first=10 wait=0 warmup=2 active=3 repeat=1"]

MODULE = """
    import numpy as np
    import torch

    class Masking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

        def forward(self, x, mask):
            with torch.profiler.record_function("LABEL1: layers"):
                out = self.layers(x)
            with torch.profiler.record_function("LABEL2: masking"):
                limit = out.sum(axis=1).mean().item()
                for _ in range(32):
                    found = np.argwhere(mask.numpy() > limit)
            return out, torch.from_numpy(found)

    torch.manual_seed(0)
    out, found = Masking()(torch.rand(16, 8), torch.rand(120, 120, 120))
    print(repr(out.sum().item()), tuple(found.shape))
"""
INFERENCE = """
    import torch

    torch.manual_seed(0)
    net, total = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)).eval(), 0
    with torch.no_grad():
        for _ in range(60):
            total += net(torch.randn(128, 256)).sum()
    print(repr(total.item()))
"""
TEN_STEPS = """
    import torch

    torch.manual_seed(0)
    net, loss_of = torch.nn.Linear(64, 2), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(net(torch.randn(32, 64)), torch.randint(2, (32,)))
        loss.backward()
        optimizer.step()
    print(repr(loss.item()))
"""
MATMUL = """
    import sys
    import torch

    torch.set_num_threads(1)
    early, a = sys.modules["perfhooks.record.launch.step_signal"].current().early, torch.randn(200, 200)
    recorded = 0
    while not recorded or early.is_recording:
        a @ a
        recorded += early.is_recording
"""
NUMPY = """
    import sys
    import time
    import torch
    import numpy as np

    early, a = sys.modules["perfhooks.record.launch.step_signal"].current().early, np.random.rand(200, 200)
    while not early.is_recording:
        a @ a
    until = time.process_time() + 0.5
    while time.process_time() < until:
        a @ a
    early._until = 0.0
    while early.is_recording:
        a @ a
"""
UNHURRIED = """
    import sys

    if "perfhooks.record.launch.early" in sys.modules:
        sys.modules["perfhooks.record.launch.early"]._LONGEST_S = 1e9
        sys.modules["perfhooks.record.launch.startup"].LONGEST_WAIT_S = 200.0
"""
"""The first steps are recorded however long a busy machine takes for them."""


def script(folder, text, name="script.py"):
    (folder / name).write_text(textwrap.dedent(UNHURRIED) + textwrap.dedent(text))
    return name


def last_words(process):
    """The exit summary."""
    _, mark, text = process.stderr.rpartition("\nperfhooks: ")
    return (mark + text if mark else process.stderr).strip()


def told_by(folder):
    return json.loads((folder / "perf/it/run.json").read_text())["steps_by"]["what"]


def rows_of(folder, table):
    (file,) = (folder / "perf/it").glob(f"*/rank0.{table}.csv")
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def step_numbers(folder):
    return [row["step"] for row in rows_of(folder, "steps")]


def test_single_forward_pass_has_a_report(launch, run_script, tmp_path):
    """As the example of a module with two labels, of which numpy usually has the larger one."""
    name = script(tmp_path, MODULE, "module.py")
    launched = launch(*RUN, name)
    assert (launched.returncode, launched.stdout) == (0, run_script(MODULE).stdout), launched.stderr
    said = last_words(launched)
    assert "forward " in said
    assert (tmp_path / "perf/it/process-000000").is_dir()
    first, second = rows_of(tmp_path, "labels")[:2]
    assert {first["name"], second["name"]} == {"LABEL1: layers", "LABEL2: masking"}
    assert float(first["total_ms"]) >= float(second["total_ms"]), "the longer one first, also where one was paused"
    assert "recording " in said or "waited for a CPU" in said, "one warning at most, of a busy machine first"
    assert said.endswith("report.html")


def test_sixty_batches_without_a_loader_are_steps(launch, tmp_path):
    asked = ["--record-shapes", "--with-flops", "--handler", "trace", "--handler", "operators"]
    launched = launch(*FAST, *asked, script(tmp_path, INFERENCE))
    assert steps_of_mean(1, 5).search(last_words(launched)), launched.stderr
    assert told_by(tmp_path) == "call"
    assert step_numbers(tmp_path) == ["1", "2", "3", "4", "5"]
    flops = [float(row["flops"] or 0) for row in rows_of(tmp_path, "operators")]
    assert max(flops) > 0, "what was asked for holds here too"
    (trace,) = (tmp_path / "perf/it").glob("*/rank0.pt.trace.json*")
    assert "Input Dims" in (gzip.decompress if trace.suffix == ".gz" else bytes)(trace.read_bytes()).decode()


def test_ten_steps_without_a_loader_are_a_training(launch, run_script, tmp_path):
    name = script(tmp_path, TEN_STEPS)
    launched = launch(*FAST, name)
    assert (launched.returncode, launched.stdout) == (0, run_script(TEN_STEPS).stdout), launched.stderr
    assert steps_of_mean(2, 5).search(last_words(launched)), launched.stderr
    assert "recorded -> " not in launched.stderr, "the summary has the path"
    assert [path.name for path in (tmp_path / "perf/it").glob("*-0*")] == ["train-000002"], "in step 1 a profiler began"
    backward = [float(row["backward_ms"]) for row in rows_of(tmp_path, "steps")]
    assert min(backward) > 0, "also where a busy machine hides it"


def test_too_large_window_is_replaced_by_the_first_steps(launch, tmp_path):
    never = "from perfhooks.record.loop.ending import in_step\nin_step.SHORTEST_S = 600\n"  # nothing ends inside a step
    text = never + textwrap.dedent(TEN_STEPS.replace("range(10)", "range(20)"))
    launched = launch(*FAST, *PLANNED, "--max-trace-mb", "1e-9", script(tmp_path, text))
    assert "max_trace_mb=1e-09" in launched.stderr


def test_operators_without_steps_are_recorded_for_some_time(launch, tmp_path):
    launched = launch(*FAST, script(tmp_path, MATMUL))
    assert "% aten::mm" in last_words(launched), launched.stderr
    assert told_by(tmp_path) == "process"


def test_a_script_that_computes_without_torch_has_its_lines(launch, tmp_path):
    launched = launch(*FAST, script(tmp_path, NUMPY, "lines.py"))
    assert "no operator of torch was called" in last_words(launched), launched.stderr
    assert "script,lines.py:" in (tmp_path / "perf/it/rank0.startup.csv").read_text()


HANDLERS = """
    import os, signal, sys
    import torch

    net = torch.nn.Linear(4, 4)
    net(torch.ones(4))
    before = signal.getsignal(signal.SIGTERM)

    def expire(*_):
        raise TimeoutError

    def end(*arguments):
        # as Lightning's does: before us there was none, so there is nothing that ours should do
        if callable(before):
            before(*arguments)
        print("left")
        sys.exit(7)

    signal.signal(signal.SIGALRM, expire)
    signal.signal(signal.SIGTERM, end)
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        try:
            os.kill(os.getpid(), number)
            while True:
                net(torch.ones(4))
        except (TimeoutError, KeyboardInterrupt) as error:
            print(type(error).__name__)
"""


def test_signals_reach_the_program_during_its_first_steps(launch, tmp_path):
    launched = launch(*FAST, script(tmp_path, HANDLERS))
    assert (launched.returncode, "SystemError" in launched.stderr) == (7, False), launched.stderr
    assert launched.stdout.split() == ["TimeoutError", "KeyboardInterrupt", "left"]
    assert last_words(launched).endswith("perf/it"), launched.stderr


@pytest.mark.parametrize(("steps", "number"), [(20, signal.SIGTERM), (1, signal.SIGHUP)])
def test_unhandled_sigterm_keeps_the_first_steps(launch, tmp_path, steps, number):
    text = f"""
    import os, signal
    import torch

    net = torch.nn.Linear(4, 4)
    for _ in range({steps}):
        net(torch.ones(4))
    os.kill(os.getpid(), signal.{number.name})
    while True:
        net(torch.ones(4))
    """
    launched = launch(*FAST, script(tmp_path, text))
    assert launched.returncode == -number, launched.stderr
    list(finish_all(tmp_path / "perf/it"))
    assert step_numbers(tmp_path) == (["0"] if steps == 1 else ["1", "2", "3", "4", "5"])
    (capture,) = (tmp_path / "perf/it").glob("*/rank0.capture.json")
    assert json.loads(capture.read_text())["partial"] == (number.name if steps == 1 else None)
    assert (tmp_path / "perf/it/rank0.startup.csv").exists()


def test_forked_child_ends_normally_during_the_first_steps(launch, tmp_path):
    text = """
    import os, sys
    import torch

    net = torch.nn.Linear(4, 4)
    net(torch.ones(4))
    child = os.fork()
    if not child:
        net(torch.ones(4)).sum().backward()
        with torch.profiler.profile():
            net(torch.ones(4))
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    net(torch.ones(4))
    """
    launched = launch(*RUN, "--handler", "operators", script(tmp_path, text))
    assert (launched.returncode, launched.stdout) == (0, "3\n"), launched.stderr
    assert last_words(launched).endswith("perf/it"), launched.stderr
    counts = {row["name"]: row["count"] for row in rows_of(tmp_path, "operators")}
    assert counts["aten::linear"] == "2", "before and after the fork, and none of the child's"
    assert launched.stderr.count("starts a profiler of its own") == 1, "only the child hears its own"


def test_profiler_of_the_script_gets_all_its_events(launch, tmp_path):
    text = """
    import torch

    net = torch.nn.Linear(4, 4)
    net(torch.ones(4))
    with torch.profiler.profile() as profile:
        net(torch.ones(4))
    print(sum(event.count for event in profile.key_averages() if event.key == "aten::addmm"))
    """
    launched = launch(*FAST, script(tmp_path, text.replace("torch.ones(4)", "torch.ones(2, 4)")))
    assert (launched.returncode, launched.stdout) == (0, "1\n"), launched.stderr
    assert last_words(launched) == "perfhooks: nothing was recorded: the script starts a profiler of its own"


# --- what a step is ---


class Program:
    """What is heard of a program, and its first recording."""

    def __init__(self):
        self.heard = Events()
        self.early = StartupRecorder(self.heard, {}, bool)

    def run(self, events):
        """Each letter is an event: fetch, call of module A or B, backward, update, step of a settled way."""
        act = {
            "A": lambda: self.early.at_call(self.heard),
            "B": lambda: self.early.at_call(self.early),
            "b": self.early.at_backward,
            "s": lambda: self.early.at_step("optimizer"),
        }
        for event in events:
            if event == "f":
                self.heard.fetches += 1
                self.early.at_fetch()
            elif event == "u":
                self.heard.updates += 1
            else:
                act[event]()


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setattr(lifetime, "_registered", {})  # profilers of other tests in this process may wait for files
    monkeypatch.setattr(early, "has_busy_threads", lambda: False)  # and threads of pytest or of other tests compute
    monkeypatch.setattr(early, "_LONGEST_S", 1e9)
    made = Program()
    yield made
    made.early.drop()


@pytest.mark.parametrize(
    ("events", "told", "first", "reached"),
    [
        ("A", "process", 0, 0),
        ("ABbu", "process", 0, 0),
        ("AAA", "call", 1, 2),
        ("ABABAB", "call", 1, 2),
        ("fAfAfA", "batches", 1, 2),
        ("fABbu" * 4, "loader", 1, 3),
        ("ABbu" * 4, "optimizer", 1, 3),
        ("ABb" * 4, "backward", 1, 3),
        # the first update after two passes: what was told before it were halves of steps, and one has ended
        ("fAb" + "fAbu" + "fAbfAbu" * 3, "loader", 1, 3),
        # a sanity check of two batches comes first, and recording begins anew when a step has ended
        ("fAfA" + "fAbu" * 4, "loader", 1, 3),
        # two models take turns, and a round of updates is a step
        ("AbuBbu" + "AbuBbus" * 4, "optimizer", 0, 3),
        # an evaluation of six calls comes first
        ("A" * 7 + "fABbu" * 4, "loader", 1, 3),
    ],
)
def test_count_of_steps_restarts_at_a_stronger_end(program, events, told, first, reached):
    program.run(events)
    window = program.early.take()
    assert (program.early.mode, window.first, window.reached) == (told, first, reached), "the first step warms up"


def test_no_more_than_a_few_steps_are_recorded(program):
    program.run("A" * 100)
    assert not program.early.is_recording
    assert program.early.take().reached == STEPS


def test_kept_first_steps_are_not_recorded_again(program):
    """Calls alone may be what comes before a training: without an end, recording would begin anew with that."""
    program.run("AAA")
    assert program.early.take() is not None
    assert not program.early.is_listening
    program.run("fABbu" * 4)
    assert not program.early.is_recording
    assert program.early.take() is None


def test_program_with_unrecorded_steps_has_no_first_steps(program):
    """As where a profiler of its own recorded them: what comes later is no start."""
    program.run("s" * (STEPS - 1))
    assert program.early.is_listening
    program.run("s")
    assert not program.early.is_listening
    program.run("fABbu" * 4)
    assert program.early.take() is None


def test_program_without_a_recording_has_no_report(program):
    assert profiling.Profilers(Request()).keep(program.early, "the program ended", ()) is None


def test_another_window_frees_the_first_steps(program, tmp_path, monkeypatch):
    program.run("A" * 100)
    monkeypatch.undo()
    with Profiler(out=tmp_path, schedule="wait=0 warmup=0 active=1 repeat=1", on_trace_ready=lambda _: None) as prof:
        prof.step()
    assert program.early.take() is None


def test_call_changes_no_class_before_the_recording_can_begin(program, monkeypatch):
    """As where the program has not used its device yet: on some Pythons a class that is changed often becomes slow."""
    monkeypatch.setattr(calls, "would_start_device", lambda: True)
    told = []
    monkeypatch.setattr(calls, "_remaining", 100)
    calls.listen(lambda: told.append(program.early.at_first_call()), bool, slice)
    try:
        changes = []
        with monkeypatch.context() as watched:
            watched.setattr(calls, "_replace", lambda *change: changes.append(change))
            model = torch.nn.Identity()
            for _ in range(5):
                model(1)
        assert (len(told), changes) == (5, [])
    finally:
        calls.leave()


def test_profiler_of_the_program_finds_the_recorder_free(program):
    program.run("AA")
    program.early.drop()
    with TorchProfile() as own:
        torch.ones(3) + 1
    assert "aten::add" in {event.key for event in own.key_averages()}
    assert program.early.take() is None


def test_recording_waits_until_another_thread_has_ended_its_own(monkeypatch):
    """torch says by then that nobody records: two of twelve trainings crashed that evaluate after the first update."""
    stopping, may_stop, waited = threading.Event(), threading.Event(), []
    monkeypatch.setattr(torch.profiler.profile, "stop", lambda _: stopping.set() or may_stop.wait(60))
    phases = FromStartToStop(0)
    spare = window.Window(first=0, phases=phases, on_trace_ready=lambda _: None, recording={}, marks_steps=False)
    spare.yield_recorder = lambda: waited.append(may_stop.is_set())
    thread = threading.Thread(target=spare.stop)
    thread.start()
    assert stopping.wait(60)
    window.end_spare_windows()
    assert not window.recorder_busy(), "it gives way"
    spare.yield_recorder, gives_way = None, spare.yield_recorder
    assert window.recorder_busy(), "somebody's own window does not"
    spare.yield_recorder = gives_way
    may_stop.set()
    thread.join(60)
    window.end_spare_windows()
    assert waited == [False]
