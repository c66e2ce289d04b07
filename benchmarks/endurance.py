"""A long training that is forked, signalled, asked, littered and killed at random: neither it nor a window is lost.

    python benchmarks/endurance.py --windows 10000 --seed 7

A tiny training forks and records a window every five steps, while a signal, a request, a forged one, junk in its folder
or the death of its worker comes at any moment. In the first tenth and in the last twentieth the whole training is ended
as well, in five ways, and goes on from its last checkpoint. Beside it stands the same training without perfhooks, which
nobody disturbs. What must hold is in `main`; what does not is printed, with exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import secrets
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import request_cases
from planted.endured import EVERY

from perfhooks.core.errors import PerfhooksError
from perfhooks.run import layout
from perfhooks.run.capture import Place
from perfhooks.run.live import requests
from perfhooks.run.live.requests import WindowRequest
from perfhooks.run.reading import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TRAINING: Final = Path(__file__).parent / "planted" / "endured.py"
MARK: Final = "PERFHOOKS_ENDURANCE"
"""A variable of all processes that come of a run, by which those that are left are found."""
ENDS: Final = {
    signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP,
    signal.SIGINT: -signal.SIGINT, signal.SIGUSR2: 7,
}  # fmt: skip
"""What ends the training, and the exit code that it has then without perfhooks."""
GROWTH: Final = 1.1
"""How much more memory a process may have at the end than after a tenth."""
SOME: Final = 3
"""MiB, threads or files: so many come and go."""
NAMES: Final = (
    *request_cases.NAMES,
    *("rank7.capture.json", "rank9.timeline.csv", ".rank8.recording", "rank0.x.json", ".rank3.abc.spool.json"),
)
"""Of what is put into the folder."""
LONGEST_S: Final = 300
"""Without a step; the machine may be busy."""


class Endured:
    """A training that is disturbed.

    Args:
        folder: For everything that it leaves.
        windows: How many its schedule has.
        dice: Decide what happens, and when.
    """

    def __init__(self, folder: Path, windows: int, dice: random.Random) -> None:
        self.folder, self.out, self.temporary = folder, folder / "out", folder / "temporary"
        self.run = self.out / "run"
        self.steps, self._dice = windows * EVERY, dice
        self.temporary.mkdir(parents=True)
        self._environment = os.environ | {MARK: secrets.token_hex(8), "TMPDIR": str(self.temporary)}
        self.did: Counter[str] = Counter()
        self.failures: list[str] = []
        self.memory: dict[str, list[tuple[float, int]]] = {"training": [], "worker": []}
        """Bytes of the training and of its worker, with how much of it was done."""
        self.rooms: list[tuple[float, int, int]] = []
        """How much of it was done, with the threads and open files of the training."""
        self.junk: set[Path] = set()

    # --- the training ---

    def start(self, *more: object) -> subprocess.Popen[str]:
        """One process of it."""
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(
                [sys.executable, str(TRAINING), str(self.folder), str(self.steps), *map(str, more)],
                env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def courses(self) -> list[tuple[int, int]]:
        """Of each process that has done a step: the first, and the one that it was about to do last."""
        told = [path.read_bytes() for path in sorted(self.folder.glob("progress-*"))]
        return [struct.unpack("QQ", each) for each in told if each]

    @property
    def done(self) -> float:
        """How much of it, from 0 to 1."""
        return max((last for _, last in self.courses()), default=0) / self.steps

    def endure(self) -> str:
        """Have it end, again and again; what it says at last."""
        while True:
            training, course = self.start(self.out), len(self.courses())
            try:
                expected = self._disturb(training, course)
            except BaseException:
                training.kill()
                raise
            said, code = training.communicate()[0].strip(), training.returncode
            if not code and said:
                return said
            if code != expected:
                self.failures.append(f"exit code {code} where {expected} was to be, after {self.done:.1%}")
                if self.failures[2:]:
                    return ""

    def _disturb(self, training: subprocess.Popen[str], course: int) -> int:
        """Let things happen until a process ends; the exit code that it should have."""
        seen, moved = 0.0, time.monotonic()
        while training.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.wait(self._dice.choice((0.02, 0.1, 0.5)))
                break
            done = self.done
            if done != seen:
                seen, moved = done, time.monotonic()
            elif time.monotonic() - moved > LONGEST_S:
                self.failures.append(f"it hangs after {done:.1%}")
                training.kill()
                return -signal.SIGKILL
            if len(self.courses()) == course:
                continue  # it begins
            self._measure(training.pid, done)
            if (done < 0.1 or done > 0.95) and self._dice.random() < 0.02:
                how = self._dice.choice(list(ENDS))
                self.did[how.name] += 1
                training.send_signal(how)
                return self._ended(training, how)
            what = self._dice.choice(DISTURBANCES)
            with contextlib.suppress(OSError, psutil.Error, PerfhooksError):
                self.did[what.__name__] += what(self, training) is not False
        return 0

    @staticmethod
    def _ended(training: subprocess.Popen[str], how: signal.Signals) -> int:
        try:
            training.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            training.kill()
            return 0  # which it has not
        return ENDS[how]

    def _worker(self, pid: int) -> psutil.Process | None:
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                if "perfhooks.report.finishing.serving" in " ".join(child.cmdline()):
                    return child
        return None

    def _measure(self, pid: int, done: float) -> None:
        with contextlib.suppress(psutil.Error):
            training = psutil.Process(pid)
            self.memory["training"].append((done, training.memory_info().rss))
            self.rooms.append((done, training.num_threads(), training.num_fds()))
            if worker := self._worker(pid):
                self.memory["worker"].append((done, worker.memory_info().rss))

    # --- what happens to it ---

    def signal(self, training: subprocess.Popen[str]) -> bool | None:
        """One that it handles; at the very end, Python has no handlers any more."""
        if self.done > 0.99:
            return False
        training.send_signal(signal.SIGUSR1)
        return None

    def ask(self, _: object) -> None:
        """For a window, as `perfhooks capture` does."""
        ahead = int(self.done * self.steps) + self._dice.randrange(200)
        name = requests.new_id()
        requests.call(self.run, name)
        requests.ask(self.run, name, WindowRequest(stage="train", first=ahead, steps=self._dice.randrange(1, 4)))

    def forge(self, _: object) -> None:
        """A request that is none."""
        content = self._dice.choice((b"", b"{", b"[" * 10**5, b'{"stage":"train","first":0,"steps":1e9}', b"\xff" * 99))
        (self.run / layout.REQUESTS).mkdir(exist_ok=True)
        self._litter(self.run / layout.REQUESTS / f"{requests.new_id()}.window.json", content)

    def tidy(self, _: object) -> None:
        """Take the requests away, as whoever asked does."""
        for file, name, _kind in requests.names(self.run):
            requests.withdraw(self.run, name)
            self.junk.discard(self.run / layout.REQUESTS / file)

    def litter(self, _: object) -> None:
        """Put something into the run folder, `requests` or a window, under a name that might be one of ours."""
        windows = [self.run / name for name in _names(self.run) if layout.steps_of(name)][-3:]
        where = self._dice.choice([self.run, self.run / layout.REQUESTS, *windows])
        name = self._dice.choice((*NAMES, f"train-{10**17 + self._dice.randrange(99)}"))
        if name not in _names(where):
            self._litter(where / name, self._dice.randbytes(self._dice.choice((0, 9, 10**4))))

    def _litter(self, path: Path, content: bytes) -> None:
        how: Sequence[Callable[[], object]] = (
            lambda: path.write_bytes(content), lambda: path.write_bytes(content),
            lambda: path.symlink_to(self._dice.choice(("/dev/zero", "/etc", "nowhere"))),
            lambda: os.mkfifo(path), path.mkdir,
        )  # fmt: skip
        self._dice.choice(how)()
        self.junk.add(path)

    def kill_worker(self, training: subprocess.Popen[str]) -> bool | None:
        """Seldom, as three that die idle one after the other are the last; not for half of the time: it may grow."""
        if 0.4 < self.done < 0.95 or self._dice.random() < 0.95 or not (worker := self._worker(training.pid)):
            return False
        worker.kill()
        return None

    # --- what is left of it ---

    def report(self) -> subprocess.CompletedProcess[str]:
        """Have the rest be finished, as if the drafts of those that were killed were old."""
        for draft in self.run.rglob(".*.tmp"):
            os.utime(draft, (9, 9))
        return subprocess.run(
            [sys.executable, "-m", "perfhooks", "report", str(self.run)],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def expected(self) -> set[str]:
        """The windows of the schedule whose last step has ended."""
        found = set()
        for first, last in self.courses():
            whole = range(EVERY - 1, last, EVERY)
            found |= {layout.window("train", step, step) for step in whole if step - 1 >= first and step < last}
        return found

    def lost(self) -> Iterator[str]:
        """What became of windows that should not have."""
        there = {name for name in _names(self.run) if layout.steps_of(name) and self.run / name not in self.junk}
        yield from (f"{name} is not there" for name in sorted(self.expected() - there))
        for name in sorted(there):
            place = Place(self.run / name, 0)
            try:
                facts = place.load()
                rows = place.artifact(layout.STEPS).read_text().splitlines()
            except Exception as error:  # noqa: BLE001 -- whatever it is
                yield f"{name}: {error!r}"
                continue
            if facts.state != "done" or (facts.partial is None and len(rows) != 1 + facts.reached - facts.first):
                yield f"{name} is {facts.state}, {rows}"
        manifest = read_json(self.run / layout.MANIFEST, dict, "a manifest")
        yield from (f"{name} is not on the page" for name in sorted(there - set(manifest["windows"])))

    def left(self) -> Iterator[str]:
        """Processes and files that nobody needs."""
        mark = f"{MARK}={self._environment[MARK]}".encode()
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    yield f"process {process.pid}: {' '.join(process.cmdline())[:200]}"
        locks = {layout.PAGE_LOCK, layout.MANIFEST_LOCK, layout.REQUESTS_LOCK, *map(layout.lock, range(10))}
        known = {layout.owner(0), layout.owner_lock(0), layout.PAGE_CACHE, *locks}
        ours = [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        for path in [*self.run.rglob(".*"), *ours]:
            if path.name not in known and not any(each == path or each in path.parents for each in self.junk):
                yield f"file {path.relative_to(self.folder)}"

    def grown(self) -> Iterator[str]:
        """What became more from the time after a tenth to the end of the time before the training is ended again."""
        kinds = {name: [*pairs] for name, pairs in self.memory.items()}
        kinds |= {"threads": [(done, each) for done, each, _ in self.rooms]}
        kinds |= {"files": [(done, each) for done, _, each in self.rooms]}
        for name, pairs in kinds.items():
            begun = 0.42 if name == "worker" else 0.12  # it has begun again after a kill
            unit = 2**20 if name in self.memory else 1
            places = {
                f"{place:.0%}": statistics.median(near) / unit
                for place in (begun, 0.5, 0.7, 0.93)
                if (near := [each for done, each in pairs if abs(done - place) < 0.02])
            }
            print(f"{name}: {places}, at most {max((each for _, each in pairs), default=0) / unit:.1f}")
            known = list(places.values())
            if known and known[-1] > known[0] * GROWTH + SOME:
                yield f"{name}: {known[0]:.1f} became {known[-1]:.1f}"


DISTURBANCES: Final = (Endured.signal, Endured.ask, Endured.forge, Endured.tidy, Endured.litter, Endured.kill_worker)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="a new folder, for all that is left of it")
    options = parser.parse_args()
    os.environ["KINETO_LOG_LEVEL"] = "99"
    for how in (signal.SIGHUP, signal.SIGINT):  # which may be ignored in the background, and then by the training
        signal.signal(how, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as name:
        folder, began = options.keep or Path(name), time.monotonic()
        bare = Endured(folder / "bare", options.windows, random.Random(0)).start()
        endured = Endured(folder / "endured", options.windows, random.Random(options.seed))
        said = endured.endure()
        print(f"{time.monotonic() - began:.0f} s, {len(endured.courses())} processes: {dict(endured.did)}", flush=True)
        failures = endured.failures
        if said != bare.communicate()[0].strip():
            failures.append("the results are others")
        reported = endured.report()
        own = [line for line in reported.stderr.splitlines() if not re.match(r"train-\d+(-\d+)? rank [378]: ", line)]
        if reported.returncode not in (0, 1) or own:  # of ranks that are junk it says that they are
            failures.append(f"report: {reported.returncode}, {own}")
        lost = list(endured.lost())
        print(f"{len(endured.expected())} windows of the schedule, {len(_names(endured.run))} files, {len(lost)} lost")
        failures += [*lost[:20], *endured.left(), *endured.grown()]
    print(*failures, sep="\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
