"""What happens to a window when it has been recorded: it is saved once, shown to the callables and finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from perfhooks import handlers
from perfhooks.errors import OptionError
from perfhooks.finish import finish
from perfhooks.guard import OnError, guard, logger
from perfhooks.handlers import Handler
from perfhooks.run import Capture, Cost, Place, Run, versions

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.schedule import Planned

HandlerLike = str | Mapping[str, Any] | Handler | Callable[..., object]

DEFAULT: Final = "default"
"""In a list of handlers: everything that was recorded for, as without ``on_trace_ready``."""

_ALWAYS = ("trace", "steps", "operators")


class Recorded(Protocol):
    """A window that has been recorded, as far as saving it needs to know."""

    first: int
    """Its first step that was recorded."""
    reached: int
    """The step during which, or before which, recording ended."""
    partial: str | None
    """Why it ended before its last step; None for a whole window."""
    planned: Planned | None
    """Its steps as planned; None where that is not known."""
    stop_s: float = 0.0
    """Seconds the recorder took to stop."""

    @property
    def device_stopped(self) -> bool:
        """Whether torch gave up collecting from the device before the end."""
        ...

    def spool(self, path: Path) -> None:
        """Save the trace as JSON."""


class Spool:
    """Takes recorded windows from a profiler.

    Args:
        wanted: What to make of each window: names, mappings, handlers of ours, which need only files; and plain
            callables, which get the window itself, at once. None, or the name ``"default"`` among others, makes
            everything that was recorded for.
        recorded: The recording options, kept with each capture.
        on_error: What a failure does.

    Raises:
        OptionError: Something wanted is no handler.
    """

    def __init__(
        self, wanted: HandlerLike | Sequence[HandlerLike] | None, recorded: Mapping[str, Any], on_error: OnError
    ) -> None:
        self.recipes, self.calls = _sorted(_listed(DEFAULT if wanted is None else wanted, recorded))
        self.places: list[Place] = []
        self.listeners: list[Callable[[Capture, Place], object]] = []
        self._recorded = {name: value for name, value in recorded.items() if isinstance(value, bool | int | str)}
        self._on_error = on_error

    def take(self, window: Recorded, run: Run | None, stage: str) -> None:
        """Save a window that has just been recorded, call the callables and make the artifacts.

        Args:
            window: It has stopped and not been saved.
            run: Where its files go; None where no files are wanted.
            stage: The loop it belongs to.
        """
        place = None
        if run is not None:
            place = run.place(stage, window.first, window.planned.last if window.planned else None)
            with guard(f"saving the trace to {place.folder}", self._on_error):
                self._save(window, place, stage)
        for call in self.calls:
            with guard(f"handler {getattr(call, '__qualname__', call)!r}", self._on_error):
                call(window)
        if place is not None and place.spool.exists():
            with guard(f"finishing {place.folder}", self._on_error):
                self._finish(place)

    def _save(self, window: Recorded, place: Place, stage: str) -> None:
        began = time.perf_counter()
        window.spool(place.spool)
        saved = time.perf_counter() - began
        notes = ("torch stopped collecting from the device before the end of the window",)
        place.save(
            Capture(
                rank=place.rank,
                stage=stage,
                first=window.first,
                last=window.planned.last if window.planned else None,
                reached=window.reached,
                partial=window.partial,
                state="spooled",
                handlers=self.recipes,
                notes=notes if window.device_stopped else (),
                cost=Cost(stop_s=window.stop_s, save_s=saved, trace_bytes=place.spool.stat().st_size),
                options=self._recorded,
                versions=versions(),
                time=time.time(),
            )
        )

    def _finish(self, place: Place) -> None:
        capture = finish(place)
        self.places.append(place)
        logger.info("%s -> %s", capture.headline or _plainly(capture), place.folder)
        for listen in self.listeners:
            with guard(f"telling {getattr(listen, '__qualname__', listen)!r} about {place.folder}", self._on_error):
                listen(capture, place)


def _plainly(capture: Capture) -> str:
    last = capture.reached if capture.last is None else capture.last
    return f"steps {capture.first}-{last} recorded"


def _by_default(recorded: Mapping[str, Any]) -> list[str]:
    """Everything that was recorded for."""
    return [*_ALWAYS, *(["stacks"] if recorded.get("with_stack") else [])]


def _listed(wanted: HandlerLike | Sequence[HandlerLike], recorded: Mapping[str, Any]) -> list[HandlerLike]:
    listed = list(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
    default = _by_default(recorded)
    return [one for each in listed for one in (default if isinstance(each, str) and each == DEFAULT else [each])]


def _sorted(wanted: Sequence[HandlerLike]) -> tuple[tuple[dict[str, Any], ...], tuple[Callable[..., object], ...]]:
    """What is wanted, as recipes of handlers that need only files, and as callables that need the window."""
    recipes, calls = [], []
    for one in wanted:
        if isinstance(one, str | Mapping):
            recipes.append(handlers.spec(handlers.build(one)))
        elif isinstance(one, Handler) and not isinstance(one, type):
            recipes.append(handlers.spec(one))
        elif callable(one) and not isinstance(one, type):
            calls.append(one)
        else:
            raise OptionError(
                "on_trace_ready must be a handler's name, a mapping with its type, a handler or a callable, "
                f"or a list of these; got {one!r}"
            )
    return tuple(recipes), tuple(calls)
