"""Change one thing at a time and see whether a test fails: what survives is what no test would miss.

    python benchmarks/mutants.py --room watching --count 50 --seed 7

The tests that are tried are those that enter the changed line, also in a process that they start. Which those are is
found out by running all once, and later those that are new; `dist/mutants/map.json` keeps it. Nothing is changed here:
there are copies, each with an environment of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
import mutations
from call_map import CallMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mutations import Mutant

HERE = Path(__file__).parent
LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", "dist", "lightning_logs", "work_dirs", "__pycache__")
"""What git ignores too; all but the last only at the top, as a package may have such a name."""
HOW = ("killed", "out of time", "survived")
FEWEST = 2
"""Mutants of a room, however small it is."""
FEWEST_TESTS = 3
"""So many of the tests that enter a line, the cheapest, are tried whatever they cost."""
PATIENCE = 5
"""So many times what the tests took when the map was made, because the machine may be busier, ..."""
NEAR_S = 10
"""Seconds of tests, the nearest and cheapest, that are tried first: they kill most."""
START_S = 120
"""... and this long on top, for what they import, are the limit of a run. A mutant that reaches it counts as killed."""
ATTEMPTS = 3
"""At seeing what a test enters: the process that runs it may be killed by another test."""
COVERAGE = """\
[run]
parallel = True
include =
    {tree}/perfhooks/*
    {tree}/integrations/*
data_file = {folder}/data
context = ${{MUTANTS_CONTEXT-}}
patch = _exit
disable_warnings = no-data-collected, couldnt-parse, already-imported
"""


class Copy:
    """A copy of the working tree, and a Python that imports it whatever its environment says; so do its children."""

    def __init__(self, tree: Path, folder: Path) -> None:
        folder = folder.resolve()  # as coverage writes it down
        self.folder, self.tree, self.times, self.bin = (folder / name for name in ("", "tree", "times", "venv/bin"))
        self.pytest = (self.bin / "python", "-m", "pytest", "-p", "no:cacheprovider")
        self.child: subprocess.Popen | None = None
        self.stopped = False
        top, below = shutil.ignore_patterns(*LEFT_OUT), shutil.ignore_patterns(*LEFT_OUT[-1:])
        shutil.copytree(tree, self.tree, ignore=lambda at, names: (top if Path(at) == tree else below)(at, names))
        # every test that wants recorded traces looks for them beside the tree
        if (shared := tree.parent / "shared").is_dir():
            (folder / "shared").symlink_to(shared.resolve())
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        ours, theirs = (
            Path(_output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
            for python in (self.bin / "python", sys.executable)
        )
        shutil.copy(HERE / "entered.py", ours)
        path = (self.tree, self.tree / "integrations", theirs)
        (ours / "0.pth").write_text("".join(f"{line}\n" for line in path))
        for more in theirs.glob("*.pth"):
            # what leads to the tree itself is left out: a process without its working directory would import that
            if not any(Path(line, "perfhooks").is_dir() for line in more.read_text().splitlines()):
                shutil.copy(more, ours)
        self._scripts()
        (folder / "coverage.ini").write_text(COVERAGE.format(tree=self.tree, folder=folder))
        found = _output(self.bin / "python", "-I", "-c", "import perfhooks; print(perfhooks.__file__)")
        if not Path(found).is_relative_to(self.tree):
            raise SystemExit(f"a copy imports {found} and not itself")

    def _scripts(self) -> None:
        """Commands such as torchrun start the Python that is named in them."""
        for script in Path(sys.executable).parent.iterdir():
            first = f"#!{sys.executable}\n".encode()
            if script.is_file() and (text := script.read_bytes()).startswith(first):
                (self.bin / script.name).write_bytes(f"#!{self.bin / 'python'}\n".encode() + text.removeprefix(first))
                (self.bin / script.name).chmod(0o755)

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[str]:
        """Have the mutant in the copy for so long, and say what it is."""
        path = self.tree / mutant.file
        before = path.read_text()
        after = mutant.of(before)
        assert after is not None
        try:
            self._put(path, after)
            yield mutations.shown(before, after)
        finally:
            self._put(path, before)

    def _put(self, path: Path, text: str) -> None:
        path.write_text(text)
        # compiled in the same second and of the same size, it would pass for what is there now
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def run(self, words: Sequence[str], limit_s: float | None = None, **environment: str) -> tuple[int | None, list]:
        """Run pytest; its exit status, None for out of time, and what each process that ran tests says of them."""
        if self.stopped:
            raise RuntimeError("nothing more is to be run")
        for name in ("times", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir()
        own = {"MUTANTS_TIMES": str(self.times), "TMPDIR": str(self.folder / "tmp"), "MUTANTS_CONTEXT": ""}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "PYTEST_"))}
        self.child = subprocess.Popen(
            [*self.pytest, "-q", "-p", "entered", *words],
            cwd=self.tree,
            env=inherited | own | environment,
            stdout=subprocess.DEVNULL if limit_s else None,
            stderr=subprocess.STDOUT if limit_s else None,
            start_new_session=True,
        )
        try:
            status = self.child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            self.end()
        return status, [json.loads(path.read_text()) for path in self.times.iterdir()]

    def end(self) -> None:
        """Leave no process of the last run, also of those that have a session of their own."""
        if self.child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"MUTANTS_TIMES={self.times}\0".encode() in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)


def _output(*command: str | Path, cwd: Path = Path("/")) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd).stdout.strip()


def completed(known: CallMap, tree: Path, jobs: int) -> None:
    """Run with coverage in every process what the map does not know yet, and forget of it what is no more."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(tree, Path(folder))
        there = {
            line for line in _output(*copy.pytest, "--collect-only", "-q", cwd=copy.tree).splitlines() if "::" in line
        }
        known.fixtures = {test: used for test, used in known.fixtures.items() if test in there}
        for _ in range(ATTEMPTS):
            if new := there.difference(known.fixtures, known.skipped):
                print(f"running {len(new)} tests to see what they enter", flush=True)
                _complete(known, copy, sorted(new), jobs)
                known.commit = _commit(tree)


def _complete(known: CallMap, copy: Copy, new: list[str], jobs: int) -> None:
    """Add what those tests enter, but for those of a process that broke off, or whose data cannot be read."""
    together = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    _, found = copy.run([*together, *new], COVERAGE_PROCESS_START=str(copy.folder / "coverage.ini"))
    broken = {str(path) for path in copy.folder.glob("data.*") if not _is_whole(path)}
    for path in broken:
        Path(path).unlink()
    found = [one for one in found if one["data"] not in broken]
    skipped = _those(found, "skipped")
    if failed := _those(found, "failed"):
        print(f"{len(failed)} tests failed while they were measured, and are run once more without", flush=True)
        _, again = copy.run(sorted(failed))
        failed -= _those(again, "fixtures") - _those(again, "failed")
    for one in found:
        known.fixtures |= {test: used for test, used in one["fixtures"].items() if test not in skipped | failed}
        for name, some in one["seconds"].items():
            known.seconds[name] = max(known.seconds.get(name, 0), some)  # several processes make a fixture
    known.skipped = sorted(skipped.union(known.skipped))
    measured = coverage.Coverage(config_file=str(copy.folder / "coverage.ini"))
    measured.combine()
    known.add(measured.get_data())
    measured.erase()


def _is_whole(path: Path) -> bool:
    """Whether a file of coverage can be read: a process that is killed while it writes leaves one that cannot."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as data:
            return data.execute("PRAGMA quick_check").fetchone() == ("ok",)
    except sqlite3.Error:
        return False


def _those(found: list[dict], how: str) -> set[str]:
    return {test for one in found for test in one[how]}


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip() or "no commit"


def room_of(file: str) -> str:
    """``trace`` for ``perfhooks/trace/reader.py``, ``options`` for ``perfhooks/core/options.py``."""
    top, *rest = Path(file).with_suffix("").parts
    return rest[0] if rest[0] != "__init__" else top


def sources(tree: Path) -> dict[str, dict[str, str]]:
    """The text of every file, by room."""
    rooms: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for top in ("perfhooks", "integrations"):
        for path in sorted(tree.glob(f"{top}/**/*.py")):
            file = str(path.relative_to(tree))
            rooms[room_of(file)][file] = path.read_text()
    return rooms


