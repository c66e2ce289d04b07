"""Where `perfhooks run` is started, and what waits for its end: real commands, most of them without torch."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import zipapp
from pathlib import Path

import msgspec
import pytest
import warm

from perfhooks.core.errors import CommandError
from perfhooks.core.guard import stderr_file
from perfhooks.record.launch import detached, exit_summary, notes
from perfhooks.record.launch.command_line import SITE, VARIABLE, Request, command
from perfhooks.record.launch.summary_text import Box, box, plain, text_of
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.report.page.run_summary import RunSummary, SummaryFinding, SummaryPart
from perfhooks.run.capture import Capture, Cost, Place
from perfhooks.run.circumstances import Circumstances
from perfhooks.run.publishing import draft_of

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux"),
]

RUN = [sys.executable, "-m", "perfhooks", "run"]
CLEAN = {name: value for name, value in os.environ.items() if name != VARIABLE}
TIMEOUT = 200
GIVES = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.argv[2], sys.argv[2:])"
"""Has a command hold a file as its third as well, as ``exec 3>lock`` of a shell does."""
TRAINING = """
    import torch

    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    print("trained")
"""
IN_A_THREAD = """
    import queue, threading
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Ahead(threading.Thread):
        def __init__(self, batches):
            super().__init__(daemon=True)
            self.queue, self.batches = queue.Queue(1), batches
            self.start()

        def run(self):
            for batch in self.batches:
                self.queue.put(batch)
            self.queue.put(None)

    class DataLoaderX(DataLoader):
        def __iter__(self):
            return iter(Ahead(super().__iter__()).queue.get, None)

    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (batch,) in DataLoaderX(TensorDataset(torch.ones(80, 8)), batch_size=2):
        net.zero_grad()
        net(batch).sum().backward()
        UPDATE
"""
UPDATES = {
    "optimizer": "optimizer.step()",
    "backward": "[each.data.sub_(0.1 * each.grad) for each in net.parameters()]",
}


def run(folder, *words, environment=(), **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": CLEAN | dict(environment), **options}
    return subprocess.run([*RUN, *map(os.fspath, words)], cwd=folder, timeout=TIMEOUT, check=False, **options)


def script(folder, text):
    file = folder / "train.py"
    file.write_text(textwrap.dedent(text))
    return file


# --- what cannot be run ---


def test_exit_codes_of_failed_starts_equal_those_of_a_shell(tmp_path):
    """Whatever lies in the working directory, which Python puts first for ``-m``."""
    for name in ("msgspec.py", "typer.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit(9)")
    (tmp_path / "plain").write_text("exit 0")
    (tmp_path / "strange").write_text("#!/no/such/interpreter\n")
    (tmp_path / "strange").chmod(0o755)
    assert [run(tmp_path, word).returncode for word in ("nosuchcommand", "./plain", "./strange")] == [127, 126, 127]
    for word, code in {"./nothere": 127, f"{tmp_path}/": 126}.items():
        with pytest.raises(CommandError, match=re.escape(word)) as refused:
            command([word])
        assert refused.value.exit_code == code
        assert refused.value.args == (str(refused.value),)  # what a terminal shows is the sentence


def test_python_runs_a_folder_or_zip_file_with_a_main_module(tmp_path):
    for name in ("app", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "app/__main__.py").write_text("print(__file__)")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    for path in ("app", "app.pyz"):
        assert command([f"{tmp_path}/{path}", "-x"]) == [sys.executable, f"{tmp_path}/{path}", "-x"]
    with pytest.raises(CommandError, match="empty"):
        command([f"{tmp_path}/empty"])
    done = run(tmp_path, "app.pyz")
    assert (done.returncode, done.stdout.decode()) == (0, f"{tmp_path}/app.pyz/__main__.py\n")


# --- whose terminal shows the summary ---


def test_command_prints_the_summary_of_a_child_whose_errors_it_reads(tmp_path):
    script(tmp_path, TRAINING)
    reads = (
        "import subprocess, sys; print(subprocess.run([sys.executable, 'train.py'], capture_output=True, text=True))"
    )
    (tmp_path / "launch.py").write_text(reads)
    done = run(tmp_path, "--handler", "steps", "launch.py")
    assert b"trained" in done.stdout
    assert b"perfhooks: step" not in done.stdout
    assert done.stderr.count(b"perfhooks: step") == 1


def test_child_prints_its_summary_if_no_python_waits_for_it(tmp_path):
    request = Request(notes=str(tmp_path), command=os.getpid(), stderr="another file")
    assert exit_summary._is_left_to_command(request)
    for change in (
        {"stderr": stderr_file()},
        {"command": 0},
        {"notes": ""},
        {"notes": str(tmp_path / "deleted")},
    ):
        assert not exit_summary._is_left_to_command(msgspec.structs.replace(request, **change))
    notes.mark(str(tmp_path), exit_summary.IS_OVER)
    assert not exit_summary._is_left_to_command(request)


# --- who waits for the end ---


def be_a_subreaper():
    """Orphans become children of this process, and of what it becomes, as of the first one of a container."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def test_command_that_waits_for_all_children_ends(tmp_path):
    """Ours waits for the command's end: one of the two has to give way."""
    waits = "import os\ntry:\n    while True: os.wait()\nexcept ChildProcessError: print('alone')"
    done = run(tmp_path, sys.executable, "-c", waits, preexec_fn=be_a_subreaper)
    assert (done.returncode, done.stdout) == (0, b"alone\n")
    assert done.stderr.startswith(b"perfhooks: nothing was recorded: no Python of this command imported torch")


