"""One of the two programs that take turns: a command, started under ``perfhooks run``'s own way, and its ranks."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import msgspec
import psutil

from perfhooks.comparing.turns import Block
from perfhooks.errors import OptionError
from perfhooks.launching import command_line, exit_summary, notes
from perfhooks.launching.turns import Turn, TurnEnd
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOOK_S: Final = 0.1
"""How often it is looked whether a program has ended that is connected to nothing; all else tells by itself."""
_APART_S: Final = 300.0
"""How long the ranks of a program may take to come to the same step: NCCL's collectives give up after ten minutes."""
_PATIENCE_S: Final = 60.0
_PATIENCE: Final = 5.0
"""A program may take so many times as long to its first step as the other one took, and a minute at least."""
_GRACE_S: Final = 10.0
"""From the signal that ends a program to the one that it cannot refuse: time to write a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One side: what is run, and where."""

    name: str
    """``A`` or ``B``."""
    label: str
    """As it was given, and at which revision."""
    words: Sequence[str]
    folder: Path
    paths: Sequence[Path] = ()
    """Folders of modules that come before those that are installed."""


class _Connection(NamedTuple):
    connection: socket.socket
    lines: BinaryIO


class Program:
    """A command that runs. It is held at its first step, and whenever it has made the steps of its turn.

    Args:
        command: What is run.
        folder: Where its output goes.
        number: Of the pair.
    """

    def __init__(self, command: Command, folder: Path, number: int) -> None:
        self.command = command
        self.log = folder / f"{number}-{command.name}.txt"
        self.blocks: list[Block] = []
        self.is_ended = False
        """Whether it was told to end, and did not by itself."""
        self.notes: list[str] = []
        self._said = folder / f"{number}-{command.name}"
        self._said.mkdir()
        self.is_over = False
        """Whether it takes no more turns."""
        self._ranks: dict[int, _Connection] = {}
        """By their numbers."""
        self._held: dict[int, TurnEnd] = {}
        self._turn = Turn(0)
        self.steps = 0
        """That it has made in all its turns."""
        self.seconds = 0.0
        """How long those took, as far as the timed ones tell."""
        self._apart_since: float | None = None
        self._has_begun = False
        self.began = time.monotonic()
        self.first_step_s: float | None = None
        """From its start to its first step."""
        self._events = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = f"{self._said}/turns"
        try:
            self._listener.bind(address)
        except OSError as error:
            raise OptionError(f"no socket can be made in {folder} ({error}); TMPDIR may name another folder") from error
        self._listener.listen()
        self._events.register(self._listener, selectors.EVENT_READ)
        asked = command_line.Request(notes=str(self._said), turns=address)
        paths = os.pathsep.join(filter(None, (*map(str, command.paths), os.environ.get("PYTHONPATH"))))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command.words,
                cwd=command.folder,
                env=command_line.environment(asked, {**os.environ, "PYTHONPATH": paths}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: it ends both
            )

    # -- turns -------------------------------------------------------------------------------------------------------

    @property
    def has_steps(self) -> bool:
        """Whether it was held at its first step."""
        return self.first_step_s is not None

    @property
    def is_held(self) -> bool:
        """Whether all its ranks are."""
        return bool(self._held) and len(self._held) >= max(held.ranks for held in self._held.values())

    @property
    def is_alone(self) -> bool:
        """Whether nothing works for any of its ranks but their own threads."""
        return all(held.is_alone for held in self._held.values())

    @property
    def processors(self) -> dict[int, int | None]:
        """On which the thread of the steps ran last, of each rank; none if two ended on the same one."""
        found = {rank: held.processor for rank, held in self._held.items()}
        return found if len(set(found.values())) == len(found) else {}

    def until_held(self) -> bool:
        """Wait until it is held; whether it is: otherwise it has ended, or goes on without turns."""
        while not self.is_over and not self.is_held:
            self.listen()
        if self.is_over:
            return False
        self._take()
        return True

    def listen(self) -> None:
        """Hear what its ranks say, for a moment."""
        for key, _ in self._events.select(_LOOK_S):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                lines = connection.makefile("rb")
                self._events.register(connection, selectors.EVENT_READ, _Connection(connection, lines))
            else:
                self._hear(key.data)
        if not self._ranks and self._process.poll() is not None:
            self.is_over = True
        self._give_up()

    def stop_children(self) -> None:
        """What its ranks have started must not work ahead while it is held."""
        self._answer(Turn(0))

    def let_go(self, turn: Turn, beside: Program | None = None) -> None:
        """It is its turn, where that of another program has ended."""
        processors = {} if beside is None else beside.processors
        self._held.clear()
        self._turn = turn
        self._answer(turn, processors)

    def free(self) -> None:
        """It takes no more turns, and goes on by itself."""
        self.is_over = True
        self._events.close()
        self._listener.close()
        for rank in self._ranks.values():
            rank.lines.close()
            rank.connection.close()
        self._ranks.clear()

    def _answer(self, turn: Turn, processors: Mapping[int, int | None] = MappingProxyType({})) -> None:
        for number, rank in self._ranks.items():
            answer = msgspec.structs.replace(turn, processor=processors.get(number))
            with contextlib.suppress(OSError):  # it has ended, as its socket will tell
                rank.connection.sendall(msgspec.json.encode(answer) + b"\n")

    def _take(self) -> None:
        """The block that has ended; what came before the first turn is none."""
        ranks = list(self._held.values())
        if self._has_begun:
            waited = [held.waited_ns for held in ranks if held.waited_ns is not None]
            block = Block(
                steps=min(held.steps for held in ranks),
                wall_ns=max(held.wall_ns for held in ranks),
                cpu_ns=sum(held.cpu_ns for held in ranks),
                busy_ns=sum(held.busy_ns for held in ranks) // len(ranks),
                waited_ns=sum(waited) // len(ranks) if len(waited) == len(ranks) else None,
            )
            self.blocks.append(block)
            self.steps += self._turn.lead + block.steps
            self.seconds += block.wall_ns * 1e-9 * (1 + self._turn.lead / max(block.steps, 1))
        self._has_begun = True

    def _hear(self, rank: _Connection) -> None:
        """One line of a rank, or its end, which is that of the turns."""
        try:
            held = msgspec.json.decode(rank.lines.readline(), type=TurnEnd)
        except (OSError, msgspec.MsgspecError):
            self._events.unregister(rank.connection)
            self.is_over |= rank in self._ranks.values()
            return
        if self._ranks.setdefault(held.rank, rank) is rank:
            self._held[held.rank] = held
            self.first_step_s = self.first_step_s or time.monotonic() - self.began
        else:  # the connection's end lets it go
            self._events.unregister(rank.connection)
            rank.lines.close()
            rank.connection.close()
            self.notes.append(f"another process of {self.command.name} made steps as well, and was not held")

    def _give_up(self) -> None:
        """Do not wait for ever for a rank that does not come."""
        now = time.monotonic()
        self._apart_since = None if self.is_held or not self._held else self._apart_since or now
        if self._apart_since is not None and now - self._apart_since > _APART_S:
            came, ranks = len(self._held), max(held.ranks for held in self._held.values())
            self.notes.append(f"only {came} of {ranks} ranks of {self.command.name} came to the same step")
            self.is_over = True

    def has_lost_patience(self, beside: Program) -> bool:
        """Whether another program has waited long enough for this one's first step."""
        if self.has_steps or beside.first_step_s is None:
            return False
        patience = max(_PATIENCE_S, _PATIENCE * beside.first_step_s)
        return time.monotonic() - self.began > beside.first_step_s + patience

    # -- its end -----------------------------------------------------------------------------------------------------

    def wait(self) -> int:
        """Let it run to its end; its exit code, less than 0 for a signal."""
        self.free()
        return self._process.wait()

    def end(self) -> None:
        """End it, and all that it has started, unless it has ended by itself."""
        if self._process.poll() is not None:
            self.free()
            return
        self.is_ended = True
        processes = self._processes()
        self.free()
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        finally:  # who presses Ctrl-C once more waits no longer
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._process.wait()

    def _processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        return []

    @property
    def code(self) -> int | None:
        """Its exit code, less than 0 for a signal; None while it runs."""
        return self._process.returncode

    def why_no_steps(self) -> str:
        """Why nothing of it could be held."""
        if self._process.poll() is None:
            return f"{time.monotonic() - self.began:.0f} s after its start there was none"
        return "; ".join(exit_summary.reasons(notes.read(str(self._said)), self.command.words, self.code))

    def last_lines(self, count: int) -> list[str]:
        """What it wrote last."""
        with contextlib.suppress(OSError):
            return read_bytes(self.log).decode("utf-8", "replace").splitlines()[-count:]
        return []

    def forget(self) -> None:
        """What it left that nobody reads."""
        shutil.rmtree(self._said, ignore_errors=True)
