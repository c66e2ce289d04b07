"""`perfhooks run`: real commands, which must not notice it."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest import mock

import pytest
import warm
from comparing_runs import make_run
from finished_runs import windows_of
from terminal import steps_of_mean
from typer.testing import CliRunner

from perfhooks.cli import app
from perfhooks.cli.actions import run
from perfhooks.core.errors import OptionError
from perfhooks.core.options import all_options
from perfhooks.record.launch import children, detached, exit_summary, notes, startup
from perfhooks.record.launch.command_line import VARIABLE
from perfhooks.record.launch.summary_text import text_of
from perfhooks.run import liveness
from perfhooks.run.publishing import publish_json

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
SCRIPT = str(HERE / "launched_training.py")
SCHEDULE = "skip_first=4 wait=0 warmup=1 active=4 repeat=1"
WORDS = ["--schedule", SCHEDULE, "--run", "it", "--handler", "steps", "--exit-timeout", "200"]
"""The page takes the most time of all: only where it is looked at."""
ENDLESS = ["--schedule", "wait=0 warmup=0 active=1000000", "--run", "it", "--handler", "steps"]
RUN = [sys.executable, "-m", "perfhooks", "run", *WORDS]
"""Where it matters how a Python begins and what it imports."""


@pytest.fixture
def start(channel, tmp_path):
    """Starts `perfhooks run` in the test's folder, in a process that has imported torch."""
    begun = []

    def start(*words):
        begun.append(warm.beginning(channel, tmp_path, "run", *words))
        return begun[-1]

    yield start
    for process in begun:
        process.close()


def done(folder, *command, env=()):
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    words = [str(word) for word in command]
    process = subprocess.run(
        words, cwd=folder, env=clean | dict(env), capture_output=True, text=True, timeout=300, check=False
    )
    return process.returncode, process.stdout, process.stderr


def windows(folder, run="it"):
    return sorted(path.name for path in (folder / "perf" / run).glob("*-0*"))


def capture(folder, run="it"):
    (file,) = (folder / "perf" / run).glob("*/rank0.capture.json")
    return json.loads(file.read_text(encoding="utf-8"))


def rows(file):
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def ours(err):
    """The lines of standard error that are ours."""
    return [line for line in err.splitlines() if "perfhooks" in line]


def summary(err):
    """The lines of the exit summary, which end standard error."""
    lines = err.splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("perfhooks: "))
    assert all(line.startswith("  ") for line in lines[first + 1 :]), err
    return lines[first:]


# --- the training does not notice ---


@pytest.fixture(scope="module")
def bare(channel):
    process = warm.run(channel, HERE / "launched_training.py", "raw", timeout=120)
    return process.returncode, process.stdout


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launched")
    return folder, done(folder, *RUN, "--handler", "page", "--handler", "operators", SCRIPT, "raw")


def test_output_and_exit_code_equal_those_of_the_script(bare, launched):
    (code, out), (_, (launched_code, launched_out, _)) = bare, launched
    assert (launched_code, launched_out) == (code, out)
    assert code == 0
    assert "loss" in out


def test_run_writes_a_window_and_a_report_and_one_line(launched):
    folder, (_, _, err) = launched
    assert windows(folder) == ["train-000005-000008"]
    assert [row["step"] for row in rows(folder / "perf/it/train-000005-000008/rank0.steps.csv")] == ["5", "6", "7", "8"]
    assert sum("recorded -> " in line for line in ours(err)) <= 1, "the log names a window once, and not at the end"
    first, *others = summary(err)
    assert steps_of_mean(5, 8).search(first)
    assert others[-1] == f"  report: {folder / 'perf/it/report.html'}"


def test_run_file_names_the_event_that_ends_a_step(launched):
    """Sixteen updates for sixteen batches, without those of validations and without the four ends of the loader."""
    folder, _ = launched
    said = json.loads((folder / "perf/it/run.json").read_text())["steps_by"]
    assert (said["what"], said["updates"]) == ("loader", 1.0)
    assert said["fetches"] == 1.0
    page = json.loads((folder / "perf/it/report.json").read_text())
    assert page["run"]["steps_by"]["what"] == "loader"
    assert "imports" in page["startup"]["phase"]


