"""A comparison that is killed at a random moment leaves nothing behind: no process, no temporary folder, no worktree.

``KILLED_COMPARISONS=200 python -m pytest tests/test_killed_comparisons.py`` kills as many, also of real trainings.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.process, pytest.mark.nightly]

COUNT = int(os.environ.get("KILLED_COMPARISONS", "4"))
LIGHT, HEAVY = ("plain", "child", "daemon", "stopped", "stubborn"), ("loader", "torchrun")
HERE = Path(__file__).parent
LIMIT_S = 60.0

TRAINING = """
    import os, signal, subprocess, sys, time
    sys.path.insert(0, {here!r})
    kind = {kind!r}
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    if kind in ("child", "stopped"):
        child = subprocess.Popen(sleeper)
    if kind == "stopped":
        child.send_signal(signal.SIGSTOP)
    if kind == "daemon" and os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execv(sleeper[0], sleeper)
    if kind == "stubborn":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        subprocess.Popen(sleeper, start_new_session=True)
    if kind == "leaderless" and os.fork() == 0:
        import ctypes, threading
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(sleeper)
        threading.Thread(target=time.sleep, args=(1000,)).start()
        ctypes.CDLL(None).pthread_exit(None)
    if kind in ("loader", "torchrun"):
        import torch
        torch.set_num_threads(1)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-9)
        while True:
            data = torch.utils.data.TensorDataset(torch.ones(100_000, 8))
            for (batch,) in torch.utils.data.DataLoader(data, 4, num_workers=2 * (kind == "loader")):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    import held_training
    held_training.main(10**9, 2000)
