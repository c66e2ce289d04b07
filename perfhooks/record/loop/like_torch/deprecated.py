"""Deprecation warnings of torch that would repeat with each recorder, although the user requested it once."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_warned: Final[set[str]] = set()


@contextlib.contextmanager
def warn_once(recorder: Any) -> Iterator[None]:
    if not recorder.with_modules or "with_modules" not in _warned:
        _warned.update(["with_modules"] if recorder.with_modules else ())
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with_modules is deprecated", FutureWarning)
        yield
