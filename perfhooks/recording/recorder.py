"""What torch's recorder is told of each window to come: options, and metadata for its trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfhooks.recording.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfhooks.schedule import Phases


class Recorder:
    """Makes the windows of one profiler, all with the same options.

    Args:
        options: As torch takes them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.metadata: dict[str, str] = {}
        """JSON values for every trace, by name."""

    def window(
        self,
        first: int,
        phases: Phases,
        on_trace_ready: Callable[[Window], None],
        *,
        marks_steps: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Window:
        """A window that has not begun.

        Args:
            first: Its first step, warm-up included.
            phases: Its schedule.
            on_trace_ready: Called with the window when it has been recorded.
            marks_steps: Whether its steps are in the trace.
            options: What is recorded on top.
        """
        recording = {**self.options, **(options or {})}
        return Window(
            first=first, phases=phases, on_trace_ready=on_trace_ready, recording=recording, marks_steps=marks_steps
        )

    def tell(self, window: Window) -> None:
        """Give a window that is about to begin the metadata."""
        for key, value in self.metadata.items():
            window.preset_metadata_json(key, value)