"""


def is_permitted(*words):
    done = shutil.which(words[0]) and subprocess.run([*words, "true"], capture_output=True, check=False)
    return bool(done) and done.returncode == 0


NAMESPACE = ("unshare", "--pid", "--fork")


def git(*words, folder):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def place():
    """A repository with a training, and a folder for temporary files with a short path."""
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        for name in ("work", "tmp"):
            Path(folder, name).mkdir()
        git("init", "-q", folder=f"{folder}/work")
        yield Path(folder)


def commit(place, **files):
    for name, text in files.items():
        (place / "work" / f"{name}.py").write_text(text)
    git("add", ".", folder=place / "work")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "training", folder=place / "work")


def training(kind):
    lines = TRAINING.format(here=str(HERE), kind=kind).splitlines()
    return "\n".join(line[4:] for line in lines)


def start(place, *words, mark="", before=()):
    environment = os.environ | {"TMPDIR": str(place / "tmp"), "KILLED_MARK": mark, "OMP_NUM_THREADS": "1"}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(place / "cache")}
    command = [*before, sys.executable, "-m", "perfhooks", "compare", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=place / "work", env=environment, start_new_session=True, **streams)


def marked(mark):
    """All living processes of a comparison, by their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("KILLED_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until_gone(mark):
    until = time.monotonic() + LIMIT_S
    while (running := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    said = [(process.pid, process.status(), process.cmdline()) for process in running]
    for process in running:
        process.kill()
    assert said == []


def assert_nothing_is_left(place, prefix=""):
    left = [path.name for path in (place / "tmp").iterdir() if path.name.startswith(prefix)]
    assert left == []
    assert len(git("worktree", "list", folder=place / "work").splitlines()) == 1
    assert not (place / "work" / ".git" / "worktrees").exists()


def supervisor_of(perfhooks):
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
        return perfhooks.children()[0]
    return perfhooks


def send(process, number, *, is_first):
    """Send a signal. The first process of a namespace gets it only if it has a handler, or if it is SIGKILL."""
    try:
        handled = 0 if is_first and number != signal.SIGKILL else -1
        while not handled >> (number - 1) & 1:
            text = Path("/proc", str(process.pid), "status").read_text()
            handled = int(re.search(r"SigCgt:\s*(\w+)", text)[1], 16)
        process.send_signal(number)
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess) as error:
        return f"not sent ({error})"
    return "sent"


def perfhooks_of(process, *, is_namespace):
    """The process of perfhooks; in a namespace it is a child."""
    own = psutil.Process(process.pid)
    while is_namespace and not own.children():
        time.sleep(0.01)
    return own.children()[0] if is_namespace else own


CODES = {"INT": 130, "INT INT": 130, "TERM": 143, "HUP": 129, "KILL": -9, "KILL supervisor": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
@pytest.mark.parametrize("seed", range(COUNT))
def test_killed_comparison_leaves_nothing_behind(place, seed):
    draw = random.Random(seed)
    kind = draw.choice(LIGHT + HEAVY * (COUNT > 100))
    how = draw.choice(tuple(CODES))
    is_namespace = draw.random() < 0.25 and is_permitted(*NAMESPACE)
    moment = draw.uniform(0.3, 25.0 if kind in HEAVY else 8.0)
    commit(place, train=training(kind))
    words = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 --master-port 0 train.py"
    text = words if kind == "torchrun" else "train.py"
    first = ["--run-at", "HEAD", text] if draw.random() < 0.5 else ["--run", text]
    mark = str(uuid.uuid4())
    process = start(place, *first, "--", text, "--seconds", "2", mark=mark, before=NAMESPACE if is_namespace else ())
    with process.stdout:
        perfhooks = perfhooks_of(process, is_namespace=is_namespace)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        names = how.split()
        target = supervisor_of(perfhooks) if "supervisor" in names else perfhooks
        for name in names:
            if name != "supervisor":
                sent = send(target, getattr(signal, f"SIG{name}"), is_first=is_namespace)
                time.sleep(draw.uniform(0.0, 0.5))
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            state = [(each.pid, each.status(), each.cmdline()) for each in marked(mark)]
            pytest.fail(f"{how}: {sent}, {state}")
        output = process.stdout.read().decode()
    wait_until_gone(mark)
    # a signal may come before Python has a handler for it, or after the end; unshare has other codes
    is_known = is_namespace or code in (CODES[how], 0, 2, *(-getattr(signal, f"SIG{name}") for name in names[:1]))
    assert is_known, (code, output)
    if is_namespace and "KILL" in names:  # the kernel kills the supervisor as well: the next comparison cleans up
        process = start(place, "--run", "nothing.py", "--", "nothing.py")
        assert b"there is no script" in process.communicate(timeout=LIMIT_S)[0]
    if "Output: " in output:
        shutil.rmtree(output.rpartition("Output: ")[2].splitlines()[0])
    # loader workers remove their own files, if they have the time; torchrun may leave its folder for logs
    assert_nothing_is_left(place, "perfhooks" if how == "INT INT" or is_namespace or kind == "torchrun" else "")


def until(is_so):
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(place, kind, mark):
    """A comparison whose programs make steps, in its process."""
    commit(
        place, train=training(kind).replace("held_training.main(", "open(str(os.getpid()), 'w'); held_training.main(")
    )
    process = start(place, "--run-at", "HEAD", "train.py", "--", "train.py", mark=mark)
    tree = place / "tmp"
    until(lambda: [*place.glob("work/[0-9]*")] and any(path.parent.name == "work" for path in tree.rglob("[0-9]*")))
    return process


def test_signal_while_the_folder_is_created_leaves_no_folder(place):
    """The handlers of signals come first."""
    (place / "work" / "train.py").write_text("")
    (place / "work" / "signalled.py").write_text("""
import os, runpy, signal, sys, tempfile
create = tempfile.mkdtemp
def create_and_signal(**how):
    folder = create(**how)
    os.kill(os.getpid(), signal.SIGTERM)
    return folder
tempfile.mkdtemp = create_and_signal
sys.argv = ["perfhooks", "compare", "--run", "train.py", "--", "train.py"]
runpy.run_module("perfhooks", run_name="__main__")
""")
    environment = os.environ | {"TMPDIR": str(place / "tmp")}
    done = subprocess.run(
        [sys.executable, "signalled.py"], cwd=place / "work", env=environment, capture_output=True, check=False
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert [*(place / "tmp").iterdir()] == []


def test_second_ctrl_c_kills_programs_that_ignore_the_first(place):
    mark = str(uuid.uuid4())
    process = running(place, "stubborn", mark)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert len(marked(mark)) > 2, "they ignore SIGTERM"
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 130, output
    assert output.startswith(b"Undecided: ")
    assert marked(mark) == []
    assert_nothing_is_left(place)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_ends_the_comparison_with_its_exit_code(place, number):
    mark = str(uuid.uuid4())
    process = running(place, "child", mark)
    process.send_signal(number)
    assert b"Traceback" not in process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 128 + number
    assert marked(mark) == []
    assert_nothing_is_left(place)


@pytest.mark.parametrize("is_far", [False, True], ids=["same TMPDIR", "another TMPDIR"])
def test_next_comparison_cleans_up_after_a_double_kill(place, is_far):
    """Who kills by name kills perfhooks and the supervisor."""
    mark = str(uuid.uuid4())
    process = running(place, "plain", mark)
    supervisor = supervisor_of(psutil.Process(process.pid))
    supervisor.suspend()  # it must not notice
    process.kill()
    supervisor.kill()
    process.communicate(timeout=LIMIT_S)
    wait_until_gone(mark)
    assert len(git("worktree", "list", folder=place / "work").splitlines()) == 2
    if is_far:
        (place / "tmp").rename(place / "far")
        (place / "tmp").mkdir()
    commit(place, other="")
    process = start(place, "--run-at", "HEAD", "other.py", "--", "other.py")
    assert b"made no steps" in process.communicate(timeout=LIMIT_S)[0]
    assert_nothing_is_left(place)


@pytest.mark.parametrize("kind", ["child", "daemon", "stopped", "stubborn", "leaderless"])
def test_program_leaves_no_process_behind(place, kind):
    mark = str(uuid.uuid4())
    commit(place, train=training(kind).replace("10**9, 2000", "4, 2000"))
    process = start(place, "--run", "train.py", "--", "train.py", mark=mark)
    assert b"made too few steps" in process.communicate(timeout=LIMIT_S)[0]
    assert marked(mark) == []
    assert_nothing_is_left(place)
