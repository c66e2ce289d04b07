"""Messages between a training and its worker, one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from perfhooks.report.handlers.permit import Permit
from perfhooks.run.capture import Place
from perfhooks.run.layout import PAGE


class WakeUp(msgspec.Struct, tag="wake-up", tag_field="do"):
    """Request to import the modules for finishing, because a window starts soon. It has no result."""


class _OfWindow(msgspec.Struct, tag_field="do"):
    folder: str
    """Folder of the window."""
    rank: int
    permit: Permit = Permit()
    """Permissions by the options of the training."""

    @property
    def place(self) -> Place:
        """Location of the window's files."""
        return Place(Path(self.folder), self.rank)


class FinishWindow(_OfWindow, tag="finish"):
    """Request to finish a window of one rank."""

    @property
    def task(self) -> str:
        """Name of the task in its result."""
        return self.folder


class UpdateReport(_OfWindow, tag="page"):
    """Request to update the report with the steps since the last window, if this rank is responsible for it."""

    @property
    def task(self) -> str:
        """Name of the task in its result."""
        return f"{self.folder}/{PAGE}"


class WriteSteps(msgspec.Struct, tag="steps", tag_field="do"):
    """Request to append steps to a timeline."""

    steps: str
    """Path of the raw steps that the loop wrote."""
    timeline: str
    """Path of the timeline."""

    @property
    def task(self) -> str:
        """Name of the task in its result."""
        return self.steps


Task = FinishWindow | UpdateReport | WriteSteps
Message = WakeUp | Task


class TaskResult(msgspec.Struct):
    """The result of a task."""

    task: str
    problem: str | None = None
    """Reason of the failure; None if the task succeeded."""


def encode(message: Message | TaskResult) -> bytes:
    """Return a message as a line of JSON.

    msgspec rejects lone surrogates, which Python uses for paths that are not UTF-8. So `json` writes the line.
    """
    return json.dumps(msgspec.to_builtins(message)).encode() + b"\n"


def decode_message(line: str | bytes) -> Message:
    """Return the message of a line."""
    message: Message = msgspec.convert(json.loads(line), Message)
    return message


def decode_result(line: bytes) -> TaskResult:
    """Return the task result of a line.

    Raises:
        ValueError: The line is no result. Another writer uses the channel.
    """
    return msgspec.convert(json.loads(line), TaskResult)
