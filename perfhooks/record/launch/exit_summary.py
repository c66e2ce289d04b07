"""The training itself prints the exit summary at exit, so that its signals and exit code stay unchanged."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from perfhooks.core import process
from perfhooks.core.guard import stderr_file, write_error
from perfhooks.core.options import check_options
from perfhooks.record.launch import notes
from perfhooks.record.launch.command_line import Request
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from perfhooks.core.options import Options
    from perfhooks.record.launch.notes import Note

_SETS_PATH: Final = re.compile(r"""^[^#]*PYTHONPATH["'\]\s]*[=:](?!=)(?!.*PYTHONPATH)""", re.MULTILINE)
IS_OVER: Final = "summary.printed"
"""Name of the file that exists once all summaries are printed."""


def at_exit(*, is_command: bool) -> None:
    request = Request.current()
    if request is None or request.turns or request.trial or process.is_child():  # the parent prints for its children
        return
    if not is_command and _is_left_to_command(request):
        return
    try:
        _print(request, is_command=is_command)
    except KeyboardInterrupt:
        pass  # Ctrl-C ends only the wait for reports
    finally:
        if is_command and request.notes:
            notes.mark(request.notes, IS_OVER)
            if not request.is_watched:
                notes.delete(request.notes)
    process.end_by_ctrl_c()


def _is_left_to_command(request: Request) -> bool:
    try:
        program = Path(f"/proc/{request.command}/exe").readlink().name
    except OSError:
        return False
    is_waiting = Path(request.notes or os.devnull).is_dir() and not Path(request.notes, IS_OVER).exists()
    return "python" in program and is_waiting and request.stderr != stderr_file()


def _print(request: Request, *, is_command: bool) -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    pid, all_notes, own = os.getpid(), notes.read(request.notes), notes.own()
    relevant = [note for note in all_notes if is_command or pid in (note.pid, note.parent)]
    runs = [run for run in notes.runs([*own, *relevant]) if notes.claim(request.notes, run)]
    if process.outcome.is_interrupted:
        pass
    elif runs:
        other_runs = [run for run in runs if run not in {note.run for note in own}]
        timeout = check_options(cast("Options", request.options))["exit_timeout"]
        print_runs(runs, other_runs, timeout, process.outcome.unfinished)
    elif is_command and not any(note.run for note in [*all_notes, *own]):
        for reason in reasons(all_notes, sys.orig_argv):
            write_error(f"perfhooks: nothing was recorded: {reason}\n")


def print_runs(runs: Sequence[str], waited: Collection[str], timeout: float, unfinished: Collection[str] = ()) -> None:
    """Print the summaries of runs. First wait for the reports of ``waited`` runs, which other processes write."""
    # imports numpy, which few processes need
    from perfhooks.record.launch.summary_text import text_of, wait_for_reports

    write_error(text_of(runs, {*unfinished, *wait_for_reports(waited, timeout)}))


def reasons(known: Sequence[Note], words: Sequence[str], code: int | None = None) -> list[str]:
    sure = [note.why for note in known if note.why]
    parents = {note.parent for note in known if note.parent != note.pid}
    guesses = [note.guess for note in known if note.guess and note.pid not in parents]
    return list(dict.fromkeys(sure or (_failed(code) if code else guesses or [_default_reason(words)])))


def _failed(code: int) -> list[str]:
    if code > 0:
        return [f"the command ended with exit code {code}"]
    names = {number.value: number.name for number in signal.Signals}
    return [f"the command was ended by {names.get(-code, f'signal {-code}')}"]


def known_before(words: Sequence[str]) -> str | None:
    for word in words[1:]:
        if not word.startswith("-") or word.startswith("--") or word == "-m":
            break
        if set(word[1:]) & set("IES") and "python" in Path(words[0]).name:
            return f"Python is started with {word}, so it does not read PYTHONPATH and cannot load perfhooks"
    for word in words:
        if _SETS_PATH.search(word) or _SETS_PATH.search(_script_text(word)):
            subject = "the command" if _SETS_PATH.search(word) else word
            return f"{subject} sets PYTHONPATH, which removes perfhooks from it: PYTHONPATH=...:$PYTHONPATH keeps it"
    return None


def _default_reason(words: Sequence[str]) -> str:
    return known_before(words) or (
        "no Python of this command imported torch with perfhooks loaded: torch was not imported, or the Python process "
        "ignores PYTHONPATH (python -I, -E) or gets another one, has no perfhooks installed, or runs on another machine"
    )


def _script_text(word: str) -> str:
    if word.endswith(".py") or "python" in Path(word).name:
        return ""
    try:
        return read_bytes(Path(word), 1 << 20).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
