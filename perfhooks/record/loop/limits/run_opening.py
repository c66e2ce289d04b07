"""Open a run folder in another thread, if other threads of the program compete with the training for the GIL.

Opening makes 200 system calls, and each may release the GIL for 5 ms.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

from perfhooks.core.guard import guard
from perfhooks.record.watch.sampling import leave_profilers

if TYPE_CHECKING:
    from collections.abc import Callable


class RunOpening:
    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._is_running = _thread.allocate_lock()
        self._is_running.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            self._run()

    def _run(self) -> None:
        try:
            leave_profilers()
            with guard("opening the run folder"):
                self._act()
        finally:
            self._is_running.release()

    def wait(self) -> None:
        with self._is_running:
            pass
