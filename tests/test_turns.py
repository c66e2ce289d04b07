"""Two commands that take turns: held and let go, and left as they were by all that may happen meanwhile."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import held_training
import msgspec
import numpy as np
import psutil
import pytest
import torch
import warm
from typer.testing import CliRunner

from perfhooks.analysis.comparison import turns
from perfhooks.analysis.comparison.turns import Block
from perfhooks.cli.app import app
from perfhooks.cli.turns import alternation, freezing, program, written
from perfhooks.cli.turns.program import Program
from perfhooks.core.errors import PerfhooksError
from perfhooks.record.launch import turns as held_turns
from perfhooks.record.launch.command_line import Request, environment
from perfhooks.record.launch.turns import HeldSteps, Turn

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
SCRIPT = HERE / "held_training.py"
RANKS = HERE / "held_ranks_training.py"
STEPS = 1500
WORK = 2000
"""Of a step: some 0.1 ms."""


@pytest.fixture
def short():
    """A folder for sockets, whose paths may have 107 bytes: pytest's own have more."""
    with tempfile.TemporaryDirectory(prefix="turns-") as folder:
        yield Path(folder)


OWNER = SimpleNamespace(
    start=lambda words, **how: subprocess.Popen(words, start_new_session=True, **how),
    end_all=lambda _: None,
    check=lambda: None,
    status=lambda _: None,
)
"""Takes the place of the supervisor: the programs are children of the test."""


def set_turns(monkeypatch, seconds):
    for name in ("SHORT_S", "LONG_S"):
        monkeypatch.setattr(alternation, name, seconds)


@pytest.fixture
def compare(tmp_path, short, monkeypatch):
    """`perfhooks compare --run` in the test's folder, with turns of a hundredth of a second."""
    set_turns(monkeypatch, 0.01)
    monkeypatch.setattr("tempfile.tempdir", str(short))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return lambda *words: CliRunner().invoke(app, ["compare", *map(str, words)])


def training(steps=STEPS, work=WORK, log="", kind=""):
    return f"{SCRIPT} {steps} {work} '{log}' {kind}"


def sides(tmp_path, **how):
    """Both commands, each of which logs its steps."""
    return training(log=tmp_path / "a", **how), training(log=tmp_path / "b", **how)


def steps_of(tmp_path, name):
    """All steps of a side that came after its first one, at which it is held."""
    return [tuple(step) for log in tmp_path.glob(f"{name}.*") for step in json.loads(log.read_text())[1:]]


def refused(done):
    assert isinstance(done.exception, PerfhooksError), done.output
    return " ".join(str(done.exception).split())


@pytest.fixture
def few(monkeypatch):
    """As many pairs as it takes to ask for a verdict, even if a busy machine shows earlier that steps are too few."""
    monkeypatch.setattr(alternation, "MOST_PAIRS", alternation.FEWEST_PAIRS)
    monkeypatch.setattr(alternation.Alternation, "_is_over", False)


@pytest.mark.usefixtures("few")
def test_commands_alternate_strictly_and_end_normally(compare, tmp_path):
    """No step of one is made while the other makes one, by the programs' own clocks; A's end ends the turns."""
    a, b = sides(tmp_path, steps=STEPS)
    done = compare("--run", a, "--", b)
    assert done.exit_code == 0, done.output
    times = sorted((step, name) for name in "ab" for step in steps_of(tmp_path, name))
    assert len(times) == 2 * alternation.FEWEST_PAIRS * (STEPS - 1)
    assert [(one, other) for (one, _), (other, _) in itertools.pairwise(times) if other[0] < one[1]] == []
    turns = [name for name, _ in itertools.groupby(name for _, name in times)]
    assert len(turns) > 10 * alternation.FEWEST_PAIRS