def test_run_folder_beside_threads_adds_no_main_thread_call(launch, tmp_path):
    """Each system call would let the threads take the interpreter; without threads, another thread gains nothing."""
    outputs = {}
    for number in (0, 8):
        run = f"beside{number}"
        arguments = (tmp_path / "perf", number, 3, 0.001)
        done = launch(*WORDS, "--run", run, HERE / "threaded_training.py", *arguments)
        assert done.returncode == 0, done.stderr
        outputs[number] = done.stdout.split()
        assert len(windows(tmp_path, run)) == 1, done.stderr
        facts = json.loads((tmp_path / f"perf/{run}/run.json").read_text())
        assert facts["steps_by"]["what"] == "loader"
        assert facts["windows"] == windows(tmp_path, run)
    assert int(outputs[0][0]) > 0
    assert int(outputs[8][0]) == 0
    assert outputs[0][-1] == outputs[8][-1]


@pytest.mark.parametrize(("pause", "is_recorded"), [(60, True), (0, False)])
def test_short_training_beside_busy_threads_is_not_recorded(launch, tmp_path, pause, is_recorded):
    """Beside idle threads, the first steps are recorded. Busy threads would make them ten times as slow."""
    script = (HERE / "threaded_training.py", tmp_path / "perf", 4, 3, pause)
    done = launch("--run", "it", "--handler", "steps", *script)
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout.split()[-2]) > 0) is is_recorded
    assert ("nothing was recorded: " in done.stderr) is not is_recorded


def test_the_wait_for_data_is_a_part_of_the_step(launched):
    folder, _ = launched
    table = rows(folder / "perf/it/train-000005-000008/rank0.steps.csv")
    assert all(0 < float(row["data_ms"]) < float(row["wall_ms"]) for row in table)
    assert all(row["data_ms"] for row in rows(folder / "perf/it/rank0.timeline.csv")[:8])


def test_time_before_the_first_step_is_recorded(launched):
    folder, _ = launched
    table = rows(folder / "perf/it/rank0.startup.csv")
    phases = [row["phase"] for row in table]
    assert phases[:2] == ["python", "before torch"]
    imports = {row["what"]: float(row["seconds"]) for row in table if row["phase"] == "imports"}
    assert max(imports, key=imports.get) == "torch"
    assert 0 < sum(float(row["seconds"]) for row in table) < 120


@pytest.fixture(scope="module")
def by_hand(channel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("by-hand")
    return folder / "perf", warm.command(channel, folder, "run", *WORDS, SCRIPT, "by_hand")


def test_script_with_its_own_profiler_is_not_recorded(by_hand):
    folder, done = by_hand
    assert done.returncode == 0, done.stderr
    assert not (folder / "it").exists()
    assert ours(done.stderr)[-1] == "perfhooks: nothing was recorded: the script profiles itself with perfhooks"


def test_steps_and_operators_equal_those_of_an_edited_loop(by_hand, launch, tmp_path):
    done = launch(*WORDS, "--handler", "operators", SCRIPT, "plain")
    assert done.returncode == 0, done.stderr
    folders = (by_hand[0] / "by-hand", tmp_path / "perf/it")
    tables = [rows(folder / "train-000005-000008/rank0.operators.csv") for folder in folders]
    counts = [{row["name"]: row["count"] for row in table if row["name"].startswith("aten::")} for table in tables]
    assert counts[0] == counts[1]
    assert len(counts[0]) > 20


def test_workers_that_are_spawned_know_the_script(launch, tmp_path):
    done = launch(*WORDS, SCRIPT, "spawn")
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    assert windows(tmp_path) == ["train-000005-000008"]


def test_compilations_equal_those_without_perfhooks(channel, launch, tmp_path):
    """With and without a window; the same graphs, breaks and recompilations as without us."""
    bare = warm.run(channel, HERE / "launched_training.py", "compiled_whole", timeout=300)
    done = launch(*WORDS, SCRIPT, "compiled_whole")
    assert bare.returncode == done.returncode == 0, bare.stderr + done.stderr
    assert windows(tmp_path) == ["train-000005-000008"]
    assert done.stdout.splitlines()[:2] == bare.stdout.splitlines()[:2]
    assert int(bare.stdout.split()[1]) > 2


# --- neither fetch nor update ---


def test_program_without_steps_gets_a_report_while_running(start, tmp_path):
    process = start(*WORDS, "--patience", "0.1", "--handler", "page", SCRIPT, "endless")
    page = tmp_path / "perf/it/report.json"
    deadline = time.monotonic() + 120
    while not page.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    told = json.loads((tmp_path / "perf/it/run.json").read_text())["steps_by"]["what"]
    _, err = process.communicate(timeout=300)
    assert (process.returncode, told) == (0, "call"), err
    assert windows(tmp_path) == ["predict-000001", "train-000005-000008"]
    assert json.loads((tmp_path / "perf/it/run.json").read_text())["steps_by"]["what"] == "loader"


def test_helper_process_is_no_separate_program(monkeypatch):
    assert not children.is_helper_process()
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("torch._inductor.compile_worker", None))
    assert children.is_helper_process()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "from multiprocessing.forkserver import main; main(1)"])
    assert children.is_helper_process()