def drawn(rooms: dict[str, dict[str, str]], count: int, seed: int) -> list[Mutant]:
    """Mutants of all rooms, as many as each has lines; of each kind as many as of another if there are."""
    chance = random.Random(seed)
    lines = {room: sum(text.count("\n") for text in files.values()) for room, files in rooms.items()}
    found = []
    for room, files in sorted(rooms.items()):
        kinds: defaultdict[str, list[Mutant]] = defaultdict(list)
        for file, text in files.items():
            for mutant in mutations.mutants_of(file, text):
                kinds[mutant.kind].append(mutant)
        for mutants in kinds.values():
            chance.shuffle(mutants)
        turns = itertools.chain.from_iterable(
            itertools.zip_longest(*(kinds[kind] for kind in _shuffled(chance, kinds)))
        )
        real = (mutant for mutant in turns if mutant and mutant.of(files[mutant.file]) is not None)
        found += itertools.islice(real, max(FEWEST, round(count * lines[room] / sum(lines.values()))))
    return _shuffled(chance, found)


def _shuffled(chance, things):
    listed = list(things)
    chance.shuffle(listed)
    return listed


@dataclass
class Trial:
    """Tries mutants in a few copies."""

    known: CallMap
    budget_s: float
    copies: queue.SimpleQueue[Copy] = field(default_factory=queue.SimpleQueue)
    trusted: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)

    def __call__(self, mutant: Mutant) -> tuple[str, str]:
        """How it went, in a word or two, and the lines to read."""
        copy = self.copies.get()
        try:
            return self._tried(mutant, copy)
        finally:
            self.copies.put(copy)

    def _tried(self, mutant: Mutant, copy: Copy) -> tuple[str, str]:
        what, tests = self.known.tests(mutant.file, (copy.tree / mutant.file).read_text(), mutant.line)
        told = f"{mutant.file}:{mutant.line}: {mutant.kind}"
        passed: set[str] = set()
        budgets_s = [NEAR_S, self.budget_s]
        while budgets_s:
            left, fewest = tests - passed - self.doubtful, FEWEST_TESTS - len(passed) if len(budgets_s) == 1 else 0
            if not (chosen := self.known.chosen(mutant.file, left, budgets_s[0], fewest)):
                budgets_s.pop(0)
                continue
            with copy.changed(mutant):
                status, found = copy.run(["-x", *chosen], START_S + PATIENCE * self.known.cost_s(chosen))
            failed = _those(found, "failed")
            if status is None:
                return "out of time", told
            if status and not (status == 1 and self._fail_anyway(failed, copy)):
                return "killed", f"{told}; {next(iter(failed), f'pytest ended with {status}')}"
            if not status:
                passed.update(chosen)
                budgets_s.pop(0)
        how = f"{len(passed)} of {len(tests)} tests that {what} passed" if passed else "no test enters it"
        with copy.changed(mutant) as change:
            return "survived", f"{told}; {how}\n{change}"

    def _fail_anyway(self, failed: set[str], copy: Copy) -> bool:
        """Whether one of the tests fails without the mutant too: then it says nothing."""
        for test in failed - self.trusted:
            status, _ = copy.run([test], START_S + PATIENCE * self.known.cost_s([test]))
            (self.trusted if status == 0 else self.doubtful).add(test)
        return not self.doubtful.isdisjoint(failed)


