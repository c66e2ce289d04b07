"""Somebody's tests of ``torch.profiler.profile``, run with it and with `perfhooks.Profiler` in its place.

    python benchmarks/drop_in.py .../pytorch/test/profiler/test_profiler.py

Torch's own tests are meant, of the torch that is installed or of one near to it: what they import and this torch lacks
is skipped. They are not in torch's wheel. A test that passes with the one and not with the other is a difference; those
that are meant are in `MEANT`, and any other fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MEANT = {
    "test_schedule_function_count": "a schedule without handler writes files, and windows that come faster than those "
    "are made are skipped, with a line in the log; torch keeps the events of all windows in memory",
    "test_activity_filter_invalid_type_name": "what torch refuses when it begins to record is a line in the log, and "
    "the training goes on",
    "test_profiler_activity_config": "a window prepares itself: prepare_trace() does nothing",
    "test_cuspy_config_routes_performance_metrics": "a window prepares itself: prepare_trace() does nothing",
}
"""Tests of torch that pass with its profiler only, and why that is meant."""
_LACKING = 50
"""So many names may be gone."""
_WHY = "this torch lacks what it needs"


class Lacking:
    """Stands for what the installed torch has not, or not any more."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *tests: Any) -> Any:
        """Decorate a test that needs it, or be that test."""
        if not tests:
            raise unittest.SkipTest(_WHY)
        return unittest.skip(_WHY)(tests[0])


class Outcomes(unittest.TestResult):
    """What became of each test, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 -- unittest's name
        """Until something else is told, it passes."""
        super().startTest(test)
        self.found[test.id()] = "passed"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 -- as above
        """It was skipped."""
        super().addSkip(test, reason)
        self.found[test.id()] = "skipped"

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 -- as above
        """It failed."""
        super().addError(test, err)
        self.found[test.id()] = f"failed: {err[0].__name__}: {err[1]}"

    addFailure = addError  # noqa: N815 -- as above

    def addSubTest(self, test: Any, _subtest: Any, err: Any) -> None:  # noqa: N802 -- as above
        """A part of it failed, or did not."""
        if err is not None:
            self.addError(test, err)


def load(path: Path) -> types.ModuleType:
    """Import a file of tests, whatever it misses."""
    spec = importlib.util.spec_from_file_location("theirs", path)
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules["theirs"] = importlib.util.module_from_spec(spec)
    for _ in range(_LACKING):
        try:
            spec.loader.exec_module(found)
            break
        except ModuleNotFoundError as error:
            lacking: Any = types.ModuleType(str(error.name))
            lacking.__path__ = []
            lacking.__getattr__ = _lacking
            sys.modules[lacking.__name__] = lacking
        except ImportError as error:
            setattr(sys.modules[str(error.name)], str(error).split("'")[1], Lacking)
    return found


def _lacking(name: str) -> type[Lacking]:
    if name.startswith("__"):
        raise AttributeError(name)
    return Lacking


def tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """All tests, one by one."""
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from tests(each)
        else:
            yield each


def run(path: Path, *, ours: bool) -> dict[str, str]:
    """Run a file of tests in this process."""
    import torch.profiler

    if ours:
        import perfhooks

        torch.profiler.profile = perfhooks.Profiler  # type: ignore[assignment, misc]  # that is what is tried
    outcomes = Outcomes()
    for test in tests(unittest.defaultTestLoader.loadTestsFromModule(load(path))):
        print(test.id(), file=sys.stderr, flush=True)
        test.run(outcomes)
    return outcomes.found


def apart(path: Path, who: str) -> dict[str, str]:
    """The same in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "outcomes.json")
        command = [sys.executable, __file__, str(path), "--run", who, "--outcomes", str(found)]
        quiet = {"KINETO_LOG_LEVEL": "99", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}
        done = subprocess.run(command, cwd=folder, env=os.environ | quiet, check=False)
        if not found.exists():
            sys.exit(f"the tests ended with {done.returncode}: see above which")
        outcomes: dict[str, str] = json.loads(found.read_text())
        return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--run", choices=("torch", "perfhooks"), help=argparse.SUPPRESS)
    parser.add_argument("--outcomes", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = options.path.resolve()
    if options.run:
        sys.argv = [str(path)]  # torch's tests look at it
        options.outcomes.write_text(json.dumps(run(path, ours=options.run == "perfhooks")))
        return
    theirs, ours = apart(path, "torch"), apart(path, "perfhooks")
    passed = [name for name, found in theirs.items() if found == "passed"]
    if not passed:
        sys.exit("no test passes with torch's profiler: those of torch need the package expecttest")
    other = {name: ours.get(name, "never ran") for name in passed if ours.get(name) != "passed"}
    meant = {name: why for name in other for test, why in MEANT.items() if name.rpartition(".")[2].startswith(test)}
    print(f"{len(theirs)} tests, {len(passed)} pass with torch's profiler, {len(passed) - len(other)} with both")
    for name, found in other.items():
        print(f"  {name}: {'meant: ' + meant[name] if name in meant else found}")
    sys.exit(len(other) > len(meant))


if __name__ == "__main__":
    main()
