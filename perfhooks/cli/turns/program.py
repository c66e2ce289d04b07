from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import msgspec

from perfhooks.analysis.comparison.turns import Block
from perfhooks.cli.turns import processes
from perfhooks.cli.turns.freezing import Freezer
from perfhooks.cli.turns.supervisor import GRACE_S
from perfhooks.core import words
from perfhooks.core.errors import OptionError
from perfhooks.core.process import POLL_S
from perfhooks.record.launch import command_line, exit_summary, notes
from perfhooks.record.launch.turns import Turn, TurnEnd
from perfhooks.run.live import change_notes
from perfhooks.run.publishing import SILENT_S
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.cli.turns.supervisor import Owner
    from perfhooks.core.changes import TrainingChange
    from perfhooks.run.live.change_notes import Effects

_PEER: Final = struct.Struct("3i")
"""``struct ucred`` of Linux: process, user and group."""


@dataclass(frozen=True, kw_only=True)
class Command:
    name: str
    label: str
    words: Sequence[str]
    folder: Path
    paths: Sequence[Path] = ()
    """Folders of modules that take precedence over installed ones."""
    changes: tuple[TrainingChange, ...] | None = None
    is_copied: bool = False


class ProgramResult(NamedTuple):
    command: Command
    log: str
    code: int | None
    """Exit code; negative for a signal, None if the program never ended."""
    is_ended: bool
    blocks: int
    notes: Sequence[str]
    last_lines: Sequence[str]
    effects: Effects
    memory_bytes: int


class _Connection(NamedTuple):
    connection: socket.socket
    lines: BinaryIO

    @property
    def pid(self) -> int | None:
        """Process id of the connected program, if known."""
        if not hasattr(socket, "SO_PEERCRED"):
            return None
        peer = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(peer)[0])

    def answer(self, turn: Turn) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(msgspec.json.encode(turn) + b"\n")


