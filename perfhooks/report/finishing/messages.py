"""Messages between a training and the worker process that writes its files, one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from perfhooks.report.handlers.permit import Permit
from perfhooks.run.capture import Place
from perfhooks.run.layout import PAGE


class _OfWindow(msgspec.Struct, tag_field="do"):
    folder: str
    rank: int
    permit: Permit = Permit()

    @property
    def place(self) -> Place:
        return Place(Path(self.folder), self.rank)


class FinishWindow(_OfWindow, tag="finish"):
    @property
    def task(self) -> str:
        return self.folder


class UpdateReport(_OfWindow, tag="page"):
    @property
    def task(self) -> str:
        return f"{self.folder}/{PAGE}"


class WriteSteps(msgspec.Struct, tag="steps", tag_field="do"):
    steps: str
    timeline: str

    @property
    def task(self) -> str:
        return self.steps


Task = FinishWindow | UpdateReport | WriteSteps


class TaskResult(msgspec.Struct):
    task: str
    problem: str | None = None


def encode(message: Task | TaskResult) -> bytes:
    """Return a line of JSON, by `json`: msgspec rejects the lone surrogates of paths that are not UTF-8."""
    return json.dumps(msgspec.to_builtins(message)).encode() + b"\n"


def decode_message(line: str | bytes) -> Task:
    message: Task = msgspec.convert(json.loads(line), Task)
    return message


def decode_result(line: bytes) -> TaskResult:
    """Return the result in a line. Raise ValueError if the worker did not write the line."""
    return msgspec.convert(json.loads(line), TaskResult)
