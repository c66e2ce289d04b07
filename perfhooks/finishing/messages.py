"""What a training and its worker tell each other, one JSON object a line."""

from __future__ import annotations

from typing import Final

import msgspec

from perfhooks.handlers.permit import Permit


class WakeUp(msgspec.Struct, tag="wake-up", tag_field="do"):
    """A window is near: import what finishing it takes. It has no answer."""


class FinishWindow(msgspec.Struct, tag="finish", tag_field="do"):
    """Finish a window of one rank."""

    task: str
    """Its name in the answer."""
    folder: str
    """The window's."""
    rank: int
    permit: Permit = Permit()
    """What the training's own options allow."""


class WriteSteps(msgspec.Struct, tag="steps", tag_field="do"):
    """Append steps to a timeline."""

    task: str
    """Its name in the answer."""
    steps: str
    """The file of the steps, as the loop left them."""
    timeline: str
    """The file they belong into."""


class TurnPage(msgspec.Struct, tag="page", tag_field="do"):
    """Bring the page up to date with the steps since the last window, if it is this rank's to do."""

    task: str
    """Its name in the answer."""
    folder: str
    """The last window's."""
    rank: int
    permit: Permit = Permit()
    """What the training's own options allow."""


Message = WakeUp | FinishWindow | WriteSteps | TurnPage


class TaskResult(msgspec.Struct):
    """What became of a task."""

    task: str
    problem: str | None = None
    """Why it is not done; None if it is."""


MESSAGE: Final = msgspec.json.Decoder(Message)
ANSWER: Final = msgspec.json.Decoder(TaskResult)
