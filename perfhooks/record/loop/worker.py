"""Starting, feeding and minding the child process that finishes captures; what it does is in serving.py.

A child process, because reading a trace and making tables in a thread would hold the interpreter's lock against the
training; started afresh, because a forked one would share the training's device, and a spawned one would run the user's
script again. It ends when its channel does, after what it was told to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeAlias

from perfhooks.core.guard import logger
from perfhooks.core.process import working_directory
from perfhooks.report.finishing.messages import answer_of, told
from perfhooks.run.publishing import OwnFolder

if TYPE_CHECKING:
    from perfhooks.report.finishing.messages import Message, TaskResult

Popen: TypeAlias = "subprocess.Popen[bytes]"

_BOOTSTRAP: Final = """\
import os, sys
try:
    here = os.getcwd()
except FileNotFoundError:
    here = os.chdir("/") or "/"
sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
def is_own(entry):
    if entry not in given:
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(entry))
    except OSError:
        return False
own = [entry for entry in sys.path if is_own(entry)]
import gc, json
gc.disable()
if hasattr(os, "nice"):
    os.nice(10)
channel = int(sys.argv[2])
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
"""Nothing is imported before the first message: a worker that waits is a bare interpreter.

What is installed comes first on its path. A library that the training puts before it, as ray does with its own psutil,
would replace a dependency of ours.

Nothing is imported from the working directory, which an empty entry of PYTHONPATH names as well; and what a
sitecustomize prints is in the log and not among the answers. The garbage collector is off during the imports, because
it would look at all modules several times.
"""

HERE: Final = str(Path(__file__).parents[3])
"""The folder that holds perfhooks."""
_ENVIRONMENT: Final = {
    # it must not touch the training's devices, nor take its processors
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
    "LD_PRELOAD",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "KINETO_USE_DAEMON",
    "PYTHONSTARTUP",
)


NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""A child that is gone must not be SIGPIPE for a training that left that signal at its default."""

_alive: list[subprocess.Popen[bytes]] = []
"""Children that have not been seen to have ended: some are left to end alone, when nobody asks for them any more."""


def can_start() -> bool:
    """Whether there is a Python to start: of a frozen application, ``sys.executable`` is the application itself."""
    name = Path(sys.executable or "").name.lower()
    return not getattr(sys, "frozen", False) and ("python" in name or "pypy" in name)


def reap() -> None:
    """Take note of children that have ended; they would be zombies else."""
    _alive[:] = [child for child in _alive if child.poll() is None]


def let_go() -> None:
    """Leave all children to themselves: they are meant to go on alone, so Popen has nothing to warn of."""
    for child in _alive:
        child.returncode = child.returncode or 0
    _alive.clear()


def spawn(arguments: list[str], channel: socket.socket, *, out: IO[bytes] | int, error: IO[bytes] | int) -> Popen:
    """Start a Python of ours, which signals for the training do not reach.

    Args:
        arguments: Of its command line.
        channel: Its end of a socket.
        out: Its standard output.
        error: Its standard error.

    Raises:
        OSError: It could not be started.
    """
    child = subprocess.Popen(  # noqa: S603 -- our own interpreter
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=error,
        pass_fds=[channel.fileno()],
        env={name: value for name, value in os.environ.items() if name not in _UNWANTED} | _ENVIRONMENT,
        start_new_session=True,
    )
    _alive.append(child)
    return child


class Worker:
    """A child process that takes messages, one JSON object a line, and answers each.

    Nothing here waits for the child but :meth:`answers` and :meth:`leave`, as long as they are told to, and nothing
    raises when it is gone.

    Args:
        log: The file that gets what the child prints.

    Raises:
        OSError: It could not be started, or its log is a link, which may lead to a file of somebody else.
    """

    def __init__(self, log: Path) -> None:
        reap()
        self._rest = b""
        self._unsent = bytearray()
        self.is_closing = self._is_deaf = False
        run = OwnFolder(log.parent)
        run.make()
        self._channel, theirs = socket.socketpair()
        try:
            with theirs, run.append(log.name) as printed:
                numbers = [str(theirs.fileno()), str(os.getpid())]
                arguments = ["-c", _BOOTSTRAP, json.dumps([HERE, _search_path()]), *numbers]
                self._process = spawn(arguments, theirs, out=printed, error=printed)
        except BaseException:
            self._channel.close()
            raise

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Tell the child something; what it does not take at once, it gets later, and a child that is gone never."""
        self._unsent += told(message)
        self._flush()

    def _flush(self) -> None:
        try:
            self._channel.setblocking(False)
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent, NO_SIGNAL)]
            if self.is_closing:
                self._channel.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass  # it is busy with a window, or stuck
        except OSError:
            self._unsent.clear()

    def answers(self, timeout: float = 0.0) -> list[TaskResult]:
        """What the child has answered since the last call.

        Args:
            timeout: How long to wait for an answer, in seconds.
        """
        self._flush()
        if self._is_deaf:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            return []
        try:
            self._channel.settimeout(timeout)
            while chunk := self._channel.recv(1 << 16):
                self._rest += chunk
                self._channel.settimeout(0)
            self._is_deaf = True
        except (BlockingIOError, TimeoutError):
            pass
        except OSError:
            self._is_deaf = True
        *lines, self._rest = self._rest.split(b"\n")
        return [answer for answer in map(_decoded, lines) if answer is not None]

    @property
    def exit_code(self) -> int | None:
        """How the child ended; None while it lives."""
        return self._process.poll()

    @property
    def is_gone(self) -> bool:
        """Whether nothing more can come of it: it has ended, or somebody has closed our end of the channel."""
        return self._is_deaf or self.exit_code is not None

    def close(self) -> None:
        """Let the child end when it has done what it was told; its answers can still be read."""
        if not self.is_closing:
            self.is_closing = True
            self._flush()

    def leave(self, timeout: float = 0.0) -> None:
        """Forget the child, which goes on alone if it does not end in time.

        Args:
            timeout: How long it is waited for, in seconds.
        """
        self.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self._hang_up()
        reap()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.close()

    def abandon(self) -> None:
        """This process is a forked child: the worker is its parent's."""
        self._hang_up()
        let_go()


def _decoded(line: bytes) -> TaskResult | None:
    try:
        return answer_of(line)
    except (ValueError, RecursionError):  # somebody else writes into the channel
        logger.debug("the worker said %r", line[:200])
        return None


def _search_path() -> list[str]:
    """Where the child imports from: as the training does, but the working directory last.

    A stray ``polars.py`` there would replace polars; a user's own module with a handler must still be found.
    """
    here = working_directory()
    path = [entry for entry in sys.path if entry and os.path.normpath(os.path.join(here, entry)) != here]  # noqa: PTH118 -- compared as text
    return [*path, here] if here else path
