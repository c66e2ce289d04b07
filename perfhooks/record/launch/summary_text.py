from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import words
from perfhooks.core.clocks import time
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.guard import guard, is_terminal
from perfhooks.report.page.run_summary import (
    RunSummary,
    SummaryFinding,
    begin_summary,
    has_current_report,
    main_loop,
    profiled_ms,
    read_summary,
    rough,
    shares_of_step,
    untypical,
)
from perfhooks.run.finished import FinishedRun
from perfhooks.run.layout import PAGE
from perfhooks.run.publishing import shown
from perfhooks.run.steps import NONE, read_in_training
from perfhooks.run.timeline import in_timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_LINES: Final = (("─", "│", "╭", "╮", "╰", "╯"), ("-", "|", *"++++"))


class Box(NamedTuple):
    summary: RunSummary | None
    line: str
    hint: str
    """Next command, if there are no findings."""
    where: str


def wait_for_reports(runs: Collection[str], timeout: float) -> set[str]:
    deadline = time.monotonic() + timeout
    while True:
        missing = {run for run in runs if not _has_report(Path(run))}
        if not missing or time.monotonic() >= deadline:
            return missing
        time.sleep(0.05)


def _has_report(folder: Path) -> bool:
    try:
        run = FinishedRun(folder, brief=True)
        captures = [window.capture for window in run.recorded]
        wants_page = any(recipe.get("type") == "page" for capture in captures for recipe in capture.handlers)
        is_done = not run.is_written and all(capture.state == "done" for capture in captures)
        return is_done and (not wants_page or has_current_report(run))
    except PerfhooksError:
        return True


def text_of(runs: Sequence[str], incomplete: Collection[str] = ()) -> str:
    contents = [Box(*_facts(Path(run)), _where(Path(run), is_incomplete=run in incomplete)) for run in runs]
    if len(contents) > 1:
        return "".join(f"perfhooks: {one_line(content)}\n" for content in contents)
    if not is_terminal() or not _rows(contents[0]):
        return plain(contents[0])
    width = shutil.get_terminal_size().columns
    return box(contents[0], min(width, 80), getattr(sys.__stderr__, "encoding", "ascii"))


def _where(folder: Path, *, is_incomplete: bool) -> str:
    page = folder / PAGE
    if is_incomplete:
        command = shlex.join(["perfhooks", "report", str(shown(folder))])  # ray ends the worker with its actor
        return f"report is still being written: {page} (if it does not appear: {command})"
    return f"report: {page}" if page.exists() else f"files: {folder}"


def _facts(folder: Path) -> tuple[RunSummary | None, str, str]:
    summary, line, hint = None, "", ""
    with guard(f"reading {folder}"):
        summary, run = read_summary(folder), FinishedRun(folder, brief=True)
        if summary is None or not has_current_report(run):
            # an old report or log line has other numbers than `perfhooks show`
            summary, last = _of_timeline(run), run.last()
            line = "" if summary or last is None else last.capture.line or f"{last.name} is recorded"
        elif summary.step_ms and not summary.findings:
            hint = _hint(run, "kernels" if summary.is_device_busy else "functions")
    return summary, line, hint


def _hint(run: FinishedRun, table: str) -> str:
    if not any(window.place.artifact(f"{table}.csv").exists() for window in run.recorded):
        return ""
    command = shlex.join(["perfhooks", "show", str(shown(run.folder)), "-t", table])
    return f"no finding with a gain; `{command}` lists {table} by time"


def _of_timeline(run: FinishedRun) -> RunSummary | None:
    raw = [path for path, rank in run.run.left_steps() if rank == run.rank]
    loops = read_in_training(run.run.timeline(run.rank), raw)
    summary = begin_summary(run.manifest.steps_by)
    captures = [window.capture for window in run.recorded]
    loop = main_loop([capture.stage for capture in captures], loops)
    typical = loops.get(loop, NONE).typical()
    summary.step_ms = typical.median_ms
    if summary.step_ms is not None:
        for capture in captures:
            summary.warning = capture.warning or summary.warning
            if in_timeline(capture.stage) == loop and capture.has_step_times:
                summary.profiled_steps, summary.profiled_ms = capture.usual_steps, profiled_ms(capture.usual)
                beside = loops[loop].beside(capture.first, capture.end)
                summary.parts = shares_of_step(summary, capture.usual, beside or typical)
                warnings = (*filter(None, [summary.warning]), *untypical(beside), *rough(summary))
                summary.warning = next(iter(warnings), None)
        return summary
    part = next((capture for capture in captures if capture.is_part), None)
    if part is not None:
        summary.profiled_steps = f"a part of {words.steps(part.first, part.first)}"
    return None if part is None else summary


def box(content: Box, width: int, encoding: str) -> str:
    line, side, *corners = _LINES[0 if _fits("".join(_LINES[0]), encoding) else 1]
    inner = max(width - 4, 20)
    title = f" perfhooks {line}"
    rows = [f"{corners[0]}{line}{title:{line}<{inner + 1}}{corners[1]}"]
    for label, text in _rows(content):
        wrapped = textwrap.wrap(text, inner - len(label), break_on_hyphens=False) or [""]
        for number, part in enumerate(wrapped):
            cell = (label if not number else " " * len(label)) + part
            rows.append(f"{side} {cell}{' ' * (inner - _columns(cell))} {side}")
    rows.append(f"{corners[2]}{line * (inner + 2)}{corners[3]}")
    return "\n".join([*rows, words.line(content.where), ""])


def plain(content: Box) -> str:
    first, *rows = [*(f"{label}{text}" for label, text in _rows(content)), words.line(content.where)]
    return "\n".join([f"perfhooks: {first}", *(f"  {row}" for row in rows), ""])


def one_line(content: Box) -> str:
    summary = content.summary
    texts = [] if summary is None else [summary.step, _parts(summary)]
    return "; ".join(words.line(text) for text in (*texts, content.line, content.where) if text)


def _rows(content: Box) -> list[tuple[str, str]]:
    summary = content.summary
    texts = [content.line] if summary is None else [summary.step, content.line]
    rows = [("", words.line(text)) for text in texts if text]
    if summary is None:
        return rows
    if summary.parts:
        rows.append(("", _parts(summary)))
    rows += [(f"{number}. ", _finding(finding)) for number, finding in enumerate(summary.findings, 1)]
    rows += [("", words.line(content.hint))] if content.hint else []
    if summary.warning and not content.line:
        rows.append(("warning: ", words.line(summary.warning)))
    return rows


def _parts(summary: RunSummary) -> str:
    # Five parts of a step fit a line of 80 columns.
    return ", ".join(f"{words.line(part.name)} {words.share(part.share)}{part.brackets}" for part in summary.parts[:5])


def _finding(finding: SummaryFinding) -> str:
    where = f" ({words.line(finding.where)})" if finding.where else ""
    gain = f": {words.line(finding.gain)}" if finding.gain else ""
    return f"{words.line(finding.title).rstrip('.')}{where}{gain}"


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _columns(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))