@pytest.mark.parametrize(
    ("file", "function", "in_step", "phase"),
    [
        ("/x/torch/_dynamo/convert_frame.py", "call", True, "compilation"),
        ("/x/torch/_inductor/compile_fx.py", "call", False, "compilation"),
        ("/x/torch/_dynamo/eval_frame.py", "_fn", True, "first step"),
        ("/x/torch/utils/data/dataloader.py", "call", True, "first batch"),
        ("/x/torch/nn/modules/linear.py", "__init__", False, "model"),
        ("/x/torch/nn/modules/linear.py", "forward", False, "script"),
        ("/x/torch/nn/modules/linear.py", "forward", True, "first step"),
        ("/x/own.py", "call", False, "script"),
    ],
)
def test_time_before_the_first_step_is_split_by_files(file, function, in_step, phase):
    scope = {}
    exec(compile(f"def {function}(act): return act()", file, "exec"), scope)
    told = scope[function](lambda: startup.classify(threading.get_ident(), in_step=in_step))
    assert told.phase == phase
    assert "test_launching.py:" in told.what, "the user's own line"


# --- how it ends ---


def test_exception_ends_the_program_and_marks_the_window(launch, tmp_path):
    done = launch(*ENDLESS, SCRIPT, "fails", is_whole=True)
    assert done.returncode == 1
    assert 'raise RuntimeError("as planted")' in done.stderr
    assert capture(tmp_path)["partial"] == "RuntimeError: as planted"


@pytest.mark.parametrize(
    ("number", "code", "cause"), [("SIGINT", -2, "KeyboardInterrupt"), ("SIGTERM", -15, "SIGTERM")]
)
def test_signal_ends_the_program_and_keeps_the_window(start, tmp_path, number, code, cause):
    process = start(*ENDLESS, SCRIPT, "waits")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, number))
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert capture(tmp_path)["partial"].startswith(cause)


# --- what can be launched ---


def test_a_module_and_a_shell_script_that_starts_python_twice(tmp_path):
    (tmp_path / "train.sh").write_text(
        f"{sys.executable} -c 'import sys; print(\"perfhooks\" in sys.modules)'\n"
        f"cd {HERE} && {sys.executable} -m launched_training accumulate\n"
    )
    code, out, err = done(tmp_path, *RUN, "bash", "train.sh")
    assert code == 0, err
    assert out.splitlines()[0] == "False", "a Python without torch has nothing of ours but the file that waits"
    assert windows(tmp_path) == ["train-000005-000008"], "runs are where the command was given"


def test_ranks_of_torchrun_share_one_run(tmp_path):
    torchrun = Path(sys.executable).with_name("torchrun")
    code, _, err = done(
        tmp_path, *RUN, torchrun, "--nproc-per-node", "2", SCRIPT, "plain", env={"OMP_NUM_THREADS": "1"}
    )
    assert code == 0, err
    files = {path.name for path in (tmp_path / "perf/it/train-000005-000008").glob("*.csv")}
    assert {"rank0.steps.csv", "rank1.steps.csv"} <= files
    # the launcher imports torch and waits, which is no run
    assert {path.resolve() for path in (tmp_path / "perf").iterdir()} == {tmp_path / "perf/it"}


SITE = """
import importlib.util, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.optim.optimizer":
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), print("theirs"))
            return spec

sys.meta_path.insert(1, Finder())
"""
OWN = f"""
import os, sys
print(sys.path[1])
sys.path.append({str(HERE)!r})
import launched_training, torch
print("loss", launched_training.raw().item())
os.kept = iter(torch.utils.data.DataLoader(range(4)))
next(os.kept)
"""


