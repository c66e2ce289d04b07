"""What `perfhooks run` puts into a program: whatever fails in it, the program is as it was, and one line says why."""

import shutil
import sys
from pathlib import Path
from unittest import mock

import filelock
import pytest
from test_launching import RUN, done, ours, windows

from perfhooks.record.launch.own_imports import OwnImports

pytestmark = pytest.mark.process

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
    beside.mkdir(exist_ok=True)
    for name, text in (("script.py", script), *files):
        (beside / name).parent.mkdir(exist_ok=True, parents=True)
        (beside / name).write_text(text)
    code, out, err = done(folder, *RUN, sys.executable, beside / "script.py", **options)
    return code, out.split(), ours(err)


OWN_MODULES = """
import os, sys
vendored = [os.path.join(os.path.dirname(__file__), name) for name in ("before", "after")]
sys.path.insert(0, vendored[0])
import filelock
import torch
sys.path.insert(0, vendored[1])
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    layer(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    import msgspec, psutil, statistics
print(filelock.MINE, msgspec.MINE, psutil.MINE, statistics.MINE)
print(*(sys.modules[name] is module for name, module in (("psutil", psutil), ("msgspec", msgspec))))
"""


def test_program_and_perfhooks_keep_modules_of_equal_names(tmp_path):
    """Beside the script, in folders that it adds before and after it imports torch, and one that it imports before."""
    files = ["statistics.py", "before/psutil.py", "before/filelock.py", "after/msgspec/__init__.py"]
    (tmp_path / "beside/after").mkdir(parents=True)
    code, out, said = run(tmp_path, OWN_MODULES, *((file, "MINE = __file__") for file in files))
    assert code == 0, said
    theirs = [tmp_path / "beside" / file for file in ("before/filelock.py", files[3], files[1], files[0])]
    assert out == [*map(str, theirs), "True", "True"]
    assert windows(tmp_path), said


def test_shared_extension_modules_are_loaded_once(tmp_path):
    """Some extension modules must not be loaded twice; torch is a stub, at whose import ours is loaded."""
    script = """
import sys
import torch
hidden = [name for name in sys.modules if name.partition(".")[0] == "msgspec"]
import msgspec, msgspec.json
print(hidden, msgspec.__spec__.loader.__class__.__name__, sys.modules["msgspec"] is msgspec)
print(msgspec.json.decode(b"[1]", type=list[int]))
ours = sys.modules["perfhooks.record.launch.command_line"].msgspec
print(ours is msgspec)
"""
    code, out, said = run(tmp_path, script, NO_TORCH)
    assert (code, out) == (0, ["[]", "SourceFileLoader", "True", "[1]", "True"]), said


def test_a_module_called_perfhooks_is_the_programs_own(tmp_path):
    script = "import torch, perfhooks\nprint(perfhooks.MINE)"
    code, out, said = run(tmp_path, script, NO_TORCH, ("perfhooks.py", "MINE = __file__"))
    assert (code, out) == (0, [str(tmp_path / "beside/perfhooks.py")])
    assert len(said) == 1
    assert "another module called perfhooks is next to the script or in PYTHONPATH" in said[0]
    assert not (tmp_path / "perf").exists()


def hooked(body, program=TRAINING):
    """A program behind an import hook that somebody has put before all others."""
    return f"import sys\nclass Hook:\n    {body}\nsys.meta_path.insert(0, Hook())\n{program}"


@pytest.mark.parametrize(
    "error",
    ["RuntimeError('two\\nlines of \"text\" \\\\')", "SystemExit(3)"],
)
def test_environment_without_perfhooks_is_one_line(tmp_path, error, monkeypatch):
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


def test_old_import_hooks_and_unused_names_do_not_interfere(tmp_path):
    """Nor are folders that are no packages."""
    installed = tmp_path / "installed"
    (installed / "filelock-3.dist-info").mkdir(parents=True)
    shutil.copytree(Path(filelock.__file__).parent, installed / "filelock")
    script = hooked("def find_module(self, name, path=None): return None")
    files = (("msgspec/data.txt", ""), ("statistics/data.txt", ""), ("schedule.py", ""), ("errors.py", ""))
    code, out, said = run(tmp_path, script, *files, env={"PYTHONPATH": str(installed)})
    assert (code, out) == (0, ["trained"]), said
    assert windows(tmp_path)


def test_another_thread_may_import_while_modules_are_set_aside(monkeypatch):
    class Name(str):
        __slots__ = ()

        def partition(self, _):
            monkeypatch.setitem(sys.modules, "imported_meanwhile", sys)
            return self, "", ""

    monkeypatch.setitem(sys.modules, Name("a_module_of_the_program"), sys)
    OwnImports([], mock.Mock())._set_aside({"another"})
    assert "imported_meanwhile" in sys.modules
