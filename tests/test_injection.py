"""What `perfhooks run` puts into a program: whatever fails in it, the program is as it was, and one line says why."""

import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
from test_launching import RUN, done, ours, windows

SITE = Path(__file__).parents[1] / "perfhooks/launching/site"

TRAINING = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(12, 2)):
    optimizer.zero_grad()
    layer(batch).sum().backward()
    optimizer.step()
print("trained")
"""


NO_TORCH = ("torch.py", "")
"""Where nothing of ours comes to work with it, the name of torch is enough: its import takes 4 s."""


def run(folder, script, *files, **options):
    """The exit code, what it says, and our lines, of a script with files beside it; the command is given elsewhere."""
    beside = folder / "beside"
    beside.mkdir()
    for name, text in (("script.py", script), *files):
        (beside / name).parent.mkdir(exist_ok=True, parents=True)
        (beside / name).write_text(text)
    code, out, err = done(folder, *RUN, sys.executable, beside / "script.py", **options)
    return code, out.split(), ours(err)


def test_files_with_the_names_of_modules_of_ours_are_the_scripts_own(tmp_path):
    """Nothing of ours is read from there, and what the script imports are its files."""
    files = {"msgspec": "msgspec/__init__.py", "perfhooks": "perfhooks.py", "statistics": "statistics.py"}
    script = "import torch, msgspec, perfhooks, statistics\nprint(msgspec.MINE, perfhooks.MINE, statistics.MINE)"
    code, out, said = run(tmp_path, script, NO_TORCH, *((file, "MINE = __file__") for file in files.values()))
    assert (code, out) == (0, [str(tmp_path / "beside" / file) for file in files.values()])
    assert len(said) == 1
    assert (
        "beside the script or in PYTHONPATH lies what has the name of a module of ours: msgspec, perfhooks, statistics)"
        in said[0]
    )
    assert not (tmp_path / "perf").exists()


def hooked(body, program=TRAINING):
    """A program behind an import hook that somebody has put before all others."""
    return f"import sys\nclass Hook:\n    {body}\nsys.meta_path.insert(0, Hook())\n{program}"


@pytest.mark.parametrize(
    "error",
    ["RuntimeError('two\\nlines of \"text\" \\\\')", "SystemExit(3)"],
)
def test_an_environment_in_which_ours_cannot_be_imported_is_one_line(tmp_path, error, monkeypatch):
    """It is left in the folder for temporary files, whatever that is called."""
    (tmp_path / "für 😀").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "für 😀"))
    body = f"""def find_spec(self, name, path=None, target=None):
        if name == "msgspec":
            raise {error}"""
    code, out, said = run(tmp_path, hooked(body, "import torch; print('trained')"), NO_TORCH)
    assert (code, out) == (0, ["trained"])
    assert len(said) == 1
    assert said[0].startswith("perfhooks: nothing was recorded: ")
    assert f" cannot use perfhooks ({error.partition('(')[0]}: " in said[0]


def test_hooks_of_old_libraries_in_pythonpath_and_names_that_nobody_needs_are_in_nobodys_way(tmp_path):
    """Nor are folders that are no packages."""
    installed = tmp_path / "installed"
    (installed / "filelock-3.dist-info").mkdir(parents=True)
    shutil.copytree(Path(filelock.__file__).parent, installed / "filelock")
    script = hooked("def find_module(self, name, path=None): return None")
    files = (("msgspec/data.txt", ""), ("statistics/data.txt", ""), ("schedule.py", ""), ("errors.py", ""))
    code, out, said = run(tmp_path, script, *files, env={"PYTHONPATH": str(installed)})
    assert (code, out) == (0, ["trained"]), said
    assert windows(tmp_path)


def test_what_is_imported_later_is_known_before(tmp_path):
    """Else a file beside the script would be taken for it once the program runs."""
    script = f"""
import sys
sys.path.insert(0, {str(SITE)!r})
import sitecustomize
import perfhooks.launching.arming, torch
before = set(sys.modules)
from perfhooks.launching import calls, early, frameworks, profiling
from perfhooks.recording import worker
from perfhooks.watching import watcher
new = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.builtin_module_names)
print(*sorted(name for name in new - {{"perfhooks", "encodings", *sitecustomize.LATER}} if name[0] != "_"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert set(done.stdout.split()) <= {"termios"}, "a part of Python that is written in C"
