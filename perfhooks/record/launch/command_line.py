from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.changes import TrainingChange
from perfhooks.core.errors import CommandError, OptionError
from perfhooks.core.options import check_options
from perfhooks.core.process import working_directory
from perfhooks.core.schedule import Schedule
from perfhooks.run.remote import check_out, in_this_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE: Final = "PERFHOOKS_RUN"

SITE: Final = Path(__file__).parent / "site"


PATIENCE_S: Final = 60.0
"""Default of ``--patience`` in s. Most trainings make their first step within this time."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    schedule: str | None = None
    """Schedule of the windows. None records one window when the step time has settled."""
    handlers: list[str] | None = None
    options: dict[str, Any] = {}
    patience: float = PATIENCE_S
    """Time in s after which a program that calls no loader and no optimizer gets its report."""
    here: str = ""
    notes: str = ""
    command: int = 0
    """Process ID of the user's command, which prints all summaries that its children did not print."""
    stderr: str = ""
    """The command's `guard.stderr_file`."""
    is_watched: bool = False
    """Whether another process prints the summary if the command is killed."""
    turns: str = ""
    """Path of the supervisor's socket under ``perfhooks compare --run``, else empty."""
    trial: str = ""
    """Path of the result file of ``perfhooks try --loader``, else empty."""
    trial_ends: float = 0.0
    """Time limit of ``perfhooks try --loader``, in s of the monotonic clock."""
    changes: tuple[TrainingChange, ...] | None = None
    """Changes to try; None without ``perfhooks tune``."""
    is_applied: bool = True

    def named(self, number: int) -> Request:
        """Return the settings of training ``number``. From the second training on, the run name ends in ``number``."""
        name = self.options.get("run")
        if name is None or number == 1:
            return self
        return msgspec.structs.replace(self, options={**self.options, "run": f"{name}-{number}"})

    @classmethod
    def current(cls) -> Request | None:
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
    Schedule.of(schedule)
    if not 0 <= patience < float("inf"):
        raise OptionError(f"patience must be a number of seconds, 0 or more, got {patience:g}")
    if handlers:
        from perfhooks.report.handlers import build

        for handler in handlers:
            if handler != "default":
                build(handler)
    values = dict(options)
    check_options(values)  # type: ignore[arg-type]  # the names were generated from Options
    out = values.get("out")
    if out is not None:
        if in_this_process(out):
            raise OptionError(
                f"out must be a folder on a disk, got {out!r}: files in memory are lost when the training ends"
            )
        check_out(out)
        if "://" not in out:
            values["out"] = str(Path(out).absolute())  # the training may change its working directory
    return Request(
        schedule=schedule,
        handlers=list(handlers) or None,
        options=values,
        patience=patience,
        here=working_directory(),
    )


def command(words: Sequence[str], folder: Path = Path()) -> list[str]:
    if not words:
        raise OptionError("run needs a command, for example: perfhooks run train.py --lr 0.1")
    first = words[0]
    if first == "-m":
        if len(words) == 1:
            raise OptionError("run -m needs the name of a module, for example: perfhooks run -m package.train")
        return [sys.executable, *words]
    if first.endswith(".py"):
        if not (folder / first).is_file():
            raise OptionError(f"there is no script {first!r}")
        return [sys.executable, *words]
    program = shutil.which(first)
    if program is None and PathFinder.find_spec("__main__", [str(folder / first)]) is not None:
        return [sys.executable, *words]
    if program is None:
        if os.sep in first and Path(first).exists():
            raise CommandError(f"{first!r} is not executable; a Python script needs a name that ends in .py", 126)
        hint = "; a Python script needs a name that ends in .py" if Path(first).is_file() else ""
        raise CommandError(f"there is no command {first!r}{hint}", 127)
    return [program, *words[1:]]


def environment(request: Request, before: Mapping[str, str]) -> dict[str, str]:
    python_path = before.get("PYTHONPATH", "")
    return {
        **before,
        # not msgspec, which refuses surrogates: Python creates them for paths that are not UTF-8
        # no spaces and escapes, because `site` finds the notes without a JSON module
        VARIABLE: json.dumps(msgspec.to_builtins(request), separators=(",", ":"), ensure_ascii=False),
        "PYTHONPATH": f"{SITE}{os.pathsep}{python_path}" if python_path else str(SITE),
    }
