"""Two users on one machine: each trains and reads, and neither can change the files of the other.

root starts both users. The other user has the right to read every file, because Python may be installed below /root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest

UID, GID = 12345, 23456
READS = "-all,+dac_read_search"
OTHER = (
    *("setpriv", "--reuid", str(UID), "--regid", str(GID), "--clear-groups"),
    *("--inh-caps", READS, "--ambient-caps", READS, "--bounding-set", READS),
)
"""Another user, who may read all files and writes only to the own ones."""
PLAIN_ROOT = ("setpriv", "--inh-caps", "-all", "--bounding-set", "-all")
"""root without its rights on files of other users."""


def is_permitted():
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("setpriv")
    return bool(is_root) and subprocess.run([*OTHER, "true"], capture_output=True, check=False).returncode == 0


pytestmark = [pytest.mark.process, pytest.mark.skipif(not is_permitted(), reason="only root can start another user")]

TIMEOUT = 300
TRAINING = """
import pathlib, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.utils.data.TensorDataset(torch.ones(64, 8))
steps = 0
while steps < 40 or (len(sys.argv) > 1 and not pathlib.Path(sys.argv[1]).exists()):
    for (batch,) in torch.utils.data.DataLoader(data, 8):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        time.sleep(0.002)
print("trained")
sys.exit(3)
"""
SCHEDULE = ("--schedule", "wait=2 warmup=1 active=3 repeat=1", "--exit-timeout", "200")


@pytest.fixture
def home(tmp_path):
    """A folder that both users can enter; the other user has a folder of their own in it."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAINING)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, UID, GID)
    return tmp_path


def begin(user, folder, *words, tmp=None):
    environment = os.environ | {"HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    if tmp is not None:
        environment["TMPDIR"] = str(tmp)
    command = [*user, sys.executable, "-m", "perfhooks", *map(str, words)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **streams)


def end(process):
    """Return exit code, output and lines of errors."""
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out, err.splitlines()


def perfhooks(user, folder, *words, tmp=None):
    return end(begin(user, folder, *words, tmp=tmp))


def files(folder):
    return {path: path.lstat().st_uid for path in folder.rglob("*")}


def assert_refused(ended, *texts):
    code, out, lines = ended
    assert (code, out, len(lines)) == (2, "", 1), ended
    assert lines[0].startswith("perfhooks: "), lines
    assert all(str(text) in lines[0] for text in texts), (lines, texts)
    assert "Errno" not in lines[0]


def test_running_training_of_another_user_cannot_be_captured(home):
    stop = home / "stop"
    training = begin((), home, "run", "--out", "runs", "--run", "r", "--handler", "steps", *SCHEDULE, "train.py", stop)
    try:
        deadline = time.monotonic() + TIMEOUT
        while not (home / "runs" / "r" / "run.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        refused = perfhooks(OTHER, home / "own", "capture", home / "runs" / "r", "--timeout", "20")
    finally:
        stop.touch()
        code, out, _ = end(training)
    assert_refused(refused, home / "runs" / "r", "cannot be written", "Permission denied")
    assert (code, out) == (3, "trained\n")
    assert not (home / "runs" / "r" / "requests").exists()
    assert set(files(home / "runs").values()) == {0}


def test_finished_run_of_another_user_is_only_read(home):
    run = home / "runs" / "r"
    trained = perfhooks((), home, "run", "--out", "runs", "--run", "r", *SCHEDULE, "train.py")
    assert trained[0] == 3, trained
    before = files(run)
    assert any(path.name == "report.html" for path in before), trained
    assert perfhooks(OTHER, home / "own", "show", run)[0] == 0
    assert perfhooks(OTHER, home / "own", "compare", run, run)[0] == 0
    for words in (["report"], ["flame"], ["merge"]):
        assert_refused(perfhooks(OTHER, home / "own", *words, run), run)
    assert files(run) == before
    assert perfhooks(OTHER, home / "own", "flame", run, "-o", "mine.svg")[0] == 0
    assert (home / "own" / "mine.svg").stat().st_uid == UID


def test_unreadable_run_of_another_user_is_named(home):
    run = home / "own" / "perf" / "r"
    trained = perfhooks(OTHER, home / "own", "run", "--run", "r", "--handler", "steps", *SCHEDULE, "../train.py")
    assert trained[0] == 3, trained
    run.chmod(0o700)
    before = files(run)
    for words in (["show"], ["report"], ["capture"], ["top"]):
        assert_refused(perfhooks(PLAIN_ROOT, home, *words, run), run, "Permission denied")
    assert files(run) == before


def test_folder_of_another_user_prevents_only_the_recording(home):
    """The default folder is checked when the training writes; a folder of an option is checked before."""
    (home / "own" / "perf").mkdir(mode=0o755)
    words = ["--run", "r", *SCHEDULE, "../train.py"]
    code, out, lines = perfhooks(OTHER, home / "own", "run", *words)
    assert (code, out) == (3, "trained\n"), lines
    assert "Permission denied" in lines[0]
    assert lines[-1] == "perfhooks: nothing was recorded: no window could be saved, see the log"
    assert_refused(perfhooks(OTHER, home / "own", "run", "--out", "perf", *words), "'perf'", "Permission denied")
    assert files(home / "own" / "perf") == {}


def test_two_users_share_a_sticky_temporary_folder(home):
    shared = home / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    words = ["--handler", "steps", *SCHEDULE]
    both = [
        begin((), home, "run", "--out", shared / "root", *words, "train.py", tmp=shared),
        begin(OTHER, home / "own", "run", "--out", shared / "other", *words, "../train.py", tmp=shared),
    ]
    assert [end(process)[:2] for process in both] == [(3, "trained\n")] * 2
    assert set(files(shared / "root").values()) == {0}
    assert set(files(shared / "other").values()) == {UID}
    assert len([*shared.glob("*/latest/train-*/rank0.steps.csv")]) == 2
    assert [path.name for path in shared.glob("perfhooks*")] == []


def test_comparison_keeps_folders_of_another_user(home):
    """The folder looks like that of a killed comparison."""
    shared = home / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    foreign = shared / "perfhooks-running-a"
    foreign.mkdir()
    link = shared / "perfhooks-running-b"
    link.symlink_to(home)
    compared = perfhooks(OTHER, home / "own", "compare", "--run", "../a.py", "--", "../a.py", tmp=shared)
    assert_refused(compared, "there is no script")
    assert sorted(path.name for path in shared.glob("perfhooks*")) == [foreign.name, link.name]
    assert (home / "train.py").exists()