def test_the_slower_command_is_found_and_ends_with_its_exit_code(compare, tmp_path):
    done = compare("--run", training(), "--", training(work=8 * WORK), "--fail-if-slower", "2%")
    assert done.exit_code == 3, done.output
    first, *rest = done.output.splitlines()
    assert first.startswith("Slower: ")
    assert " step takes " in first, "in CPU time instead, where other programs keep the processors"
    (ended,) = filter(None, (re.search(r"(\d+) programs ended with exit code 0\.", line) for line in rest))
    assert int(ended[1]) in range(6, 18, 2), "three pairs at least, and as many as it takes"


def test_json_has_the_verdict_and_all_programs(compare):
    """B is A with an eighth of the work, so it is faster also on a busy machine, and that is no failure."""
    done = compare("--run", training(work=8 * WORK), "--", training(), "--fail-if-slower", "2%", "-f", "json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert said["verdict"]["outcome"] == "faster"
    assert said["verdict"]["typical"]["ratio"] < 0.6
    assert {each["exit_code"] for each in said["programs"]} == {0}
    assert [each["side"] for each in said["programs"]][:6] == ["A", "B", "B", "A", "A", "B"]


@pytest.mark.usefixtures("few")
def test_in_turns_runs_the_commands_sequentially(compare, tmp_path):
    """With --in-turns no program begins before the other one has ended."""
    a, b = sides(tmp_path)
    done = compare("--run", a, "--", b, "--in-turns")
    assert done.exit_code == 0, done.output
    spans = sorted(
        (min(log)[0], max(log)[1]) for log in map(json.loads, (p.read_text() for p in tmp_path.glob("?.0.*")))
    )
    assert len(spans) == 2 * alternation.FEWEST_PAIRS
    assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))


@pytest.mark.parametrize("bound", [("--steps", "1500"), ("--seconds", "0.5")])
def test_endless_programs_are_ended_on_request(compare, bound, monkeypatch):
    """They get SIGTERM, which is said, and no exit code of theirs is a failure."""

    def take(side, real=Program._take):
        """A pause of a program by a busy machine is not half a second of its steps."""
        for rank, end in side._held.items():
            side._held[rank] = msgspec.structs.replace(end, wall_ns=min(end.wall_ns, 30_000_000))
        real(side)

    monkeypatch.setattr(Program, "_take", take)
    done = compare("--run", training(10**9), "--", training(10**9, work=3 * WORK), *bound, "-f", "json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert {(each["ended"], each["exit_code"]) for each in said["programs"]} == {(True, -signal.SIGTERM)}


def test_command_without_steps_is_one_line_and_ends_the_other(compare, tmp_path):
    (tmp_path / "no_steps.py").write_text("")
    done = compare("--run", training(10**9), "--", tmp_path / "no_steps.py")
    assert "B made no steps that perfhooks detects: no Python of this command imported torch" in refused(done)
    assert programs_below() == []


def test_commands_without_detected_steps_are_reported_once(compare, tmp_path, monkeypatch):
    """They end when it has been said: nothing else would end this test."""
    said = tmp_path / "said"
    (tmp_path / "unseen.py").write_text(
        f"import pathlib, time\nwhile not pathlib.Path({str(said)!r}).exists():\n    time.sleep(0.01)\n"
    )
    monkeypatch.setattr(alternation, "PATIENCE_S", 0.3)
    lines = []
    monkeypatch.setattr("perfhooks.cli.actions.turns.typer.echo", lambda text, **_: (lines.append(text), said.touch()))
    done = compare("--run", tmp_path / "unseen.py", "--", tmp_path / "unseen.py")
    assert "made no steps that perfhooks detects" in refused(done)
    (line,) = (each for each in lines if each.startswith("perfhooks: "))
    assert "A and B made no steps that perfhooks detects; Ctrl-C ends the comparison" in line


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("fail", ()), ("slow_fail", ("--seconds", "60"))],  # the second one ends later than its socket, as after a signal
)
def test_a_command_that_fails_ends_all_with_its_last_lines(compare, kind, bound, monkeypatch):
    monkeypatch.setattr(program, "GRACE_S", 100.0)  # a busy machine may need it to end a Python
    done = compare("--run", training(10**9), "--", training(kind=kind), *bound)
    assert done.exit_code == 1, done.output
    assert "B: the disk is full" in done.output
    assert "B ended with exit code 1, so no more pairs were started" in done.output
    assert programs_below() == []


