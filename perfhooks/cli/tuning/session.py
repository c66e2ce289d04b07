from __future__ import annotations

import functools
import math
import os
import re
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import typer

from perfhooks.analysis.comparison import sentences
from perfhooks.analysis.comparison.difference import TOLERANCE
from perfhooks.analysis.findings.texts.changes import CHANGES, select
from perfhooks.cli.actions import turns
from perfhooks.cli.tuning.patch import Patch
from perfhooks.cli.turns.alternation import NoStepsError
from perfhooks.cli.turns.program import Command
from perfhooks.cli.turns.supervisor import GRACE_S, ComparisonEndError, supervise
from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.process import POLL_S
from perfhooks.core.progress import status_line
from perfhooks.core.words import count, ms
from perfhooks.record.launch import command_line, exit_summary, notes
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.report.page import findings_file, run_data
from perfhooks.report.page.tuned_file import TunedChange
from perfhooks.run.circumstances import cores
from perfhooks.run.live import change_notes
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.cli.turns.alternation import ComparisonResult
    from perfhooks.cli.turns.program import ProgramResult
    from perfhooks.cli.turns.supervisor import Owner
    from perfhooks.cli.turns.work_folder import WorkFolder
    from perfhooks.core.changes import Site, TrainingChange
    from perfhooks.report.page.findings_file import FindingsFile

_STEPS: Final = 16
"""Minimum steps of a trial: five blocks after the untimed steps."""
_SECONDS: Final = 5.0
"""Minimum time of a trial in s: as long as the start of torch."""
_LONGER: Final = 4
_NO_CALL: Final = "the training makes no such call"


class Recording(NamedTuple):
    run: str
    effects: change_notes.Effects
    reason: str


