"""What a training and its worker tell each other, one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from perfhooks.report.handlers.permit import Permit
from perfhooks.run.capture import Place
from perfhooks.run.layout import PAGE


class WakeUp(msgspec.Struct, tag="wake-up", tag_field="do"):
    """A window is near: import what finishing it takes. It has no answer."""


class _OfWindow(msgspec.Struct, tag_field="do"):
    folder: str
    """The window's."""
    rank: int
    permit: Permit = Permit()
    """What the training's own options allow."""

    @property
    def place(self) -> Place:
        """Where the window's files are."""
        return Place(Path(self.folder), self.rank)


class FinishWindow(_OfWindow, tag="finish"):
    """Finish a window of one rank."""

    @property
    def task(self) -> str:
        """Its name in the answer."""
        return self.folder


class TurnPage(_OfWindow, tag="page"):
    """Bring the page up to date with the steps since this last window, if it is this rank's to do."""

    @property
    def task(self) -> str:
        """Its name in the answer."""
        return f"{self.folder}/{PAGE}"


class WriteSteps(msgspec.Struct, tag="steps", tag_field="do"):
    """Append steps to a timeline."""

    steps: str
    """The file of the steps, as the loop left them."""
    timeline: str
    """The file they belong into."""

    @property
    def task(self) -> str:
        """Its name in the answer."""
        return self.steps


Task = FinishWindow | TurnPage | WriteSteps
Message = WakeUp | Task


class TaskResult(msgspec.Struct):
    """What became of a task."""

    task: str
    problem: str | None = None
    """Why it is not done; None if it is."""


def told(message: Message | TaskResult) -> bytes:
    """A line of JSON; not by msgspec, which refuses half characters: Python makes them of paths that are not UTF-8."""
    return json.dumps(msgspec.to_builtins(message)).encode() + b"\n"


def message_of(line: str | bytes) -> Message:
    """What a line tells the worker."""
    message: Message = msgspec.convert(json.loads(line), Message)
    return message


def answer_of(line: bytes) -> TaskResult:
    """What a line answers.

    Raises:
        ValueError: It answers nothing: somebody else writes into the channel.
    """
    return msgspec.convert(json.loads(line), TaskResult)