@pytest.fixture(scope="module")
def own_start(tmp_path_factory):
    """A program whose user has a sitecustomize, and which makes its files itself."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "sitecustomize.py").write_text(SITE)
    (folder / "train.py").write_text(OWN)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return folder, done(folder, *RUN, "--no-background", "train.py", env={"PYTHONPATH": path})


def test_sitecustomize_and_import_hooks_of_the_user_run_too(own_start):
    folder, (code, out, err) = own_start
    assert (code, out.split()[:2]) == (0, [str(folder), "theirs"]), err


def test_training_makes_the_files_itself_without_a_worker(own_start):
    """polars imports itself from Rust, and finds itself although the program has no module of this name."""
    folder, (_, out, err) = own_start
    assert "panicked" not in err
    assert "loss" in out
    assert rows(folder / "perf/it/train-000005-000008/rank0.steps.csv")


def test_loader_iterator_may_outlive_the_modules(own_start):
    _, (_, _, err) = own_start
    assert "Exception ignored" not in err


def test_reason_for_no_recording_is_printed(tmp_path):
    code, out, err = done(tmp_path, *RUN, sys.executable, "-I", "-c", "print(1)")
    assert (code, out) == (0, "1\n")
    (line,) = ours(err)
    assert line.startswith("perfhooks: recording may fail: Python is started with -I, so it does not read")
    assert not (tmp_path / "perf").exists()


def test_window_lost_to_a_set_clock_is_the_reason(launch, tmp_path):
    """The clock jumps by an hour with each step, forwards and back."""
    script = tmp_path / "jumps.py"
    script.write_text(
        "import torch\n"
        "from perfhooks.core.clocks import time\n"
        "real, jumps = time.time, [0]\n"
        "time.time = lambda: real() + 3600 * (jumps[0] % 3 - 1)\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for batch in torch.utils.data.DataLoader(torch.ones(48, 4), batch_size=2):\n"
        "    jumps[0] += 1\n"
        "    model(batch).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "print(jumps[0])\n"
    )
    process = launch(*WORDS, str(script), is_whole=True)
    assert (process.returncode, process.stdout) == (0, "24\n")
    assert "the clock of this machine was changed by" in process.stderr
    assert "nothing was recorded: no window could be saved, see the log" in process.stderr
    assert not windows(tmp_path) or capture(tmp_path)["notes"]


def test_missing_events_are_named_without_a_recording(launch, tmp_path):
    (tmp_path / "ones.py").write_text("import torch; torch.ones(3)")
    done = launch(*WORDS, "ones.py")
    assert done.returncode == 0, done.stderr
    assert ours(done.stderr)[-1].startswith(
        "perfhooks: nothing was recorded: the main thread called no module, passed no "
    )


def test_profiler_started_inside_a_window_records_normally(launch, tmp_path):
    """The same two calls in each of four steps; ours ends there, and says so in one line."""
    done = launch(*WORDS, SCRIPT, "profiled_late")
    err = done.stderr
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "own 8"), err
    assert capture(tmp_path)["partial"] == "the script starts a profiler of its own"
    said = [line for line in ours(err) if "records nothing more: the script starts a profiler of its own" in line]
    assert len(said) == 1, err
    assert [row["step"] for row in rows(next((tmp_path / "perf/it").glob("*/rank0.steps.csv")))] == ["5", "6"]


# --- bad input ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothere.py"], "there is no script 'nothere.py'"),
        (["nosuchcommand"], "there is no command 'nosuchcommand'"),
        (["-m"], "run -m needs the name of a module"),
        (["--schedule", "wait=-1 warmup=0 active=1", SCRIPT], "wait must be"),
        (["--handler", "stakcs", SCRIPT], "did you mean 'stacks'?"),
        (["--ranks", "some", SCRIPT], "ranks must be"),
        (["--patience", "-1", SCRIPT], "patience must be"),
        (["--out", "memory://runs", SCRIPT], "out must be a folder on a disk, got 'memory://runs'"),
        (["--keep-windows", "0", SCRIPT], "keep_windows must be an integer >= 1"),
    ],
)
def test_bad_input_is_one_line_before_the_start(monkeypatch, capfd, tmp_path, words, said):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["perfhooks", "run", *words])
    with pytest.raises(SystemExit) as ended:
        app.main()
    err = capfd.readouterr().err
    assert ended.value.code == (127 if words == ["nosuchcommand"] else 2)
    assert re.fullmatch(rf"perfhooks: .*{re.escape(said)}.*\n", err), err
    assert list(tmp_path.iterdir()) == [], "no folder for notes stays"


IN_PYTHON_ONLY = ("experimental_config", "execution_trace_observer", "use_cuda", "custom_trace_id_callback")
"""Options that are objects."""
SAID = {
    "activities": "cpu,cuda",
    "ranks": "0,4-6",
    "signal": "USR2",
    **dict.fromkeys(("trigger", "keep"), "slow"),
    "on_error": "raise",
}
"""What is said of options that not any text will do for."""
TAKEN = {"activities": ["cpu", "cuda"], "ranks": [0, 4, 5, 6]}


@pytest.mark.parametrize("option", all_options(), ids=lambda option: option.name)
def test_text_options_reach_the_training(monkeypatch, tmp_path, option):
    """All but those that only Python can make."""
    name, asked = option.name, []
    flag = f"--{name.replace('_', '-')}"
    if option.type is bool:
        words, taken = [f"--no-{flag[2:]}" if option.default else flag], not option.default
    elif {int, float} & {option.type, *typing.get_args(option.type)}:
        words, taken = [flag, "7"], 7
    else:
        words, taken = [flag, SAID.get(name, "/x")], TAKEN.get(name, SAID.get(name, "/x"))

    def execve(_path, _words, environment):
        asked.append(json.loads(environment[VARIABLE])["options"])
        raise OSError(0, "not today")

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(detached, "start", lambda *_: None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    result = CliRunner().invoke(app.app, ["run", *words, "--", sys.executable, "-c", "pass"])
    if name in IN_PYTHON_ONLY:
        assert (result.exit_code, asked) == (2, [])
    else:
        assert asked == [{name: taken}], result.output


def test_unknown_option_suggests_a_similar_one(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["perfhooks", "run", "--with-stak", SCRIPT])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    assert "--with-stack" in capfd.readouterr().err


CONFIG = {"cuda": {"profiler_configs": [{"type": "CuspyConfig"}]}}


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("ranks", "4-7,0,5,64", [0, 4, 5, 6, 7, 64]),
        ("ranks", "0,x", "ranks must be 'all', 'first-of-node' or numbers such as 0,4-7, got '0,x'"),
        ("activities", "cpu,cuda", ["cpu", "cuda"]),
        ("activities", f" {json.dumps(['cpu', CONFIG])}", ["cpu", CONFIG]),  # as in a configuration file
        ("activities", "[cpu]", "activities must be words such as cpu,cuda or a JSON list, got"),
    ],
)
def test_lists_are_words_numbers_or_json(option, text, value):
    if isinstance(value, list):
        assert run._read(option, text) == value
    else:
        with pytest.raises(OptionError, match=re.escape(value)):
            run._read(option, text)


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        (["run", "-m", "a.b", "-m", "x"], ["run", "--", "-m", "a.b", "-m", "x"]),
        (["run", "--with-stack", "-m", "a.b"], ["run", "--with-stack", "--", "-m", "a.b"]),
        (["run", "--run", "it", "-m", "a.b"], ["run", "--run", "it", "--", "-m", "a.b"]),
        (["run", "train.py", "-m", "x"], ["run", "train.py", "-m", "x"]),
        (["run", "python", "-m", "a.b"], ["run", "python", "-m", "a.b"]),
        (["show", "-m"], ["show", "-m"]),
    ],
)
def test_m_begins_the_command_as_for_python(given, becomes):
    assert run.separated(given) == becomes


@pytest.mark.parametrize(
    "words",
    [
        "train.py --lr 0.1",
        "--out here --run it train.py --out there",
        "--out=here --max-trace-mb=12.5 --with-stack train.py",
        "--no-watch --record-shapes -- python -c pass",
        "--handler trace --handler steps --patience 3 train.py",
        "--ranks 0,4-7 --keep-windows 3 -m package.train --with-stack",
        "--activities cpu,cuda --exit-timeout 0 torchrun --nproc-per-node 2 train.py",
        "--run a --run b train.py",
    ],
)
def test_options_are_parsed_as_by_typer(words, monkeypatch):
    seen = []
    monkeypatch.setattr(run, "start", seen.append)
    arguments = ["run", *words.split()]
    CliRunner().invoke(app.app, run.separated(arguments), catch_exceptions=False)
    (expected,) = seen
    assert run.parsed(arguments) == (expected.words, expected.options)


@pytest.mark.parametrize(
    "words",
    [
        *("", "--help train.py", "--help-all", "--with-stack", "--out", "--no-such-option train.py", "-x train.py"),
        *("--max-trace-mb much train.py", "--with-stack=1 train.py", "--no-with-stack train.py", "--out --run it"),
    ],
)
def test_wrong_options_are_left_to_typer(words):
    assert run.parsed(["run", *words.split()]) is None
    assert run.parsed(["show", *words.split()]) is None


def test_run_starts_without_the_modules_of_other_verbs(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    code = (
        "import os, sys; from perfhooks.cli import app\n"
        "os.execve = lambda *_: print({'typer', 'rich', 'numpy', 'psutil'} & {*sys.modules}) or os._exit(0)\n"
        f"sys.argv = ['perfhooks', 'run', '--out', {str(tmp_path / 'runs')!r}, {str(script)!r}]\n"
        "sys.stdout.reconfigure(line_buffering=True)\n"
        "app.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "set()\n"


def test_run_is_summarized_once_for_many_ranks(tmp_path):
    run = tmp_path / "perf/it"
    run.parent.mkdir()
    windows_of(run, ("train-000050-000052", 0, 3.0), ("train-000060-000062", 0, 2.0), ("train-000060-000062", 1, 9.0))
    for number in range(4):
        (tmp_path / f"{number}-1-ab.json").write_text(json.dumps({"run": str(run), "is_speaker": number == 2}))
    (tmp_path / "9-1-0.json").write_text(json.dumps({"why": "a helper did nothing"}))
    assert notes.runs(notes.read(str(tmp_path))) == [str(run)]
    assert text_of([str(run)]).endswith(f"report: {run / 'report.html'}\n")
    (run / "report.html").unlink()
    assert text_of([str(run)]).endswith(f"files: {run}\n")
    assert [notes.claim(str(tmp_path), str(run)) for _ in range(2)] == [True, False]


def test_reason_for_no_recording_is_printed_once(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}-1-0.json").write_text(json.dumps({"why": "it has a profiler"}))
    assert exit_summary.reasons(notes.read(str(tmp_path)), ["python"]) == ["it has a profiler"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["python", "-E", "train.py"], "Python is started with -E,"),
        (["python", "-uI", "train.py"], "Python is started with -uI,"),
        (["python", "train.py", "-I"], "no Python of this command imported torch"),
        (["python", "-m", "x", "-E"], "no Python of this command imported torch"),
        (["torchrun", "--IES", "-S"], "no Python of this command imported torch"),
        (["sh", "-Ec", "true"], "no Python of this command imported torch"),
    ],
)
def test_only_options_of_python_itself_are_named_as_reason(words, said):
    (reason,) = exit_summary.reasons([], words)
    assert reason.startswith(said)


def test_startup_table_begins_with_the_process(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "table.csv").symlink_to(tmp_path / "mine")

    def age():
        return liveness.clock_s() - liveness.born_s(os.getpid())

    youngest, began, oldest = age(), time.monotonic_ns(), age()
    table = startup.Startup(began)
    table.end(lambda: tmp_path / "table.csv")
    table.wait()
    table._thread.join(60)  # the end of a training waits for two seconds
    first, second, *_ = rows(tmp_path / "table.csv")
    assert first["phase"] == "python"
    assert youngest - 0.1 < float(first["seconds"]) < oldest + 0.1
    assert second["phase"] == "before torch"
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("is_told", [True, False])
def test_the_detached_process_waits_for_the_end_of_the_command(monkeypatch, is_told):
    """Also where the system tells nobody of the end of a process that is no child."""
    if not is_told:
        monkeypatch.setattr(os, "pidfd_open", mock.Mock(side_effect=OSError), raising=False)
    command = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    waiting = threading.Thread(target=detached.wait, args=[command.pid, detached._open(command.pid)], daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    command.stdin.close()
    waiting.join(60)
    assert not waiting.is_alive()
    detached.wait(command.pid, detached._open(command.pid))  # it has ended long ago
    command.wait()


def test_several_runs_are_summarized_in_one_line_each(tmp_path):
    for name in ("done", "newer"):
        windows_of(tmp_path / name, ("train-000050-000052", 0, 3.0))
    publish_json(tmp_path / "newer/run.json", {"format": 999})
    (tmp_path / "newer/report.json").unlink(missing_ok=True)
    runs = [str(tmp_path / name) for name in ("done", "newer", "no")]
    done, newer, none = text_of(runs, {runs[1]}).splitlines()
    assert done.startswith("perfhooks: step ")
    assert done.endswith(f"report: {tmp_path / 'done/report.html'}")
    assert newer.startswith(f"perfhooks: report is still being written: {tmp_path / 'newer/report.html'} (if it ")
    assert none == f"perfhooks: files: {tmp_path / 'no'}"


def test_summary_without_content_has_no_empty_box(tmp_path, monkeypatch):
    monkeypatch.setattr("perfhooks.record.launch.summary_text.is_terminal", lambda: True)
    make_run(tmp_path, None, [])
    (line,) = text_of([str(tmp_path)], [str(tmp_path)]).splitlines()
    assert line.startswith(f"perfhooks: report is still being written: {tmp_path / 'report.html'} (if it ")


TRACEBACKS = """
import subprocess, traceback
import torch

