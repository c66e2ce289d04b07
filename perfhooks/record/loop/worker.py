"""Start and manage the worker process, which writes the files of recorded windows.

The worker is a new program: a thread would hold the training's GIL, a forked process would share the device, and a
spawned process would run the user's script again.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeAlias

import msgspec

from perfhooks.core.guard import logger
from perfhooks.core.process import working_directory
from perfhooks.report.finishing.messages import decode_result, encode
from perfhooks.run.publishing import OwnFolder

if TYPE_CHECKING:
    from perfhooks.report.finishing.messages import Task, TaskResult

Popen: TypeAlias = "subprocess.Popen[bytes]"

_BOOTSTRAP: Final = """\
import os, sys
try:
    here = os.getcwd()
except FileNotFoundError:
    here = os.chdir("/") or "/"
sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
def is_own(entry):
    if entry not in python_path:
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(entry))
    except OSError:
        return False
own = [entry for entry in sys.path if is_own(entry)]
import gc, json
gc.disable()
channel = int(sys.argv[2])
if hasattr(os, "nice"):
    os.nice(10)
    os.set_blocking(channel, True)
os.dup2(channel, 0)
os.dup2(channel, 1)
os.close(channel)
unread = os.read(0, 65536)
ours, path = json.loads(sys.argv[1])
sys.path[:] = dict.fromkeys([*([] if ours in (here, *own) else [ours]), *own, *path])
from perfhooks.report.finishing.serving import serve
gc.freeze()
gc.enable()
serve(unread, int(sys.argv[3]))
"""
"""Code of the worker. The worker imports nothing before the first message, so it needs little memory while idle.
Installed packages come first in ``sys.path``, because the training's path may have another version of a dependency.
Output of a sitecustomize goes to the log, not to the training. The garbage collector, which would scan all modules
several times, is off during imports.
"""

HERE: Final = str(Path(__file__).parents[3])
_ENVIRONMENT: Final = {
    # the worker must use neither the training's devices nor its CPUs
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_UNWANTED: Final = (
    "PERFHOOKS_RUN",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
    "LD_PRELOAD",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "KINETO_USE_DAEMON",
    "PYTHONSTARTUP",
)

_SHELL: Final = ("/bin/sh", "-c", 'exec "$0" "$@"') if os.access("/bin/sh", os.X_OK) else ()
"""First words of the worker's command, which hide Python from debuggers. debugpy inserts itself into commands that
begin with Python, and the worker would end when debugpy disconnects.
"""

NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""Flag that avoids SIGPIPE if the worker has ended."""

_alive: list[subprocess.Popen[bytes]] = []


def can_start() -> bool:
    name = Path(sys.executable or "").name.lower()
    return not getattr(sys, "frozen", False) and ("python" in name or "pypy" in name)


def reap() -> None:
    _alive[:] = [child for child in _alive if child.poll() is None]


def release_children() -> None:
    """Let worker processes outlive this process, without Popen's warning."""
    for child in _alive:
        child.returncode = child.returncode or 0
    _alive.clear()


def spawn(arguments: list[str], channel: socket.socket, *, out: IO[bytes] | int, error: IO[bytes] | int) -> Popen:
    """Start Python in its own session, so that signals for the training do not reach it."""
    child = subprocess.Popen(  # noqa: S603 -- our own interpreter
        [*_SHELL, sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=error,
        pass_fds=[channel.fileno()],
        env={name: value for name, value in os.environ.items() if name not in _UNWANTED} | _ENVIRONMENT,
        start_new_session=True,
    )
    _alive.append(child)
    return child


class Priority(enum.IntEnum):
    """Nice value of the worker's session, by which Linux compares sessions, see autogroups in sched(7).

    With 10, the worker takes a tenth of a busy CPU from the training, and operators that use all CPUs wait for it.
    """

    LOW = 19
    """While the training runs."""
    MEDIUM = 10
    """While more than two windows are unfinished."""
    NORMAL = 0
    """While the program or a request waits for the worker."""


class Worker:
    """A child process that receives tasks, one JSON object per line, and answers each.

    Only :meth:`answers` and :meth:`leave` wait for the child. The start raises OSError if the log is a link, which may
    point to a file of another user.
    """

    def __init__(self, log: Path) -> None:
        reap()
        self._unparsed = b""
        self._unsent = bytearray()
        self._priority = Priority.NORMAL
        self.is_closing = self._is_disconnected = False
        run = OwnFolder(log.parent)
        run.make()
        self._channel, theirs = socket.socketpair()
        try:
            with theirs, run.append(log.name) as output:
                numbers = [str(theirs.fileno()), str(os.getpid())]
                arguments = ["-c", _BOOTSTRAP, json.dumps([HERE, _search_path()]), *numbers]
                self._process = spawn(arguments, theirs, out=output, error=output)
        except BaseException:
            self._channel.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Task) -> None:
        self._unsent += encode(message)
        self._flush()

    def _flush(self) -> None:
        try:
            self._channel.setblocking(False)
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent, NO_SIGNAL)]
            if self.is_closing:
                self._channel.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()

    def answers(self, timeout: float = 0.0) -> list[TaskResult]:
        self._flush()
        if self._is_disconnected:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            return []
        try:
            self._channel.settimeout(timeout)
            while chunk := self._channel.recv(1 << 16):
                self._unparsed += chunk
                self._channel.settimeout(0)
            self._is_disconnected = True
        except (BlockingIOError, TimeoutError):
            pass
        except OSError:
            self._is_disconnected = True
        *lines, self._unparsed = self._unparsed.split(b"\n")
        return [answer for answer in map(_parse_answer, lines) if answer is not None]

    def set_priority(self, priority: Priority) -> None:
        """Change the priority. Linux permits one change per 0.1 s, so the caller repeats the call."""
        if priority == self._priority:
            return
        try:
            Path(f"/proc/{self.pid}/autogroup").write_text(str(int(priority)), encoding="ascii")
        except BlockingIOError:  # too early
            return
        except OSError:  # this system has no autogroups
            pass
        self._priority = priority

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def is_gone(self) -> bool:
        return self._is_disconnected or self.exit_code is not None

    def close(self) -> None:
        if not self.is_closing:
            self.is_closing = True
            self._flush()

    def leave(self, timeout: float = 0.0) -> None:
        self.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self._close_channel()
        reap()

    def _close_channel(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.close()

    def abandon(self) -> None:
        self._close_channel()
        release_children()


def _parse_answer(line: bytes) -> TaskResult | None:
    try:
        return decode_result(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        logger.debug("invalid answer of the worker: %r", line[:200])
        return None


def _search_path() -> list[str]:
    here = working_directory()
    path = [entry for entry in sys.path if entry and os.path.normpath(os.path.join(here, entry)) != here]  # noqa: PTH118 -- compared as text
    return [*path, here] if here else path
