"""Wrappers around the runner's loops, because mmengine has no hook point for the end of a failed loop."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from perfhooks.adapters import WrappedMethods, hide_frames, hide_from_warnings

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

STAGES: Final = {"train": "train", "val": "validate", "test": "test"}


class Loops:
    """Wraps ``run`` of the runner's loops until the outermost one ends."""

    def __init__(self, around: Callable[[str, bool], AbstractContextManager[None]]) -> None:
        self._around = around
        self._methods = WrappedMethods()
        self._depth = 0

    def put(self, runner: Any) -> None:
        for name, stage in STAGES.items():
            loop = built(runner, name)
            if loop is not None:
                self._methods.wrap(loop, "run", functools.partial(self._watched, stage))

    def _watched(self, stage: str, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        @hide_from_warnings
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                with self._around(stage, self._depth == 1):
                    return run(*args, **kwargs)
            except BaseException as error:
                hide_frames(error)
                raise
            finally:
                self._depth -= 1
                if not self._depth:
                    self._methods.unwrap()

        return watched


class _NotBuiltError(Exception):
    """The runner has not built the loop yet."""


def built(runner: Any, name: str) -> Any:
    """Return the loop if the runner has built it. Reading ``runner.train_loop`` would build it with its data sets."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise _NotBuiltError

    builder = WrappedMethods()
    builder.wrap(runner, f"build_{name}_loop", lambda _: refuse)
    try:
        return getattr(runner, f"{name}_loop", None)
    except _NotBuiltError:
        return None
    finally:
        builder.unwrap()