@dataclass(kw_only=True)
class Session:
    words: Sequence[str]
    minutes: float
    is_numeric_allowed: bool
    all_changes: bool
    is_copied: bool
    out: str | None
    rows: dict[str, TunedChange] = field(default_factory=dict)
    final: TunedChange | None = None
    run: Path | None = None
    findings: FindingsFile | None = None
    interrupted: int = 0
    _changes: dict[str, TrainingChange] = field(default_factory=dict)
    _sites: dict[str, list[Site]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise OptionError(f"minutes must be a number above 0, got {self.minutes:g}")
        self.ends = time.monotonic() + 60 * self.minutes
        self.patch, self.proposal = self._new_patch(), self._new_patch()

    def _new_patch(self) -> Patch:
        return Patch(folder=Path.cwd(), words=list(self.words))

    @property
    def by_hand(self) -> list[str]:
        return list(dict.fromkeys([*self.patch.by_hand, *self.proposal.by_hand]))

    def tune(self) -> None:
        try:
            self._record()
            self._choose()
            names = [name for name, row in self.rows.items() if row.status == "not measured"]
            for number, name in enumerate(names):
                now, remaining = time.monotonic(), len(names) - number + 1
                ends = now + (self.ends - now) * 2 / (remaining + 1)
                self._measure(self._changes[name], ends)
                if self.interrupted or time.monotonic() > self.ends:
                    break
            if not self.interrupted:
                self._combine()
        except ComparisonEndError as error:
            self.interrupted = error.number
        except KeyboardInterrupt:
            self.interrupted = 2

    def _record(self) -> None:
        request = command_line.request(None, (), {} if self.out is None else {"out": self.out})
        with tempfile.TemporaryDirectory(prefix="perfhooks-tune-") as folder, status_line() as status:
            status("recording ")
            request = msgspec.structs.replace(request, notes=folder, changes=CHANGES, is_applied=False)
            work = functools.partial(_recorded, self.words, command_line.environment(request, os.environ), folder)
            recording = supervise(work, clean=bool, status=bool, say=functools.partial(typer.echo, err=True))
            if not recording.run:
                raise PerfhooksError(f"nothing was recorded: {recording.reason}")
            status("reading the recording ")
            self.run = Path(recording.run)
            for _ in finish_all(self.run):
                pass
            self.findings = findings_file.from_data(run_data.gather(self.run))
        for site in recording.effects.sites:
            self._sites.setdefault(site.change, []).append(site)

    def _choose(self) -> None:
        findings = [] if self.findings is None else self.findings.findings
        fixes = {row.rule: row.code or "" for row in findings}
        for change in select(fixes, cores() or 1, all_changes=self.all_changes):
            self._changes[change.name] = change
            problem = self._problem(change)
            status = "unsuitable" if problem else "not measured"
            if not problem and change.is_proposed:
                self.proposal.add(change, [site for site in self._suitable(change) if site.lines])
                has_lines = self.proposal.diff or self.proposal.by_hand
                status, problem = ("proposed", "") if has_lines else ("unsuitable", _NO_CALL)
            elif not problem and change.is_numeric and not self.is_numeric_allowed:
                status, problem = "would try", "it changes results; --allow-numerics measures it"
            rules = [rule for rule in change.rules if rule in fixes]
            places = [place for site in self._suitable(change) for place in site.lines[:1]]
            lines = [f"{file}:{line}" if line else file for file, line in places]
            row = TunedChange(name=change.name, rules=rules, status=status, reason=problem or None, lines=lines)
            self.rows[change.name] = row
            if status != "not measured":
                _say(row)

    def _suitable(self, change: TrainingChange) -> list[Site]:
        by_line: dict[Any, list[Site]] = defaultdict(list)
        for site in self._sites.get(change.name, ()):
            by_line[site.lines].append(site)
        sites = [group[0] for group in by_line.values() if not any(site.is_same or site.problem for site in group)]
        callees = {site.lines: site.callees for group in by_line.values() for site in group}
        return [msgspec.structs.replace(site, callees=callees[site.lines]) for site in sites]

    def _problem(self, change: TrainingChange) -> str:
        sites = self._sites.get(change.name, ())
        if problem := next((site.problem for site in sites if site.problem), ""):
            return problem
        if not self._suitable(change):
            return "the training has this change" if sites else _NO_CALL
        return ""

    def _measure(self, change: TrainingChange, ends: float) -> None:
        result = self._trial(change.name, (change,), ends)
        row = _judged(self.rows[change.name], result, is_numeric_allowed=self.is_numeric_allowed)
        self.rows[change.name] = row
        _say(row)

    def _trial(
        self, label: str, changes: Sequence[TrainingChange], ends: float, patch: Patch | None = None
    ) -> ComparisonResult | str:
        step_s = 1e-3 * (self.findings.step.ms if self.findings and self.findings.step else 0.0)
        make = functools.partial(self._commands, changes, patch)
        result: ComparisonResult | str = ""
        for factor in (1, _LONGER):
            seconds, ends = factor * max(_SECONDS, _STEPS * step_s), min(ends, self.ends)
            try:
                result = turns.measured(make, ends=ends, label=f"{label}: ", tolerance=TOLERANCE, seconds=seconds)
            except NoStepsError as error:
                if error.program == "A":
                    raise PerfhooksError(f"the original training cannot be measured: {error.reason}") from error
                return error.reason
            except PerfhooksError as error:
                result = str(error)
            has_enough = not isinstance(result, str) and (result.interrupted or not result.shortage)
            if has_enough or time.monotonic() > ends:
                break
        if isinstance(result, str):
            return result
        self.interrupted = self.interrupted or result.interrupted
        if result.failed is not None and result.failed.command.name == "A":
            last = next(iter(result.failed.last_lines[-1:]), "")
            raise PerfhooksError(f"the original training failed with exit code {result.failed.code}: {last}")
        return result

    def _commands(
        self, changes: Sequence[TrainingChange], patch: Patch | None, folder: WorkFolder, _: Owner
    ) -> list[Command]:
        a = Path.cwd(), self.words
        b = a if patch is None else (patch.shadow(folder.path / "patched"), patch.words)
        return [
            Command(
                name=name,
                label=name,
                words=command_line.command(words, path),
                folder=path,
                changes=changes_of_side,
                is_copied=self.is_copied,
            )
            for name, changes_of_side, (path, words) in (("A", (), a), ("B", tuple(changes), b))
        ]

    def _combine(self) -> None:
        best: dict[str, TunedChange] = {}
        for row in self.rows.values():
            if row.status == "faster":
                group = self._changes[row.name].group or row.name
                best[group] = min(best.get(group, row), row, key=lambda row: row.ratio or math.inf)
        names = [name for name in self._changes if name in {row.name for row in best.values()}]
        if not names:
            return
        patch = self._new_patch()
        for name in (change.name for change in CHANGES if change.name in names):
            patch.add(self._changes[name], self._suitable(self._changes[name]))
        row = TunedChange(name="all together", rules=[], status="not measured", lines=names)
        self.final = row
        if time.monotonic() < self.ends:
            result = self._trial("all together", patch.unpatched, self.ends, patch)
            self.final = _judged(row, result, is_numeric_allowed=self.is_numeric_allowed)
        _say(self.final)
        if self.final.status == "faster":
            self.patch = patch
            for name in names:
                self.rows[name] = msgspec.structs.replace(self.rows[name], status="kept")


def _say(row: TunedChange) -> None:
    typer.echo(f"{row.name}: {describe(row)}", err=True)


def _recorded(words: Sequence[str], environment: dict[str, str], folder: str, owner: Owner) -> Recording:
    log = Path(folder, "output.txt")
    command = command_line.command(words)
    with log.open("wb") as output:
        process = owner.start(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    while process.poll() is None and not notes.runs(notes.read(folder)):
        owner.check()
        time.sleep(POLL_S)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(4 * GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    known = notes.read(folder)
    run = next(iter(notes.runs(known)), "")
    reasons = exit_summary.reasons(known, command, process.returncode)
    last = read_bytes(log).decode("utf-8", "replace").splitlines()[-1:]
    return Recording(run, change_notes.read(folder), "; ".join([*reasons, *last]))


def _judged(row: TunedChange, result: ComparisonResult | str, *, is_numeric_allowed: bool) -> TunedChange:
    def with_status(status: str, reason: str | None, **facts: Any) -> TunedChange:
        return msgspec.structs.replace(row, status=status, reason=reason, **facts)

    if isinstance(result, str):
        return with_status("failed", result)
    a, b = ([program for program in result.programs if program.command.name == name] for name in "AB")
    judgement = result.judgement
    if result.failed is not None or judgement is None:
        is_failed = result.failed is not None or not any(program.blocks for program in b)
        return with_status("failed" if is_failed else "not measured", _describe_failure(result.failed))
    verdict = judgement.verdict
    ratio, difference = verdict.decisive, _loss_difference(a, b)
    facts: dict[str, Any] = {
        "outcome": verdict.outcome,
        "ratio": ratio.ratio,
        "interval": None if sentences.is_wide(ratio) else [ratio.low, ratio.high],
        "gain_ms": ratio.a - ratio.b,
        "memory_bytes": max(program.memory_bytes for program in b) - max(program.memory_bytes for program in a),
        "loss_difference": difference,
    }
    steps = [{program.effects.steps for program in side if program.effects.steps is not None} for side in (a, b)]
    reason = None
    if all(steps) and steps[0] != steps[1]:
        reason = f"the training makes {count(max(steps[1]), 'step')} instead of {max(steps[0])}"
    elif verdict.outcome != "faster":
        reason = str(verdict.outcome)
    elif difference != 0 and not is_numeric_allowed:
        how = "cannot be compared" if difference is None else f"differ by {difference:.2g}"
        reason = f"losses {how}; --allow-numerics keeps it"
    return with_status("rejected" if reason else "faster", reason or _new_output(a, b) or None, **facts)


def _describe_failure(program: ProgramResult | None) -> str:
    if program is None:
        return "the time limit was reached before a result"
    code = program.code or 0
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    return f"{how}: {next(iter(program.last_lines[-1:]), 'no output')}"


def _loss_difference(a: Sequence[ProgramResult], b: Sequence[ProgramResult]) -> float | None:
    originals = [program.effects.losses for program in a if program.effects.losses]
    changed = [program.effects.losses for program in b if program.effects.losses]
    if not originals or not changed or _largest(originals[0], originals[1:]):
        return None
    return _largest(originals[0], changed)


def _largest(losses: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    pairs = [pair for other in others for pair in zip(losses, other, strict=False)]
    return max((0.0 if a == b else abs(a - b) for a, b in pairs), default=0.0)


def _new_output(a: Sequence[ProgramResult], b: Sequence[ProgramResult]) -> str:
    known = {_shape(line) for program in a for line in program.last_lines}
    complete = [program for program in b if not program.is_ended]
    new = [line for program in complete for line in program.last_lines if _shape(line) not in known]
    return f"new output: {new[0].strip()}" if new else ""


def _shape(line: str) -> str:
    return re.sub(r"[-+.\de]*\d", "0", line)


def describe(row: TunedChange) -> str:
    if row.ratio is None:
        return f"{row.status}: {row.reason}" if row.reason else row.status
    text = f"{row.outcome}, {_step(row)}"
    if row.interval is None:
        return f"{text}; the steps are too uneven"
    return f"{text}; {row.reason}" if row.reason and row.reason != row.outcome else text


def _step(row: TunedChange) -> str | None:
    if row.ratio is None:
        return None
    text = sentences.percent(row.ratio)
    return text if row.interval is None else f"{text} ({' to '.join(map(sentences.percent, row.interval))})"


def lines_of(rows: Sequence[TunedChange]) -> Iterator[dict[str, str | None]]:
    for row in rows:
        difference = row.loss_difference
        yield {
            "change": row.name,
            "result": row.outcome if row.reason and row.reason == row.outcome else row.status,
            "step": _step(row),
            "gain": None if row.gain_ms is None else ms(row.gain_ms),
            "memory": None if row.memory_bytes is None else f"{row.memory_bytes / 2**20:+.0f} MiB",
            "losses": None if difference is None else f"{difference:.1g}" if difference else "equal",
        }