def test_first_process_of_a_container_ends(monkeypatch):
    assert detached.is_possible()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert not detached.is_possible()


@pytest.mark.filterwarnings("ignore:.*use of fork.* may lead to deadlocks:DeprecationWarning")
def test_detached_process_holds_no_files_from_the_start(tmp_path, monkeypatch):
    ours, theirs = os.pipe()
    monkeypatch.setattr(detached, "_become", lambda *_: time.sleep(2))
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        detached.start(os.getpid(), str(tmp_path), [])
        os.close(theirs)
        assert select.select([ours], [], [], 0)[0], "nobody could write to the pipe any more"
    os.close(ours)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_files_of_the_command_are_free_after_its_end(tmp_path):
    """Only a process of ours that goes on could hold it: the command itself has been waited for."""
    errors = (tmp_path / "errors").open("wb")
    with (tmp_path / "lock").open("w") as lock, errors:
        fcntl.flock(lock, fcntl.LOCK_EX)
        given = [sys.executable, "-c", GIVES, str(lock.fileno()), *RUN, "true"]
        held = subprocess.Popen(given, cwd=tmp_path, pass_fds=[lock.fileno()], stdin=subprocess.PIPE, stderr=errors)
        assert held.wait(TIMEOUT) == 0
    with pytest.raises(BrokenPipeError):
        os.write(held.stdin.fileno(), b"nobody reads this")
    held.stdin.close()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    deadline = time.monotonic() + TIMEOUT
    while not (tmp_path / "errors").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert b"perfhooks: nothing was recorded" in (tmp_path / "errors").read_bytes()