def files(call):
    try:
        call()
    except Exception as error:
        return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        return torch.ones(4) if index < 60 else {}[index]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.fails = torch.nn.Linear(4, 4), False

    def forward(self, batch):
        return self.inner({}[1] if self.fails else batch)

class Fails(torch.autograd.Function):
    forward = staticmethod(lambda context, value: value * 2)
    backward = staticmethod(lambda context, gradient: {}[1])

model = torch.nn.Sequential(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []

def fail(batch):
    model[0].fails = True
    seen.append(files(lambda: model(batch)))
    model[0].fails = False
    seen.append(files(lambda: Fails.apply(model(batch)).sum().backward()))

def train():
    for batch in torch.utils.data.DataLoader(Data(), batch_size=2):
        fail(batch)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

fail(torch.ones(2, 4))
seen.append(files(train))
seen.append(files(lambda: subprocess.Popen(["/no/such/command"])))
assert len(seen) > 60 and all(seen)
print(sorted({file for found in seen for file in found if "/perfhooks" in file and "-packages" not in file}))
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps the frames of an exception raised again")
def test_tracebacks_of_the_program_contain_no_perfhooks_frames(launch, tmp_path):
    """Of modules, backward passes, a loader and another process; before, in and after the first window."""
    (tmp_path / "fails.py").write_text(TRACEBACKS)
    done = launch(*WORDS, "fails.py")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert windows(tmp_path) == ["train-000005-000008"]


WARNINGS = """
import warnings, torch, transformers.trainer

class Data(torch.utils.data.Dataset):
    def __len__(self): return 80
    def __getitem__(self, index):
        if index % 4 == 0: warnings.warn("slow item", stacklevel=6)
        return torch.ones(4)

class Model(torch.nn.Linear):
    def forward(self, batch):
        warnings.warn("old call", stacklevel=4)
        return super().forward(batch)

model = Model(4, 4)
model.register_full_backward_hook(lambda *_: None)  # torch warns, because no input requires gradients
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
import torch._dynamo
for batch in torch.utils.data.DataLoader(Data(), batch_size=4):
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
"""


def test_warnings_of_the_program_name_the_lines_of_the_program(tmp_path):
    """Also while a window records. ``stacklevel`` counts frames, and would count those of perfhooks."""
    (tmp_path / "warns.py").write_text(WARNINGS)
    (tmp_path / "transformers").mkdir()
    watched = "import warnings\nwarnings.warn('old module', stacklevel=2)\nclass Trainer:\n    pass\n"
    (tmp_path / "transformers/trainer.py").write_text(watched)
    plain, ours = (
        done(tmp_path, *python, "warns.py", env={"PYTHONWARNINGS": "always"}) for python in ([sys.executable], RUN)
    )
    assert ours[:2] == plain[:2] == (0, "")
    said, expected = (
        Counter(line for line in text.splitlines() if "Warning: " in line) for text in (ours[2], plain[2])
    )
    assert said == expected
    assert sum("Full backward hook" in line for line in expected.elements()) == 20
    assert windows(tmp_path) == ["train-000005-000008"]
