"""Starting, feeding and minding the child process that finishes captures; what it does is in finish.py.

A child process, because reading a trace and making tables in a thread would hold the interpreter's lock against the
training; started afresh, because a forked one would share the training's device, and a spawned one would run the user's
script again. It ends when its standard input does, after what it was told to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BOOTSTRAP: Final = """\
import json, os, sys
if hasattr(os, "nice"):
    os.nice(10)
first = sys.stdin.readline()
sys.path[:] = json.loads(sys.argv[1])
from perfhooks.finishing.finish import serve
serve(first)
"""
"""Nothing is imported before the first message: a worker that waits is a bare interpreter."""

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
    "LD_PRELOAD",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "KINETO_USE_DAEMON",
    "PYTHONSTARTUP",
)


class Worker:
    """A child process that takes messages, one JSON object a line, and answers each.

    Args:
        log: The file that gets what the child prints.
    """

    def __init__(self, log: Path) -> None:
        self._rest = b""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as printed:
            self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(_search_path())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env={name: value for name, value in os.environ.items() if name not in _UNWANTED} | _ENVIRONMENT,
                start_new_session=True,
                bufsize=0,
            )
        os.set_blocking(self._answers.fileno(), False)

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    @property
    def _answers(self) -> IO[bytes]:
        return self._process.stdout  # type: ignore[return-value]  # it is a pipe

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the child something; a child that is gone does not hear it."""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]  # it is a pipe

    def answers(self, timeout: float = 0.0) -> Iterator[dict[str, Any]]:
        """What the child has answered since the last call.

        Args:
            timeout: How long to wait for an answer, in seconds.
        """
        if timeout > 0:
            select.select([self._answers], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._answers.fileno(), 1 << 16):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        yield from map(json.loads, lines)

    @property
    def exit_code(self) -> int | None:
        """How the child ended; None while it lives."""
        return self._process.poll()

    def close(self) -> None:
        """Let the child end when it has done what it was told; its answers can still be read."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe

    def leave(self, timeout: float = 0.0) -> None:
        """Forget the child, which goes on alone if it does not end in time.

        Args:
            timeout: How long it is waited for, in seconds.
        """
        self.close()
        deadline = time.monotonic() + timeout
        while self.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._answers.close()
        if self._process.returncode is None:
            self._process.returncode = 0  # else Popen warns of a child that is still running, as it is meant to


def _search_path() -> list[str]:
    """Where the child imports from: as the training does, but the working directory last.

    A stray ``polars.py`` there would replace polars; a user's own module with a handler must still be found.
    """
    here = str(Path.cwd())
    path = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]  # noqa: PTH100 -- compared as text
    return [*path, here]