TELLS = sys.platform == "linux" and tuple(map(int, platform.release().split(".")[:2])) >= (6, 15)
"""Whether Linux tells others than the parent how a process has ended."""


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("nosuchcommand", 127), ("kill -9 $$", -9), ("true", 0)])
def test_end_of_the_command_is_detected(command, code):
    """Also once nobody is left who could be asked, but for the one who has opened it."""
    with subprocess.Popen(["sh", "-c", command], stderr=subprocess.DEVNULL) as process:
        descriptor = detached._open(process.pid)
    assert detached.wait(process.pid, descriptor) == (code if TELLS else None)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("note", "code", "said"),
    [
        ({}, 127, "the command ended with exit code 127"),
        ({"guess": "the main thread called no module"}, 1, "the command ended with exit code 1"),
        ({"guess": "the main thread called no module"}, -15, "the command was ended by SIGTERM"),
        ({"why": "the program ended with ValueError: x"}, 1, "the program ended with ValueError: x"),
        ({"guess": "the main thread called no module"}, 0, "the main thread called no module"),
        ({"guess": "the main thread called no module"}, None, "the main thread called no module"),
    ],
)
def test_failed_command_gets_no_guessed_reason(tmp_path, note, code, said):
    (tmp_path / "1-1-0.json").write_text(json.dumps(note))
    assert exit_summary.reasons(notes.read(str(tmp_path)), ["sh"], code) == [said]


# --- a PYTHONPATH of the program's own ---

CHILD = "import sys; print(any(type(each).__name__ == 'ImportWatcher' for each in sys.meta_path), sys.path[1])"
STARTS = f"""
import os, subprocess, sys
child = [sys.executable, "-c", {CHILD!r}]
subprocess.run(child, env={{**os.environ, "PYTHONPATH": "/of/a/child"}}, check=True)
subprocess.run(child, env={{"PYTHONPATH": "/alone"}}, check=True)
os.environ["PYTHONPATH"] = "/of/all"
assert os.environ["PYTHONPATH"] == "/of/all"
subprocess.run(child, check=True)
subprocess.run(child, env=os.environ.copy(), check=True)
os.waitpid(os.posix_spawn(sys.executable, child, os.environ), 0)
del os.environ["PYTHONPATH"]
os.spawnv(os.P_WAIT, sys.executable, child)
"""


