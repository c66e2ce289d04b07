from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def pressed() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits up to the given seconds and returns the pressed keys."""
    try:
        import termios
        import tty
    except ImportError:
        yield _nothing
        return
    if not sys.stdin.isatty():
        yield _nothing
        return
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)
    old = signal.signal(signal.SIGTERM, _end)
    try:
        tty.setcbreak(source)
        yield lambda seconds: _keys(source, seconds)
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, old)


def _keys(source: int, seconds: float) -> str:
    if not select.select([source], [], [], seconds)[0]:
        return ""
    return os.read(source, 64).decode("ascii", "replace") or "q"


def _nothing(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
