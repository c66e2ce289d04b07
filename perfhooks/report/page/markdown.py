"""A run or a trace as one page of markdown."""

from __future__ import annotations

from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.findings.finding import first_rank_findings, gain, ordered
from perfhooks.core import labels, words
from perfhooks.report.page.run_data import from_trace, gather
from perfhooks.report.page.run_summary import RunSummary
from perfhooks.run.layout import PAGE, artifact, timeline
from perfhooks.trace.names import work_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

MOST: Final = 4500
"""Maximum characters of a summary, which are fewer than 2,000 tokens."""

_PARTS: Final = tuple(part for part in labels.PHRASES if part != labels.COMMUNICATION)
_DEVICE: Final = {
    "device_busy": "busy",
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "exposed_copy": "exposed copies",
    "device_idle": "idle",
}
_NOT_OPERATORS: Final = ("kernel", "copy", "set", "device_annotation", "runtime", "overhead")


class Text(str):
    """A string that notebooks show as plain text or as rendered markdown."""

    __slots__ = ("_is_markdown",)
    _is_markdown: bool

    @classmethod
    def of(cls, text: str, *, is_markdown: bool = False) -> Text:
        instance = cls(text)
        instance._is_markdown = is_markdown
        return instance

    def _repr_html_(self) -> str | None:
        return None if self._is_markdown else f"<pre>{escape(self)}</pre>"

    def _repr_markdown_(self) -> str | None:
        return str(self) if self._is_markdown else None


def of_run(folder: Path, files: Sequence[str] | None = None) -> str:
    """Return the last window of a run in at most `MOST` characters."""
    data = _to_json(gather(folder))
    return _render(data, _files(folder, data["windows"]) if files is None else list(files))


def of_trace(path: Path, communication: str | None = None) -> str:
    return _render(_to_json(from_trace(path, communication=communication)), [str(path)])


def _to_json(data: Any) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(data), type=dict[str, Any])


def _files(folder: Path, windows: list[dict[str, Any]]) -> list[str]:
    rank = windows[-1]["ranks"][0]["rank"] if windows else 0
    of_last = sorted((folder / windows[-1]["name"]).glob(artifact(rank, "*"))) if windows else []
    paths = [folder / PAGE, folder / timeline(rank), *of_last]
    return [str(path) for path in paths if path.exists()]


def _render(data: Mapping[str, Any], files: list[str]) -> str:
    summary = msgspec.convert(data["summary"], RunSummary)
    windows = data.get("windows") or []
    window: Mapping[str, Any] = next((window for window in windows if window["name"] == summary.window), {})
    details: dict[str, Any] = next(iter(window.get("details", {}).values()), {})
    rank: dict[str, Any] = next(iter(window.get("ranks", ())), {})
    sections = [
        _head(data, summary, window, details, rank),
        _labels(details),
        _steps(summary, details),
        _slow(data.get("slow")),
        _findings(ordered([*data.get("findings", ()), *first_rank_findings(window)])),
        _kernels(details),
        _operators(details),
        _doubts(details, rank, window.get("name"), data.get("ranks_together", {}).get("missing", ())),
        _titled("Files", (f"- {words.markdown(path)}" for path in files)),
    ]
    text = ""
    for section in sections:
        for full_line in section:
            line = words.truncated(full_line, 260)
            if len(text) + len(line) < MOST:
                text += f"{line}\n"
    return text


def _titled(title: str, lines: Iterable[str]) -> Iterator[str]:
    content = list(lines)
    if content:
        yield from ("", f"## {title}", *content)


def _head(
    data: Mapping[str, Any],
    summary: RunSummary,
    window: Mapping[str, Any],
    details: Mapping[str, Any],
    rank: Mapping[str, Any],
) -> Iterator[str]:
    run, subject = data.get("run", {}), details.get("subject", {})
    yield f"# {words.markdown(data.get('title', ''))}"
    versions = {**run.get("versions", {}), **rank.get("versions", {})}
    facts = {
        "model": subject.get("model"),
        "stage": details.get("stage"),
        "device": subject.get("device"),
        "ranks": run.get("world_size") or subject.get("world_size"),
        "torch": versions.get("torch"),
        "host": run.get("host"),
        "started": run.get("started"),
        "command": " ".join(run.get("command", ())),
        "window": window.get("name"),
        "recorded": ", ".join(name for name, value in rank.get("options", {}).items() if value is True),
    }
    yield from (f"- {name}: {words.markdown(value)}" for name, value in facts.items() if value)
    if rank.get("partial"):
        yield f"- partial: {words.markdown(rank['partial'])}"
    if summary.warning:
        yield f"- {words.markdown(summary.warning)}"
    if not details:
        yield "- no window was finished" if not window else "- the details of this window are in its files"


def _labels(details: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for row in _rows(details.get("labels", {})) if row["own"]][:8]
    lines = [
        f"| {words.markdown(row['name'])} | {row['calls']} | {row['total_ms']:.4g} | {row['mean_ms']:.4g} "
        f"| {row['self_ms']:.4g} | {words.share(row['percent'] / 100)} |"
        for row in rows
    ]
    header = ["| label | calls | total ms | mean ms | self ms | share |", "|---|---:|---:|---:|---:|---:|"]
    yield from _titled("Your labels", [*header, *lines] if lines else [])


