"""Damaged requests and answers, and what a job and whoever asks make of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import run_folders

from perfhooks import Schedule
from perfhooks.cli.actions.asking import CaptureOptions, CaptureRequest
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.options import MOST_WAITING
from perfhooks.core.schedule import OnRequest
from perfhooks.record.loop.requested import Requests
from perfhooks.record.watch.inbox import RequestInbox
from perfhooks.record.watch.loops import WatchedLoop
from perfhooks.run import layout
from perfhooks.run.folder import Run
from perfhooks.run.live import requests
from perfhooks.run.liveness import Process
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import encoded, publish_json
from perfhooks.run.timeline import Timeline

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

STEP = 100
"""The step that goes on in the job."""
NAMES = ("..", "a" * 300, "requests", "rank0.json", "\u202e", "00000000", "00000000.window.json", "rank0.here.json")
ODD = ("train", "\x1b[2J", "../../x", "x" * 500, "\ud800")


class WrongError(Exception):
    """A job does what it should not."""


class Cases:
    """The folder of a job's requests, with some in it.

    Args:
        folder: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._run.mkdir()
        Manifest().write(self._run)
        publish_json(self._run / layout.owner(0), Process.current())
        self._asking = CaptureRequest(self._run, CaptureOptions(2))
        self._requests = self._run / layout.REQUESTS
        self.path = folder / "case.json"
        """What is kept of a case: the files in it, by name."""

    def make(self, dice: random.Random, damage: Callable[[bytes], bytes]) -> None:
        """Write the next ones."""
        shutil.rmtree(self._requests, ignore_errors=True)
        self._requests.mkdir()
        self._post = RequestInbox(Run(self._run))
        kept = {}
        for number in range(dice.choices((1, 2, 5, 40), (60, 25, 13, 2))[0]):
            kind, told = dice.choice(_plain(dice))
            for _ in range(dice.choice((0, 0, 1, 3))):
                told = run_folders.mutated(told, dice, odd=ODD)
            content = json.dumps(told).encode()
            content = damage(content) if dice.random() < 0.2 else content
            path = self._requests / kind.replace("ID", f"{number:08x}")
            if dice.random() < 0.05:
                path = path.with_name(dice.choice(NAMES))
            kept[str(path.relative_to(self._run))] = content.decode("latin-1")
            with contextlib.suppress(OSError, ValueError):
                path.parent.mkdir(exist_ok=True)
                (path.mkdir if dice.random() < 0.03 else lambda path=path, content=content: path.write_bytes(content))()
                if dice.random() < 0.7:
                    os.utime(path, (9, 9))
        self.path.write_text(json.dumps(kept))

    def examine(self, dice: random.Random) -> str:
        """Have a job look at them, and somebody ask; say how many windows have a place."""
        loop = WatchedLoop(Timeline("train"), "train", 1.0, step=lambda: STEP, wake=lambda: None)
        loop.run = Run(self._run)
        course = Requests(loop, dice.choice((OnRequest(), Schedule(wait=5, warmup=1, active=2))))
        for _ in range(2):
            self._post.collect([loop], lambda loop: loop.where(1e8))
        if len(loop.inbox) > MOST_WAITING:
            raise WrongError(f"{len(loop.inbox)} requests wait")
        course.schedule_pending(STEP)
        waiting = sorted((said.first, said.last) for _, said in loop.answers if said.first is not None)
        if any(last >= first for (_, last), (first, _) in itertools.pairwise(waiting)) or len(waiting) > MOST_WAITING:
            raise WrongError(f"windows meet, or are too many: {waiting}")
        _ = course.phase(STEP), course.opens(STEP), course.next_change(STEP), course.next_window(STEP)
        self._post.answer(loop)
        self._ask()
        return f"{'no' if not waiting else 'some'} windows"

    def _ask(self) -> None:
        asking = self._asking
        for name in sorted(path.name for path in self._requests.iterdir())[:3]:
            here = requests.positions(self._run, name)
            encoded(list(here.values()))
            with contextlib.suppress(PerfhooksError):
                if here:
                    asking._ask(asking._stage(here), here)  # noqa: SLF001 -- else it waits for a job
            answer = requests.answers(self._run, name).get(0)
            with contextlib.suppress(PerfhooksError):
                # without an answer the system is asked for the process, which takes longer than all else
                _ = answer and asking._outcome(0, answer, is_over=True)  # noqa: SLF001 -- the same
        requests.withdraw(self._run, asking.name)


def _plain(dice: random.Random) -> tuple[tuple[str, Any], ...]:
    """Files that are right, windows more often than others."""
    loop = {"stage": "train", "step": 90, "median_ms": 10.0, "is_running": True}
    here = {"rank": 0, "process": {"pid": 1, "host": "a"}, "poll": 1.0, "loops": [loop]}
    answer = {"rank": 0, "state": "recorded", "window": "train-000110-000112", "first": 110, "last": 112, "why": ""}
    window = {"stage": "train", "first": dice.randrange(80, 200), "steps": dice.randrange(1, 9), "ranks": None}
    window["options"] = {"with_stack": True}
    asked = ("ID.window.json", window)
    return asked, asked, asked, ("ID.call.json", {}), ("ID/rank0.here.json", here), ("ID/rank0.json", answer)
