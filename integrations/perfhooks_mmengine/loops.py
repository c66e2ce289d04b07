"""The runner's loops: told when a run begins and how it ends, for which mmengine has no hook point."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from perfhooks.adapters import WrappedMethods, hide_frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

STAGES: Final = {"train": "train", "val": "validate", "test": "test"}
"""mmengine's names of its loops, and ours."""


class Loops:
    """Wraps ``run`` of the loops that a runner has built, until the outermost of them has ended.

    Args:
        around: Takes the stage and whether no other loop runs around it; gives a context for the run.
    """

    def __init__(self, around: Callable[[str, bool], AbstractContextManager[None]]) -> None:
        self._around = around
        self._methods = WrappedMethods()
        self._depth = 0

    def put(self, runner: Any) -> None:
        """Watch the next run."""
        for name, stage in STAGES.items():
            loop = built(runner, name)
            if loop is not None:
                self._methods.wrap(loop, "run", functools.partial(self._watched, stage))

    def _watched(self, stage: str, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
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
    """The runner would build a loop now."""


def built(runner: Any, name: str) -> Any:
    """A loop of the runner if there is one; to ask for one that has not been built builds it, datasets and all."""

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