def _rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _steps(summary: RunSummary, details: Mapping[str, Any]) -> Iterator[str]:
    steps = details.get("steps", {})
    usual = steps.get("usual", {})
    wall = usual.get("wall_ms")
    if not summary.line:
        return
    has_parts = not summary.is_profiled or any(part.name != labels.PHRASES[labels.OTHER] for part in summary.parts)
    line = summary.line if has_parts else steps.get("headline") or summary.line
    yield from _titled("Where the step goes", [f"{words.markdown(line)}."])
    if not wall:
        return
    yield from (
        "",
        f"Profiled {summary.profiled_steps}:",
        "",
        "| part | ms | share |",
        "|---|---:|---:|",
    )
    for name in (*_PARTS, *_DEVICE):
        value = usual.get(f"{name}_ms")
        if value:
            part = f"device {_DEVICE[name]}" if name in _DEVICE else name
            yield f"| {part} | {value:.4g} | {words.share(value / wall)} |"
    causes = [] if steps.get("others") else _rows(details.get("device", {}).get("parts", {}))
    for row in causes:
        if row["kind"] == "idle" and row["ms"] >= 0.05 * wall:
            yield f"| device idle: {words.markdown(row['part'])} | {row['ms']:.4g} | {words.share(row['ms'] / wall)} |"


def _slow(slow: Mapping[str, Any] | None) -> Iterator[str]:
    if not slow:
        return
    count, steps = slow["count"], slow.get("steps")
    of = f"{count:,} of {words.count(steps, 'step')}" if steps else words.count(count, "step")
    causes = ", ".join(f"{cause} ({count:,})" for cause, count in slow["causes"].items())
    total = f"{of} {'was' if count == 1 else 'were'} slow and took {words.ms(slow['wall_ms'])} together: {causes}."
    longest = {name: values[0] for name, values in slow["rows"].items()}
    line = f", {longest['line']}" if longest.get("line") else ""
    example = f"The longest: step {longest['step']}, {words.ms(longest['wall_ms'])}, {longest['cause']}{line}."
    yield from _titled("Slow steps", map(words.markdown, (total, example)))


def _findings(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    def lines() -> Iterator[str]:
        for row in [row for row in rows if not row.get("doubts_others")][:5]:
            text = words.of_step(gain(row))
            yield f"- **{words.markdown(row['title'])}**{f' Gain: {text}.' if text else ''}"
            yield from (f"  - {words.markdown(line['text'])}" for line in row.get("evidence", ())[:2])
            if row.get("advice"):
                yield f"  - do: {words.markdown(row['advice'])}"

    yield from _titled("What to do", lines())


def _kernels(details: Mapping[str, Any]) -> Iterator[str]:
    kernels = details.get("kernels", {})
    device_ms = sum(kernels.get("classes", {}).get("total_ms", ()))
    launched_ms = sum(row.get("self_device_ms") or 0 for row in _operator_rows(details))
    if not device_ms or launched_ms >= 0.5 * device_ms:
        return
    is_complete = None not in details.get("steps", {}).get("rows", {}).get("busy_ms", ())
    count = _count(details) if is_complete else 1
    share, step_ms = words.share(launched_ms / device_ms), words.ms(device_ms / count)
    lead = f"Operators launched only {share} of the {step_ms} of device work in a step."
    lead = lead if is_complete else "Device records are missing."
    header = ["| kernel | kind | calls | device ms |", "|---|---|---:|---:|"]
    lines = [
        f"| {_cut(row['name'])} | {_kind(row)} | {row['count'] / count:.4g} | {row['total_ms'] / count:.3g} |"
        for row in _rows(kernels["rows"])[:8]
    ]
    unit = "one step" if is_complete else "all recorded work"
    yield from _titled(f"Largest kernels in {unit}", [lead, "", *header, *lines])


def _kind(row: Mapping[str, Any]) -> str:
    kind = {"compute": work_kinds.of_kernel(row["name"]), "copy": "copies", "set": "copies"}
    return str(kind.get(row["class"], row["class"]))


def _cut(name: str) -> str:
    return words.markdown(words.truncated(name, 92))


def _count(details: Mapping[str, Any]) -> int:
    return details.get("steps", {}).get("count") or 1


def _operator_rows(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        row
        for row in _rows(details.get("operators", {}).get("name", {}))
        if row.get("kind") not in _NOT_OPERATORS and labels.STEP_MARK[:-1] not in row["name"]
    ]


def _operators(details: Mapping[str, Any]) -> Iterator[str]:
    count, rows = _count(details), _operator_rows(details)
    has_device = any(row.get("self_device_ms") for row in rows)
    key = "self_device_ms" if has_device else "self_cpu_ms"
    rows.sort(key=lambda row: -(row.get(key) or 0))
    if not rows:
        return
    limits = [line for sentence in details.get("limits", ()) for line in (words.markdown(sentence), "")]
    yield from _titled(
        "Largest operators in one step", [*limits, "| operator | calls | self host ms | self device ms |"]
    )
    yield "|---|---:|---:|---:|"
    for row in islice(rows, 8):
        times = (row.get(name) for name in ("self_cpu_ms", "self_device_ms" if has_device else ""))
        host_ms, device_ms = ("" if time is None else f"{time / count:.3g}" for time in times)
        yield f"| {words.markdown(row['name'])} | {row['count'] / count:.4g} | {host_ms} | {device_ms} |"


def _doubts(
    details: Mapping[str, Any], rank: Mapping[str, Any], window: str | None, missing: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    checks = details.get("checks", {}).get("rows", {})
    rows = zip(checks.get("severity", ()), checks.get("text", ()), strict=True)
    lines = [f"warning: {entry['text']}" for entry in missing if entry["window"] in (window, None)]
    lines += [f"{severity}: {text}" for severity, text in rows]
    notes = [note for note in rank.get("notes", ()) if not any(note in line for line in lines)]
    yield from _titled("Doubts", (f"- {words.markdown(line)}" for line in [*lines, *notes][:6]))