def programs_below():
    found = []
    for each in psutil.Process().children():
        # one that has ended has no command line, and those of other tests may end now
        with contextlib.suppress(psutil.NoSuchProcess):
            if str(SCRIPT) in each.cmdline():
                found.append(each)
    return found


def test_too_few_steps_are_no_comparison(compare):
    done = compare("--run", training(4), "--", training(4))
    said = refused(done)
    assert "made too few steps to compare: its first steps do not count, and after them there was time for " in said
    (left,) = re.findall(r"for (\d+) blocks?, but 5 are needed; let it train for longer", said)
    assert int(left) < turns.LEAST_BLOCKS


LONG = """
import time, torch
optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1)
while True:
    optimizer.step()
    time.sleep(0.4)
"""


def test_steps_too_long_for_the_limit_end_the_comparison_early(compare, tmp_path):
    (tmp_path / "long.py").write_text(LONG)
    said = refused(compare("--run", training(10**9), "--", tmp_path / "long.py", "--seconds", "2"))
    assert re.search(r"a step of B takes [\d.]+ m?s, so --seconds 2 ends it after too few steps to compare; use", said)


def test_suggested_seconds_include_slow_first_steps():
    program = SimpleNamespace(command=SimpleNamespace(name="A"), blocks=[Block(1, 10**7, 10**7, 10**7, None)] * 2)
    program.steps, program.seconds = 2, 7.99
    limited = SimpleNamespace(plan=SimpleNamespace(seconds=8))
    with pytest.raises(PerfhooksError, match="--seconds 8 ends it after too few steps to compare; use --seconds 10"):
        alternation.Alternation._check_limit(limited, program)
    assert programs_below() == []


def test_enough_steps_end_no_comparison_although_the_machine_was_stopped():
    """The steps of 10 ms took 40 s in all, of which the machine was stopped for most."""
    program = SimpleNamespace(command=SimpleNamespace(name="A"), blocks=[Block(1, 10**7, 10**7, 10**7, None)] * 2)
    program.steps, program.seconds = 500, 40.0
    limited = SimpleNamespace(plan=SimpleNamespace(seconds=8))
    alternation.Alternation._check_limit(limited, program)


@pytest.mark.parametrize(
    ("spread", "pairs", "shortage", "line"),
    [
        (0.001, 3, "", "The same, "),
        (0.1, 4, "", "Undecided: "),
        (0.5, 1, "100 steps are too few, about 1,700 would do: let each command train for longer", None),
        (9.0, 1, "100 steps are too few, and too uneven: let each command train for longer", None),
    ],
)
def test_too_uneven_steps_end_after_few_pairs(monkeypatch, spread, pairs, shortage, line):
    rng = np.random.default_rng(0)
    a, b = (program.Command(name=name, label="", words=[], folder=HERE) for name in "AB")
    made = alternation.Alternation(plan=alternation.Plan(a=a, b=b, tolerance=0.02), folder=HERE, owner=OWNER)

    def add_pair(_):
        for command in (a, b):
            blocks = [Block(8, *3 * [round(1e7 * math.exp(rng.normal(0, spread)))], 0) for _ in range(12)]
            facts = {"steps": 100, "pids": [], "mark_end": lambda: None, "is_ended": True}
            made.programs.append(SimpleNamespace(command=command, blocks=blocks, **facts))
        made._count(made.programs[-2:])

    monkeypatch.setattr(alternation.Alternation, "_add_pair", add_pair)
    made.run()
    assert (len(made.pairs), made.shortage) == (pairs, shortage)
    bounded = alternation.Alternation(**vars(made) | {"plan": replace(made.plan, seconds=5)})
    limit = "use a larger --seconds or --steps"
    assert bounded.shortage == shortage.replace("let each command train for longer", limit)
    result = alternation.ComparisonResult(made.plan, made.judgement, made.shortage, [], None)
    assert next(written.lines(result)).startswith(line or f"Undecided: {shortage}.")