def tried(tree: Path, known: CallMap, mutants: list[Mutant], jobs: int, budget_s: float) -> dict[str, Counter[str]]:
    """The numbers by room; how each mutant ended is printed as soon as it has."""
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies = [Copy(tree, Path(folder, str(index))) for index in range(jobs)]
        trial = Trial(known, budget_s)
        for copy in copies:
            trial.copies.put(copy)
        running = {pool.submit(trial, mutant): mutant for mutant in mutants}
        try:
            for done in as_completed(running):
                how, told = done.result()
                rooms[room_of(running[done].file)][how] += 1
                print(f"{how}: {told}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stopped = True
                copy.end()
            raise
    return rooms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", help="a folder or module below perfhooks/, or an integration; without it, all")
    parser.add_argument("--count", type=int, default=100, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="copies that are worked in side by side")
    parser.add_argument(
        "--budget", type=float, default=70, help="about the seconds of more tests where the nearest pass"
    )
    parser.add_argument("--map-again", action="store_true", help="run the whole suite to see which test enters what")
    parser.add_argument("--tree", type=Path, default=HERE.parent, help="the repository")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to leave nothing behind
    path = options.tree / "dist" / "mutants" / "map.json"
    known = CallMap() if options.map_again else CallMap.read(path)
    completed(known, options.tree, options.jobs)
    known.write(path)
    rooms = sources(options.tree)
    if options.room and options.room not in rooms:
        parser.error(f"there is no room {options.room!r}; there are {', '.join(sorted(rooms))}")
    mutants = drawn({options.room: rooms[options.room]} if options.room else rooms, options.count, options.seed)
    print(f"{len(mutants)} mutants; {len(known.fixtures)} tests, as of {known.commit}", flush=True)
    ended = tried(options.tree, known, mutants, options.jobs, options.budget)
    print(f"\n{'room':<24}" + "".join(f"{how:>14}" for how in HOW))
    for room, counts in [*sorted(ended.items()), ("all", sum(ended.values(), Counter()))]:
        print(f"{room:<24}" + "".join(f"{counts[how]:>14}" for how in HOW))


if __name__ == "__main__":
    main()