def test_child_pythons_find_perfhooks_with_any_pythonpath(tmp_path):
    """But where it leaves all else out of their environment, too; without torch, which none of them wants."""
    environment = {**os.environ, VARIABLE: "{}", "PYTHONPATH": str(SITE)}
    done = subprocess.run(
        [sys.executable, "-c", STARTS], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    found = [line.split()[:2] for line in done.stdout.splitlines()]
    assert [word for word, _ in found] == ["True", "False", "True", "True", "False", "True"], done.stderr
    assert [path for _, path in found[:5]] == ["/of/a/child", "/alone", "/of/all", "/of/all", "/of/all"]


@pytest.mark.parametrize(
    ("text", "is_cause"),
    [
        ("# PYTHONPATH=. is not needed\npython train.py", False),
        ("export PYTHONPATH=src\npython train.py", True),
        ("PYTHONPATH=. python train.py", True),
        ("export PYTHONPATH=src:$PYTHONPATH", False),
        ("export PYTHONPATH=${PYTHONPATH}:src", False),
        ("python train.py", False),
    ],
)
def test_shell_script_that_sets_pythonpath_is_the_named_cause(tmp_path, text, is_cause):
    (tmp_path / "train.sh").write_text(text)
    for words, what in (
        (["sh", str(tmp_path / "train.sh")], tmp_path / "train.sh"),
        ([str(tmp_path / "train.sh")], tmp_path / "train.sh"),
        (["sh", "-c", text], "the command"),
    ):
        reason = exit_summary.known_before(words)
        assert (reason or "").startswith(f"{what} sets PYTHONPATH") == is_cause


# --- places that are not as they should be ---


def test_folder_name_that_is_not_utf8_works(channel, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/la\xfft"))
    folder.mkdir()
    script(folder, TRAINING)
    done = warm.command(channel, folder, "run", "--run", "it", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "nothing was recorded" not in done.stderr
    assert len(list(folder.glob("perf/it/train-*/rank0.steps.csv"))) == 1, done.stderr


def test_process_without_room_for_notes_knows_its_runs(tmp_path, monkeypatch):
    """No temporary folder takes a file: faked, as the suite cannot fill a disk."""
    monkeypatch.setattr(notes.tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: PTH123, SIM115 -- it is closed where it is used
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    notes.leave(str(tmp_path), run="somewhere")
    assert not notes.takes_files(str(tmp_path))
    assert [note.run for note in notes.own()] == ["somewhere"], "the process itself knows"


def test_missing_temporary_folder_does_not_affect_the_command(tmp_path):
    code = """
        import tempfile, sys
        def full(**_):
            raise OSError(28, "No space left on device")
        tempfile.mkdtemp = full
        from perfhooks.cli import app
        sys.argv = ["perfhooks", "run", "sh", "-c", "exit 5"]
        app.main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=TIMEOUT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (5, b"")


# --- what a step is, where another thread fetches ---


@pytest.mark.parametrize("told_by", UPDATES)
def test_loader_read_in_a_thread_leaves_the_steps_to_updates(launch, tmp_path, told_by):
    # the thread may need much of a busy CPU
    idle = "from perfhooks.record.launch import early\nearly.has_busy_threads = lambda: False\n"
    text = idle + textwrap.dedent(IN_A_THREAD).replace("UPDATE", UPDATES[told_by])
    done = launch("--run", "it", "--handler", "steps", script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("perf/it/train-*/rank0.steps.csv"))) == 1, done.stderr
    assert f'"{told_by}"' in (tmp_path / "perf/it/run.json").read_text()


# --- what a kill leaves ---


def test_report_deletes_drafts_of_dead_processes_only(tmp_path):
    """A disk far away that does not answer may keep whoever writes waiting for minutes; for ten it keeps nobody."""
    (tmp_path / "run.json").write_text("{}")
    window = tmp_path / "train-000001-000002"
    window.mkdir()
    dead, slow, fresh = (draft_of(path) for path in (*[window / "rank0.steps.csv"] * 2, tmp_path / "report.html"))
    own, now = window / ".mine.tmp", time.time()
    for file, minutes in ((dead, 15), (slow, 5), (fresh, 0), (own, 10**6)):
        file.write_text("half")
        os.utime(file, 2 * (now - 60 * minutes,))
    list(finish_all(tmp_path))
    assert [file.exists() for file in (dead, slow, fresh, own)] == [False, True, True, True]


# --- the summary itself ---

ENDS = {
    "sys.exit(3)": 3,
    "raise ValueError('bad batch')": 1,
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)": -2,
}


COMMAND = f"exec(open({str(Path(warm.__file__).with_name('warm_launch.py'))!r}).read())"
SUBREAPER = f"import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); {COMMAND}"


@pytest.fixture
def command_of(channel, tmp_path):
    """Starts a command of perfhooks in a process that has imported torch, after what a line of Python does there."""
    begun = []

    def start(line, *words, **how):
        (tmp_path / "command.py").write_text(line)
        begun.append(warm.Process(channel, tmp_path / "command.py", *words, is_whole=True, **how))
        return begun[-1]

    yield start
    for process in begun:
        process.close()


@pytest.mark.parametrize("end", ENDS)
def test_the_summary_is_complete_before_the_command_returns(command_of, tmp_path, end):
    """No other process could print it: nothing waits for the end of a command that adopts orphans."""
    script(tmp_path, f"import os, signal, sys, time\n{textwrap.dedent(TRAINING)}\n{end}")
    process = command_of(SUBREAPER, "run", "--exit-timeout", "150", "train.py")
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (ENDS[end], "trained\n"), err
    *_, path = err.splitlines()
    assert path.startswith("  report: ")
    assert Path(path.removeprefix("  report: ")).exists()
    assert len(re.findall(r"^perfhooks: ", err, re.MULTILINE)) == 1


@pytest.mark.parametrize("sigpipe", ["SIG_IGN", "SIG_DFL"])
def test_a_reader_that_is_gone_changes_no_exit_code(tmp_path, sigpipe):
    code = f"import signal; signal.signal(signal.SIGPIPE, signal.{sigpipe}); print(1)"
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs) as closed:
        done = run(tmp_path, sys.executable, "-c", code, stderr=closed)
    assert (done.returncode, done.stdout) == (0, b"1\n")


def test_closed_standard_error_changes_nothing(tmp_path):
    done = run(tmp_path, "sh", "-c", f"exec {sys.executable} -c 'print(1)' 2>&-", preexec_fn=be_a_subreaper)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


SUMMARY = RunSummary(
    step_ms=277.0,
    profiled_ms=441.0,
    profiled_steps="steps 52-54",
    parts=[SummaryPart(name="backward", share=0.44), SummaryPart(name="forward", share=0.31, where="mask, train.py:9")],
    findings=[
        SummaryFinding(title="The step waits 113 ms for data", gain="up to 113 ms, 41%", where="load, train.py:31")
    ],
    warning="The training waited for a CPU 54% of the time, so all times are longer than they need to be.",
)


def test_summary_is_a_box_on_a_terminal_and_plain_in_a_pipe(golden):
    """The path is whole, and each other row has eighty columns."""
    content = Box(SUMMARY, "", "", f"report: /{'long/' * 20}report.html")
    boxes = [box(content, 80, encoding) for encoding in ("utf-8", "ascii")]
    golden("exit_summary.txt", "\n".join([*boxes, plain(content)]))


BUSY = "  warning: this job waited for a CPU 70% of the time, so times are too high"
ROUGH = "  warning: Profiled steps took 2.4 times as long as others, so the shares of parts are only rough."
MADE = {
    "headline": "steps 20-22: 30 ms, 60% backward, 40% forward",
    "usual": {"wall_ms": 30.0, "backward_ms": 18.0, "forward_ms": 12.0},
    "usual_steps": "steps 20-22",
    "cost": Cost(idle_step_ms=20.0),
}


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({"state": "spooled"}, ["perfhooks: step 12.5 ms"]),
        ({"state": "spooled", "circumstances": Circumstances(queued=0.7)}, ["perfhooks: step 12.5 ms", BUSY]),
        (MADE, ["perfhooks: step 12.5 ms (profiled steps 20-22: 30 ms)", "  backward 60%, forward 40%", ROUGH]),
    ],
)
def test_run_with_a_late_report_has_its_step_time(facts, lines, tmp_path):
    """The training itself writes the timeline. The worker knew only the steps before it made the files."""
    (tmp_path / "run.json").write_text('{"format": 1}')
    rows = [f"train,{step},wait,12.5,0" for step in range(40)] + [f"validate,{step},wait,2,0" for step in range(60)]
    (tmp_path / "rank0.timeline.csv").write_text("\n".join(["stage,step,phase,wall_ms,data_ms", *rows, ""]))
    Place(tmp_path / "train-000020-000022", 0).save(Capture(first=20, last=22, reached=23, **facts))
    *text, path = text_of([str(tmp_path)], {str(tmp_path)}).splitlines()
    assert text == lines
    command = f"perfhooks report {tmp_path}"
    assert path == f"  report is still being written: {tmp_path / 'report.html'} (if it does not appear: {command})"


HANGS = """
    from dataclasses import dataclass
    import os, time

    @dataclass(frozen=True)
    class Hangs:
        def artifacts(self, capture, trace):
            training = os.getppid()
            while os.getppid() == training:
                time.sleep(0.05)
            return []
"""


def test_ctrl_c_ends_the_wait_for_files_silently(command_of, tmp_path):
    (tmp_path / "hangs.py").write_text(textwrap.dedent(HANGS))
    script(tmp_path, textwrap.dedent(TRAINING) + "\nimport sys; sys.exit(3)")
    words = ["run", "--exit-timeout", "300", "--handler", "hangs:Hangs", "train.py"]
    process = command_of(COMMAND, *words, environment=os.environ | {"PYTHONPATH": str(tmp_path)})
    said = list(itertools.takewhile(lambda line: "writing the report" not in line, process.stderr))
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, rest) == (3, ""), said