def test_git_revision_can_be_a_side(compare, tmp_path):
    """Or both sides: the first commit does eight times the work of the second; their worktrees are gone afterwards."""
    git("init", "-q")
    file = Path("train.py")
    code = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport held_training\nheld_training.main(1500, {{}})\n"
    for work in (8 * WORK, WORK):
        file.write_text(code.format(work))
        git("add", "train.py")
        git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "work")
    file.write_text("no Python")
    done = compare("--run-at", "HEAD~1", "train.py", "--", "--run-at", "HEAD", "train.py", "--format", "markdown")
    assert "**Faster: " in done.output
    assert len(git("worktree", "list").splitlines()) == 1
    for words in (["--run-at=nowhere", "train.py", "--"], ["--run", "train.py", "--", "--run-at", "nowhere"]):
        assert "git has no revision 'nowhere'" in refused(compare(*words, "train.py"))


def git(*words):
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--run", "a"), "one command on either side of --"),
        (("--run", "a", "--", "b", "c"), "one command on either side of --"),
        (("--run", "'", "--", "b"), "is no command"),
        (("--run", "nothing.py", "--", "b"), "there is no script 'nothing.py'"),
        (("--run", "true", "--", "true", "--save", "x"), "choose either --run"),
        (("--run", "true", "--", "true", "--steps", "0"), "steps must be more than 0"),
        (("a", "b", "--in-turns"), "need two commands"),
        (("a", "b", "--steps", "5"), "need two commands"),
        (("a", "b", "--seconds", "5"), "need two commands"),
    ],
)
def test_incomparable_commands_are_rejected(compare, words, said):
    assert said in refused(compare(*words))


def test_ctrl_c_ends_both_and_shows_the_result_so_far(short):
    words = [sys.executable, "-m", "perfhooks", "compare", "--run", training(10**9), "--", training(10**9)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(short)})
    own = psutil.Process(process.pid)
    until(lambda: len(own.children(recursive=True)) >= 3)
    children = own.children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert out.startswith("Undecided: ")
    assert not any(child.is_running() for child in children)


# --- trainings of torch, whose steps nobody tells ---


class Started(warm.Process):
    """A script in a process that has imported torch, as `subprocess.Popen` would start it."""

    others = ()
    """Ranks besides the first one."""

    def poll(self):
        codes = [super().poll(), *(other.poll() for other in self.others)]
        return None if None in codes else max(codes)


@pytest.fixture
def warm_programs(channel, monkeypatch):
    """Programs are such scripts, some of them on two ranks."""
    begun = []

    def popen(words, *, cwd, env, **_):
        assert words[0] == sys.executable
        of_ranks = warm.of_ranks() if words[1:] == [str(RANKS)] else [{}]
        command = (channel, HERE / "warm_launch.py", *words[1:])
        first, *others = (Started(*command, folder=cwd, environment=env | own, is_leader=True) for own in of_ranks)
        first.others = others
        begun.extend([first, *others])
        return first

    monkeypatch.setattr(program.subprocess, "Popen", popen)
    yield begun
    for process in begun:
        process.close()


def pair(folder, *words, in_turns=False):
    """One pair of programs that have taken turns to their ends, or the first one alone."""
    commands = [
        program.Command(name=name, label="", words=[sys.executable, *map(str, words)], folder=folder) for name in "AB"
    ]
    plan = alternation.Plan(a=commands[0], b=commands[1], tolerance=0.02, in_turns=in_turns)
    made = alternation.Alternation(plan=plan, folder=folder, owner=OWNER)
    programs = [program.Program(command, folder, 1, OWNER) for command in commands[: 1 if in_turns else 2]]
    made._take_turns(programs)
    codes = [each.wait() for each in programs]
    for each in programs:
        each.close()
    return programs, codes


