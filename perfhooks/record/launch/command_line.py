"""What ``perfhooks run`` was asked for: the command it becomes, and the environment that it becomes it in."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.errors import CommandError, OptionError
from perfhooks.core.options import checked
from perfhooks.core.process import working_directory
from perfhooks.core.schedule import Schedule
from perfhooks.run.remote import check_out, in_this_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE: Final = "PERFHOOKS_RUN"
"""The one environment variable: `Request` as JSON."""

SITE: Final = Path(__file__).parent / "site"
"""The folder that goes first in PYTHONPATH; it holds ``sitecustomize.py`` and nothing else."""


PATIENCE_S: Final = 60.0
"""Most trainings have made a step by then; and who waits for an answer waits no longer."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line, for every process of the training."""

    schedule: str | None = None
    """As `Schedule.of` takes it; None is one window, once the pace has settled."""
    handlers: list[str] | None = None
    """What to make of each window; None makes everything that was recorded for."""
    options: dict[str, Any] = {}
    """Those of `perfhooks.Options` that were given."""
    patience: float = PATIENCE_S
    """Seconds after which a program that neither fetches nor updates gets its page, without waiting for its end."""
    here: str = ""
    """The working directory in which the command was given: the place for runs is in there."""
    notes: str = ""
    """The folder in which processes leave notes of what they recorded, see `perfhooks.record.launch.notes`."""
    command: int = 0
    """The process that becomes the command. Its exit reports what no other process has reported."""
    is_watched: bool = False
    """Whether `perfhooks.record.launch.detached` waits for the end of the command, and deletes the notes."""
    turns: str = ""
    """The socket that says when it is the program's turn, under ``perfhooks compare --run``: nothing is recorded."""
    trial: str = ""
    """The file for what comes of trying its loader, under ``perfhooks try --loader``: nothing else is done."""
    trial_ends: float = 0.0
    """When that is over, in seconds of the monotonic clock of the system."""

    def named(self, number: int) -> Request:
        """The same for another training of the same program: a name that was given for the run is the first one's.

        Args:
            number: Of the training, from 1 on.
        """
        name = self.options.get("run")
        if name is None or number == 1:
            return self
        return msgspec.structs.replace(self, options={**self.options, "run": f"{name}-{number}"})

    @classmethod
    def current(cls) -> Request | None:
        """That of this process; None where nobody asked, or what was asked for cannot be read."""
        try:
            return msgspec.convert(json.loads(os.environ[VARIABLE]), type=cls)
        except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
            return None


def request(
    schedule: str | None,
    handlers: Sequence[str],
    options: Mapping[str, Any],
    patience: float = PATIENCE_S,
) -> Request:
    """Check what was asked for, before anything starts.

    Args:
        schedule: In words, or None.
        handlers: Names of handlers; none make everything that was recorded for.
        options: Of `perfhooks.Options`.
        patience: See `Request`.

    Raises:
        ScheduleError: The schedule cannot be.
        OptionError: An option has a value that it cannot have, or there is no such handler.
    """
    Schedule.of(schedule)
    if not 0 <= patience < float("inf"):
        raise OptionError(f"patience must be a number of seconds, 0 or more, got {patience:g}")
    if handlers:
        from perfhooks.report.handlers import build

        for handler in handlers:
            if handler != "default":
                build(handler)
    whole = dict(options)
    checked(whole)  # type: ignore[arg-type]  # the names were generated from Options
    out = whole.get("out")
    if out is not None:
        if in_this_process(out):
            raise OptionError(f"out must outlive the training, got {out!r}, which is in its memory: name a folder")
        check_out(out)
        if "://" not in out:
            whole["out"] = str(Path(out).absolute())  # the training may change its working directory
    return Request(
        schedule=schedule,
        handlers=list(handlers) or None,
        options=whole,
        patience=patience,
        here=working_directory(),
    )


def command(words: Sequence[str], folder: Path = Path()) -> list[str]:
    """The command as the system takes it: a script and a module get this Python in front.

    Args:
        words: ``train.py --lr 0.1``, ``-m package.train`` or any command.
        folder: Where it is going to run.

    Raises:
        OptionError: There is no such script, or nothing was given.
        CommandError: There is no such command, or it cannot be executed.
    """
    if not words:
        raise OptionError("run needs a command, such as: perfhooks run train.py --lr 0.1")
    first = words[0]
    if first == "-m":
        if len(words) == 1:
            raise OptionError("run -m needs the name of a module, such as: perfhooks run -m package.train")
        return [sys.executable, *words]
    if first.endswith(".py"):
        if not (folder / first).is_file():
            raise OptionError(f"there is no script {first!r}")
        return [sys.executable, *words]
    program = shutil.which(first)
    if program is None:
        if os.sep in first and Path(first).exists():
            raise CommandError(f"{first!r} cannot be executed; a script's name ends in .py", 126)
        hint = "; a script's name ends in .py" if Path(first).is_file() else ""
        raise CommandError(f"there is no command {first!r}{hint}", 127)
    return [program, *words[1:]]


def environment(asked: Request, before: Mapping[str, str]) -> dict[str, str]:
    """The environment of the command.

    Args:
        asked: What the processes of the command are to do.
        before: The environment as it is.
    """
    rest = before.get("PYTHONPATH", "")
    return {
        **before,
        # not by msgspec, which refuses half characters: Python makes them of paths that are not UTF-8; and without
        # spaces and escapes, as `site` looks for its notes without a module that reads JSON
        VARIABLE: json.dumps(msgspec.to_builtins(asked), separators=(",", ":"), ensure_ascii=False),
        "PYTHONPATH": f"{SITE}{os.pathsep}{rest}" if rest else str(SITE),
    }