class Program:
    """A running command. The program waits at its first step and at the end of each block."""

    def __init__(self, command: Command, folder: Path, number: int, owner: Owner) -> None:
        self.command = command
        self._owner = owner
        self._freezer = Freezer()
        self.log = folder / f"{number}-{command.name}.txt"
        self.blocks: list[Block] = []
        self.is_ended = False
        self.notes: list[str] = []
        self._said = folder / f"{number}-{command.name}"
        self._said.mkdir()
        self.is_over = False
        self.memory_bytes = 0
        self._ranks: dict[int, _Connection] = {}
        self._held: dict[int, TurnEnd] = {}
        self._turn = Turn(0)
        self.steps = 0
        self.seconds = 0.0
        """Time of timed steps in all blocks, in s."""
        self._block_began: float | None = None
        """Start of the current block in s; None while the program waits."""
        self._has_begun = False
        self.began = time.monotonic()
        self.first_step_s: float | None = None
        self._events = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = f"{self._said}/turns"
        try:
            self._listener.bind(address)
        except OSError as error:
            raise OptionError(f"no socket can be made in {folder} ({error}); set TMPDIR to another folder") from error
        self._listener.listen()
        self._events.register(self._listener, selectors.EVENT_READ)
        request = command_line.Request(notes=str(self._said), turns=address, changes=command.changes)
        where = command.folder
        if command.is_copied:
            where = folder / f"{number}-{command.name}-copy"
            shutil.copytree(command.folder, where, ignore=shutil.ignore_patterns(".git"), ignore_dangling_symlinks=True)
        paths = os.pathsep.join(filter(None, (*map(str, command.paths), os.environ.get("PYTHONPATH"))))
        with self.log.open("wb") as log:
            self._process = owner.start(
                command.words,
                cwd=where,
                env=command_line.environment(request, {**os.environ, "PYTHONPATH": paths}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def has_steps(self) -> bool:
        return self.first_step_s is not None

    @property
    def is_held(self) -> bool:
        return bool(self._held) and len(self._held) >= max(turn_end.ranks for turn_end in self._held.values())

    @property
    def is_alone(self) -> bool:
        return all(turn_end.is_alone for turn_end in self._held.values())

    @property
    def processors(self) -> dict[int, int | None]:
        """CPU on which each rank last ran; empty if two ranks used the same CPU."""
        cpus = {rank: turn_end.processor for rank, turn_end in self._held.items()}
        return cpus if len(set(cpus.values())) == len(cpus) else {}

    @property
    def pids(self) -> list[int]:
        connected = [rank.pid for rank in self._ranks.values() if rank.connection.fileno() >= 0]
        return [pid for pid in connected if pid is not None]

    def until_held(self) -> bool:
        """Wait until the program is paused. Return False if the program ended or does not take part in blocks."""
        while not self.is_over and not self.is_held:
            self.listen()
        if self.is_over:
            return False
        self._take()
        return True

    def listen(self) -> None:
        self._owner.check()
        for key, _ in self._events.select(POLL_S):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                connection.settimeout(POLL_S)
                lines = connection.makefile("rb")
                self._events.register(connection, selectors.EVENT_READ, _Connection(connection, lines))
            else:
                self._hear(key.data)
        if not self._ranks and self._process.poll() is not None:
            self.is_over = True
        if self.is_over or not self.is_held:
            self._freezer.thaw()
        self._give_up()

    def stop_children(self) -> None:
        if self.is_alone:
            return
        self._freezer.freeze(self.pids)
        if self._freezer.refusal:
            note = f"child processes of {self.command.name} could not be paused between its blocks"
            self.notes = list(dict.fromkeys([*self.notes, f"{note}: {self._freezer.refusal}"]))

    def let_go(self, turn: Turn, beside: Program | None = None) -> None:
        """Let the program run its next block, on the CPU on which the other program, ``beside``, last ran."""
        processors = {} if beside is None else beside.processors
        self._held.clear()
        self._turn = turn
        self._block_began = time.monotonic()
        self._freezer.thaw()
        for number, rank in self._ranks.items():
            rank.answer(msgspec.structs.replace(turn, processor=processors.get(number)))

    def free(self) -> None:
        self.is_over = True
        self._freezer.thaw()
        for rank in self._ranks.values():
            rank.answer(Turn(0))

    def close(self) -> None:
        for key in list(self._events.get_map().values()):
            if isinstance(key.data, _Connection):
                self._disconnect(key.data)
        self._events.close()
        self._listener.close()

    def _disconnect(self, rank: _Connection) -> None:
        self._events.unregister(rank.connection)
        rank.lines.close()
        rank.connection.close()

    def _take(self) -> None:
        ranks = list(self._held.values())
        if self._has_begun:
            waited = [turn_end.waited_ns for turn_end in ranks if turn_end.waited_ns is not None]
            block = Block(
                steps=min(turn_end.steps for turn_end in ranks),
                wall_ns=max(turn_end.wall_ns for turn_end in ranks),
                cpu_ns=sum(turn_end.cpu_ns for turn_end in ranks),
                busy_ns=sum(turn_end.busy_ns for turn_end in ranks) // len(ranks),
                waited_ns=sum(waited) // len(ranks) if len(waited) == len(ranks) else None,
            )
            self.blocks.append(block)
            self.steps += self._turn.lead + block.steps
            self.seconds += block.wall_ns * 1e-9 * (1 + self._turn.lead / max(block.steps, 1))
        self._has_begun = True

    def _hear(self, rank: _Connection) -> None:
        try:
            turn_end = msgspec.json.decode(rank.lines.readline(), type=TurnEnd)
        except (OSError, msgspec.MsgspecError):
            self._disconnect(rank)
            self.is_over |= rank in self._ranks.values()
            return
        if self.is_over or self._ranks.setdefault(turn_end.rank, rank) is not rank:
            rank.answer(Turn(0))
        if self._ranks.get(turn_end.rank) is rank:
            self._held[turn_end.rank] = turn_end
            self.first_step_s = self.first_step_s or time.monotonic() - self.began
        else:
            self.notes.append(f"another process of {self.command.name} also made steps, and was not paused")

    def _give_up(self) -> None:
        if self.is_over or self.is_held:
            self._block_began = None
            return
        if self._held and self._block_began is None:
            self._block_began = time.monotonic()
        if self._block_began is not None and time.monotonic() - self._block_began > SILENT_S:
            came = len(self._held)
            ranks = (
                f"{came} of {words.count(max(turn_end.ranks for turn_end in self._held.values()), 'rank')}"
                if came
                else "none of the ranks"
            )
            self.notes.append(f"{ranks} of {self.command.name} reached the same step within {words.ms(SILENT_S * 1e3)}")
            self.is_over = True

    def has_lost_patience(self, beside: Program) -> bool:
        """Whether the other program, ``beside``, has waited too long for the first step of this program."""
        if self.has_steps or beside.first_step_s is None:
            return False
        # its start may take five times as long as that of the other program
        patience = max(command_line.PATIENCE_S, 5 * beside.first_step_s)
        return time.monotonic() - self.began > beside.first_step_s + patience

    def wait(self) -> int:
        self.free()
        while (code := self._process.poll()) is None:
            self.listen()
        return code

    def mark_end(self) -> None:
        if self.is_over:  # its socket is closed, and the process may be about to end by itself
            self._freezer.thaw()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        self.is_ended |= self._process.poll() is None
        if self.command.changes is not None:
            self.memory_bytes = processes.memory(self.pids)
        self.free()

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def why_no_steps(self) -> str:
        if self._process.poll() is None:
            return f"it made none in the {time.monotonic() - self.began:.0f} s since its start"
        return "; ".join(exit_summary.reasons(notes.read(str(self._said)), self.command.words, self.code))

    def last_lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return read_bytes(self.log).decode("utf-8", "replace").splitlines()[-10:]
        return []

    def result(self) -> ProgramResult:
        facts = (self.command, self.log.name, self.code, self.is_ended, len(self.blocks), self.notes)
        return ProgramResult(*facts, self.last_lines(), change_notes.read(str(self._said)), self.memory_bytes)