@pytest.mark.parametrize("kind", ["raw", "fork", "gan", "no_loader", "inference"])
def test_interleaved_trainings_print_the_same_as_single_runs(channel, short, kind, monkeypatch, warm_programs):
    """Loaders with workers, several optimizers, none at all; and their losses are the same to the last digit."""
    set_turns(monkeypatch, 0.0)
    programs, codes = pair(short, HERE / "launched_training.py", kind)
    assert codes == [0, 0]
    assert min(len(each.blocks) for each in programs) > 5
    alone = warm.run(channel, HERE / "launched_training.py", kind, timeout=120)
    assert [process.stdout.read() for process in warm_programs] == [alone.stdout] * 2
    assert not (short / "perf").exists()


def test_ranks_are_held_at_the_same_step(short, monkeypatch, warm_programs):
    """Two ranks average gradients at each step: held at different ones they would wait for each other."""
    set_turns(monkeypatch, 0.01)
    programs, codes = pair(short, RANKS)
    assert codes == [0, 0]
    said = [process.stdout.read() for process in warm_programs]
    assert [each[0] for each in said] == ["0", "1"] * 2
    assert said[:2] == said[2:]
    for each in programs:
        assert len(each.blocks) > 5
        assert each.notes == []


# --- the held side, and one who says when it is its turn ---


class Master:
    """Takes the place of `perfhooks compare`."""

    def __init__(self, folder, *words):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{folder}/turns")
        self.listener.listen()
        asked = environment(Request(turns=f"{folder}/turns"), os.environ)
        self.process = subprocess.Popen([sys.executable, SCRIPT, *map(str, words)], env=asked)
        self.connection, _ = self.listener.accept()
        self.lines = self.connection.makefile("rb")

    def held(self):
        return json.loads(self.lines.readline())

    def answer(self, steps, **more):
        self.connection.sendall(json.dumps({"steps": steps, **more}).encode() + b"\n")

    def leave(self):
        self.lines.close()
        self.connection.close()
        self.listener.close()


@pytest.fixture
def master(short):
    begun = []

    def begin(*words):
        begun.append(Master(short, *words))
        return begun[-1]

    yield begin
    for each in begun:
        each.process.kill()
        each.process.wait()
        each.leave()


def test_block_has_the_requested_steps_and_reports_their_time(master):
    side = master(12, WORK)
    assert side.held()["steps"] == 1
    for steps in (1, 3, 4):
        side.answer(steps)
        held = side.held()
        assert held["steps"] == steps
        assert min(held["wall_ns"], held["cpu_ns"], held["busy_ns"]) > 0
    side.answer(100)
    assert side.process.wait(60) == 0


def test_first_steps_of_a_block_are_not_timed(master, tmp_path):
    """By the program's own clock: no more than the steps after them fits into what is said."""
    side = master(12, WORK, tmp_path / "log")
    side.held()
    side.answer(3, lead=2)
    held = side.held()
    assert held["steps"] == 3
    side.answer(100)
    assert side.process.wait(60) == 0
    (log,) = tmp_path.glob("log.*")
    steps = json.loads(log.read_text())
    assert held["wall_ns"] >= steps[5][1] - steps[3][0]
    assert held["wall_ns"] <= steps[5][1] - steps[2][1] + steps[6][0] - steps[5][1]


HAS_TWO = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


@pytest.mark.skipif(not HAS_TWO, reason="there is one processor, or none can be chosen")
def test_block_runs_on_the_last_cpu_of_the_other_program(master):
    """A system leaves a thread where it is: of turns that are sent to either of two it would be right in one half."""
    side = master(1000, 10)
    allowed, is_there = os.sched_getaffinity(side.process.pid), []
    side.held()
    for number in range(20):
        asked = sorted(allowed)[number % 2]
        side.answer(1, processor=asked)
        is_there.append(side.held()["processor"] == asked)
    assert sum(is_there) > 15
    assert os.sched_getaffinity(side.process.pid) == allowed


