"""`make mutants` on a package of two functions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="needs the dependency group `mutants`")

pytestmark = [pytest.mark.process, pytest.mark.nightly]

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "mutants.py"

MODULE = """\
def asserted(value):
    return value + 1


def only_called(value):
    return value + 1


def never_called(value):
    return value + 1
"""

TESTS = """\
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def answered():
    # as the worker does, which imports nothing from the working directory that is to be had elsewhere
    first = "import os, sys; here = os.getcwd(); sys.path[:] = [at for at in sys.path if at not in ('', here)] + [here]"
    then = "from perfhooks.dist import sums; print(sums.asserted(4), sums.only_called(4))"
    command = [sys.executable, "-c", f"{first}; {then}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_something_else():
    pass


def test_a_process(answered):
    assert answered.startswith("5 ")
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("project")
    for name, text in {
        # these take most of the time that pytest needs to start, and here it starts some fifty times
        "pytest.ini": "[pytest]\naddopts = -p no:hypothesispytest -p no:xdist -p no:anyio\n",
        "perfhooks/__init__.py": "",
        # pytest imports it, as what is installed here says that there is one
        "perfhooks/pytest_plugin.py": "",
        # left out of a copy at the top, where it is what a build leaves
        "perfhooks/dist/__init__.py": "",
        "perfhooks/dist/sums.py": MODULE,
        "integrations/README.md": "",
        "tests/test_sums.py": TESTS,
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return tree


def told_of(tree, **environment):
    command = [sys.executable, SCRIPT, "--tree", tree, "--room", "dist", "--count", "99", "--jobs", "1"]
    environment = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told(tree):
    return told_of(tree)


def killed_lines(told):
    return [line.split(":")[2] for line in told.splitlines() if line.startswith("killed")]


def test_assertion_kills_mutants_in_shared_fixture_processes(told):
    assert killed_lines(told) == ["2"] * 3
    assert told.count("; tests/test_sums.py::test_a_process\n") == 3


def test_survivor_is_shown_with_place_change_and_tests(told):
    entered = "survived: perfhooks/dist/sums.py:6: arithmetic; 2 of 2 tests that may enter the line passed\n"
    change = "    -    return value + 1\n    +    return value - 1\n"
    assert entered + change in told
    assert "survived: perfhooks/dist/sums.py:10: arithmetic; no test enters it\n" + change in told


def test_counts_are_shown_by_room(told):
    header, *rows = told.rstrip().splitlines()[-3:]
    assert header.split("  ")[0] == "room"
    assert [row.split() for row in rows] == [["dist", "3", "0", "6"], ["all", "3", "0", "6"]]


def test_tree_stays_unchanged(told, tree):
    assert (tree / "perfhooks/dist/sums.py").read_text() == MODULE


def test_changed_function_is_tested_with_callers_and_new_tests(told, tree, tmp_path):
    shutil.copytree(tree, tmp_path / "project")
    module = tmp_path / "project/perfhooks/dist/sums.py"
    module.write_text(MODULE.replace("value + 1", "1 + value", 1))
    new = "from perfhooks.dist import sums\n\n\ndef test_new():\n    assert sums.never_called(2) == 3\n"
    (tmp_path / "project/tests/test_new.py").write_text(new)
    again = told_of(tmp_path / "project")
    assert "running 1 tests" in again
    assert sorted(killed_lines(again)) == ["10"] * 3 + ["2"] * 3


NEAR = """\
import os
import subprocess
import sys

from perfhooks.dist import sums


def test_alone():
    done = subprocess.run([sys.executable, "-m", "perfhooks.dist.alone"], capture_output=True, check=True)
    assert done.stdout == b"42\\n"


def test_near():
    sums.only_called(3)
    with open(os.environ.get("RAN", os.devnull), "a") as ran:
        ran.write("near ")


def test_far():
    with open(os.environ.get("RAN", os.devnull), "a") as ran:
        ran.write("far ")
    assert sums.only_called(3) == 4
"""


def test_data_structures_are_not_mutated(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from mutations import mutants_of

    found = mutants_of("kept.py", "class Kept(Struct, frozen=True):\n    count: int = 5\n")
    assert {mutant.line for mutant in found} == {2}


def test_expensive_tests_run_once_after_nearby_tests(told, tree, tmp_path):
    """A module without functions is tried with what runs it."""
    shutil.copytree(tree, tmp_path / "project")
    (tmp_path / "project/perfhooks/dist/alone.py").write_text("print(6 * 7)\n")
    (tmp_path / "project/tests/test_near.py").write_text(NEAR)
    path = tmp_path / "project/dist/mutants/map.json"
    known = json.loads(path.read_text())
    known["seconds"]["tests/test_near.py::test_far"] = 60
    path.write_text(json.dumps(known))
    again = told_of(tmp_path / "project", RAN=str(tmp_path / "ran"))
    assert sorted(killed_lines(again)) == ["1"] * 6 + ["2"] * 3 + ["6"] * 3
    # each once for the map; then for each mutant of the line; the one that failed was tried once without a mutant too
    assert (tmp_path / "ran").read_text().split() == ["far", "near"] + ["near", "far", "far"] + ["near", "far"] * 2