@pytest.mark.skipif(not HAS_TWO, reason="there is one processor, or none can be chosen")
@pytest.mark.parametrize("why", ["forbidden", "another node"])
def test_thread_stays_if_the_other_cpu_is_not_allowed(monkeypatch, why):
    """Where it may not run, nobody sends it; nor away from its memory."""
    before = os.sched_getaffinity(0)
    here, there = sorted(before)[:2]
    if why == "another node":
        monkeypatch.setattr(held_turns, "_node", {here: "node0", there: "node1"}.get)
    monkeypatch.setattr(held_turns, "_cpu", lambda: here)
    asked = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *given: asked.append(given))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {here} if why == "forbidden" else before)
    held_turns._move_to_cpu(there)
    assert asked == []


def done(steps, seconds, turns=2):
    """A program that has made some turns."""
    return SimpleNamespace(blocks=[Block(steps, round(seconds * 1e9), 0, 0, None)] * turns)


@pytest.mark.parametrize(
    ("step_s", "length_s", "turn"),
    [
        (0.001, alternation.SHORT_S, Turn(30, lead=7)),
        (0.001, alternation.LONG_S, Turn(200, lead=50)),
        (0.02, alternation.SHORT_S, Turn(4, lead=1)),
        (0.08, alternation.SHORT_S, Turn(2)),
        (1.0, alternation.SHORT_S, Turn(1)),
    ],
)
def test_short_block_has_at_least_four_steps(step_s, length_s, turn):
    """Four at least where these take no longer than a long turn; one in four before them is not timed."""
    assert alternation._turn(done(100, 100 * step_s), length_s) == turn
    assert alternation._turn(SimpleNamespace(blocks=[]), length_s) == Turn(1)
    assert alternation._turn(done(1, 1e-6), length_s).steps == 4
    assert alternation._turn(done(100, 100 * step_s, turns=3), length_s).steps == turn.steps + 1


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.04])
def test_periodic_steps_are_timed_equally_often(step_s):
    """Turns of five steps, of which the first is not timed, would never time it, or always."""
    step, timed = 0, []
    for number in range(2, 102):
        turn = alternation._turn(done(100, 100 * step_s, number), alternation.SHORT_S)
        timed += range(step + turn.lead, step + turn.lead + turn.steps)
        step = timed[-1] + 1
    assert sum(each % 5 == 0 for each in timed) / len(timed) == pytest.approx(0.2, abs=0.01)


def test_program_with_separated_ranks_is_ended(monkeypatch):
    """Which may take as long as it takes."""
    monkeypatch.setattr(program, "SILENT_S", -1.0)
    found = Program.__new__(Program)
    found._held, found._block_began, found.is_over, found.notes = {}, None, False, []
    found.command = SimpleNamespace(name="A")
    for _ in range(2):
        found._give_up()
    assert (found.is_over, found.notes) == (False, [])
    found._held = {0: SimpleNamespace(ranks=2)}
    found._give_up()
    assert (found.is_over, found.notes) == (True, ["1 of 2 ranks of A reached the same step within -1 s"])


def test_ranks_that_ended_on_one_cpu_move_no_thread():
    found = Program.__new__(Program)
    found._held = {rank: SimpleNamespace(processor=rank) for rank in range(3)}
    assert found.processors == {0: 0, 1: 1, 2: 2}
    found._held[2] = found._held[0]
    assert found.processors == {}


@pytest.mark.parametrize(
    ("kind", "in_turns", "length_s"),
    [
        ("", False, alternation.SHORT_S),
        ("child", False, alternation.LONG_S),
        ("", True, alternation.LONG_S),  # no block is beside that of another program
    ],
)
def test_blocks_are_long_if_a_program_has_helpers(short, monkeypatch, kind, in_turns, length_s):
    lengths = []
    monkeypatch.setattr(alternation, "_turn", lambda _, length_s: lengths.append(length_s) or Turn(20))
    _, codes = pair(short, SCRIPT, 100, WORK, "", kind, in_turns=in_turns)
    assert set(codes) == {0}
    assert set(lengths) == {length_s}


PAUSED = psutil.STATUS_TRACING_STOP


@pytest.fixture
def held(short, monkeypatch):
    """A program with children, held at a step."""
    monkeypatch.setattr(freezing, "_LONGEST_S", 100.0)  # children pause when they have a CPU
    if sys.platform != "linux":
        pytest.skip("children are paused on Linux")
    begun = []

    def begin(kind):
        command = program.Command(
            name="A", label="", words=[sys.executable, str(SCRIPT), "1000000", str(WORK), "", kind], folder=short
        )
        begun.append(Program(command, short, len(begun), OWNER))
        assert begun[-1].until_held()
        return begun[-1], psutil.Process(begun[-1]._process.pid).children()

    yield begin
    for each in begun:
        for process in (*psutil.Process(each._process.pid).children(), each._process):
            process.kill()
        each._process.wait()
        each.close()


def test_children_of_a_held_program_pause_until_its_next_block(held):
    """A loader worker that works ahead would have batches ready that took no time."""
    started, (child,) = held("child")
    for _ in range(3):
        started.stop_children()
        assert child.status() == PAUSED
        started.let_go(Turn(3))
        assert child.status() != PAUSED
        assert started.until_held()
    assert started.notes == []
    started.stop_children()
    started.free()
    assert child.status() != PAUSED


def test_child_stopped_by_the_training_stays_stopped(held):
    started, (child,) = held("stopped_child")
    started.stop_children()
    started.let_go(Turn(3))
    assert started.until_held()
    assert child.status() == psutil.STATUS_STOPPED


def test_training_gets_no_sigchld_for_a_paused_child(held):
    """A handler that waits for a dead child would wait for ever."""
    started, _ = held("sigchld")
    for _ in range(5):
        started.stop_children()
        started.let_go(Turn(3))
        assert started.until_held()


def test_children_of_a_killed_program_run_on(held):
    """They can notice the death of their parent."""
    started, (child,) = held("child")
    started.stop_children()
    started._process.kill()
    started.let_go(Turn(3))
    assert not started.until_held()
    psutil.wait_procs([child], timeout=300)
    assert not child.is_running()


def test_children_that_cannot_be_paused_are_noted(held, monkeypatch):
    started, (child,) = held("child")
    monkeypatch.setattr(freezing, "_ptrace", lambda *_: errno.EPERM)
    for _ in range(2):
        started.stop_children()
    assert child.status() != PAUSED
    assert started.notes == ["child processes of A could not be paused between its blocks: Operation not permitted"]


def test_program_does_not_outlive_the_supervisor(master):
    """The end of the socket is the death of the supervisor."""
    side = master(12, WORK)
    side.held()
    side.leave()
    assert side.process.wait(60) == -signal.SIGKILL


def test_raising_handler_ends_a_held_program(master):
    side = master(12, WORK, "", "handler")
    side.held()
    # a signal just before the blocking read is handled after it, so one may not suffice
    for _ in range(6):
        side.process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            side.process.wait(10)
            break
    assert side.process.returncode == held_training.HANDLED
    assert side.lines.readline() == b""


def test_a_forked_child_takes_no_part(master):
    side = master(6, WORK, "", "fork")
    side.held()
    side.answer(2)
    assert side.held()["steps"] == 2
    assert psutil.Process(side.process.pid).children() == [], "it made its steps, and was not held"
    side.answer(0)
    assert side.process.wait(60) == 0


def until(is_so):
    while not is_so():
        time.sleep(0.01)


def test_device_work_belongs_to_its_block(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 512 * (device > 0))
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    HeldSteps("nobody listens here").step()
    assert waited == [1, 2]
