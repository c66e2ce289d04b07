from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.analysis.comparison.sentences import percent
from perfhooks.analysis.comparison.turns import FEWEST_PAIRS, LEAST_BLOCKS, MOST_PAIRS, ProcessPair, judge
from perfhooks.cli.turns.program import Program
from perfhooks.cli.turns.supervisor import ComparisonEndError
from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.record.launch.command_line import PATIENCE_S
from perfhooks.record.launch.turns import Turn
from perfhooks.run.steps import FEWEST_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.analysis.comparison.turns import Judgement
    from perfhooks.cli.turns.program import Command, ProgramResult
    from perfhooks.cli.turns.supervisor import Owner

SHORT_S: Final = 0.03
"""Length of a block in s if only the training process computes, on a CPU. In ten pairs of equal trainings, ratios
varied by 1.4% with these blocks on one CPU, and by 7.1% with blocks of 0.2 s on any CPU.
"""
LONG_S: Final = 0.2
"""Length of a block in s if a device or child processes compute too."""

_TIMED_BLOCKS: Final = 2
"""Blocks after which the step time is known. The first step often contains one-time work."""


class NoStepsError(PerfhooksError):
    """A program ended, or waited for too long, before its first step."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)  # the supervisor sends the exception by pickle, which uses these arguments
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return f"{self.program} made no steps that perfhooks detects: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    a: Command
    b: Command
    tolerance: float
    in_turns: bool = False
    """Whether the second program of a pair starts after the end of the first, without interleaved blocks."""
    steps: int | None = None
    """Number of steps after which each program is ended; None waits for its end."""
    seconds: float | None = None
    """Time of steps in s after which each program is ended; None waits for its end."""


class ComparisonResult(NamedTuple):
    plan: Plan
    judgement: Judgement | None
    shortage: str
    programs: Sequence[ProgramResult]
    failed: ProgramResult | None
    """First program that ended with an exit code other than 0, which ends the comparison."""
    interrupted: int = 0
    folder: Path | None = None


@dataclass(kw_only=True)
class Alternation:
    plan: Plan
    folder: Path
    owner: Owner
    pairs: list[ProcessPair] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    failed: Program | None = None
    interrupted: int = 0

    judgement: Judgement | None = None

    @property
    def _is_over(self) -> bool:
        judgement = self.judgement
        return judgement is not None and (judgement.verdict.outcome != "undecided" or judgement.is_hopeless)

    @property
    def shortage(self) -> str:
        judgement = self.judgement
        if judgement is None or judgement.verdict.outcome != "undecided" or not judgement.is_short:
            return ""
        steps = min(program.steps for program in self.programs)
        few = words.count(steps, "step is", "steps are")
        is_bounded = (self.plan.seconds or self.plan.steps) and all(program.is_ended for program in self.programs)
        longer = "use a larger --seconds or --steps" if is_bounded else "let each command train for longer"
        if judgement.missing_steps == math.inf:
            return f"{few} too few, and too uneven: {longer}"
        needed = f"{float(f'{steps * judgement.missing_steps:.2g}'):,.0f}"
        return f"{few} too few, about {needed} would do: {longer}"

    def run(self) -> None:
        try:
            while len(self.pairs) < MOST_PAIRS and not self._is_over and self.failed is None:
                self._add_pair()
        except ComparisonEndError as error:
            self.interrupted = error.number
            self._count(self.programs[-2:])
        finally:
            self._end(self.programs[-2:])

    def result(self) -> ComparisonResult:
        results = {program: program.result() for program in self.programs}
        failed = None if self.failed is None else results[self.failed]
        programs = list(results.values())
        return ComparisonResult(self.plan, self.judgement, self.shortage, programs, failed, self.interrupted)

    def _end(self, programs: Sequence[Program]) -> None:
        for program in programs:
            program.mark_end()
        self.owner.end_all([pid for program in programs for pid in program.pids])

    def _add_pair(self) -> None:
        plan, number = self.plan, len(self.pairs) + 1
        commands = (plan.a, plan.b) if number % 2 else (plan.b, plan.a)
        groups = [[command] for command in commands] if plan.in_turns else [commands]
        started = []
        for group in groups:
            programs = [self._start(command, number) for command in group]
            started += programs
            self._take_turns(programs)
            self._finish(programs)
        pair = self._count(started)
        if self.failed is None and not pair.counts:
            few = min(started, key=lambda program: len(program.blocks))
            blocks = words.count(min(map(len, pair.counted)), "block")
            raise PerfhooksError(
                f"{few.command.name} made too few steps to compare: its first steps do not count, and after them there "
                f"was time for {blocks}, but {LEAST_BLOCKS} are needed; let it train for longer"
            )

    def _start(self, command: Command, number: int) -> Program:
        program = Program(command, self.folder, number, self.owner)
        self.programs.append(program)
        return program

    def _count(self, programs: Sequence[Program]) -> ProcessPair:
        blocks = {program.command.name: program.blocks for program in programs}
        pair = ProcessPair(a=blocks.get("A", []), b=blocks.get("B", []), is_together=not self.plan.in_turns)
        if pair.counts:
            pairs = [*self.pairs, pair]
            # one statement, so that Ctrl-C cannot count a pair twice
            self.judgement, self.pairs = judge(pairs, tolerance=self.plan.tolerance), pairs
        return pair

    def _take_turns(self, programs: Sequence[Program]) -> None:
        self.owner.status(self._said("starting"))
        if not self._have_begun(programs):
            return
        last_message_s = 0.0
        while not all(self._is_enough(program) for program in programs):
            is_short = len(programs) > 1 and all(program.is_alone for program in programs)
            for program, beside in zip(programs, reversed(programs), strict=True):
                turn = _turn(program, SHORT_S if is_short else LONG_S)
                program.let_go(turn, beside if len(programs) > 1 else None)
                if not program.until_held():
                    return
                if len(programs) > 1:
                    program.stop_children()
            if not self.pairs:
                for program in programs:
                    self._check_limit(program)
            if time.monotonic() > last_message_s + 0.5:
                last_message_s = time.monotonic()
                self.owner.status(self._said(words.count(len(programs[-1].blocks), "turn")))

    def _check_limit(self, program: Program) -> None:
        seconds, blocks = self.plan.seconds, program.blocks
        if seconds is None or len(blocks) < _TIMED_BLOCKS:
            return
        steps_s = [block.wall_ns / block.steps * 1e-9 for block in blocks]
        step_s = min(steps_s)
        steps_left = max(seconds - program.seconds, 0.0) / step_s
        if program.steps + steps_left < FEWEST_FIRST + LEAST_BLOCKS:
            enough_s = program.seconds + (FEWEST_FIRST + 2 * LEAST_BLOCKS - program.steps) * max(steps_s)
            raise PerfhooksError(
                f"a step of {program.command.name} takes {words.ms(step_s * 1e3)}, so --seconds {seconds:g} ends it "
                f"after too few steps to compare; use --seconds {10 * math.ceil(enough_s / 10)} or more"
            )

    def _have_begun(self, programs: Sequence[Program]) -> bool:
        # a program without steps that perfhooks can detect may never end
        silent_until = time.monotonic() + PATIENCE_S
        while not all(program.is_held for program in programs):
            if time.monotonic() > silent_until and not any(program.has_steps for program in programs):
                silent_until = math.inf
                names = " and ".join(program.command.name for program in programs)
                self.owner.say(
                    f"perfhooks: {PATIENCE_S:.0f} s after the start, {names} made no steps that perfhooks detects; "
                    "Ctrl-C ends the comparison"
                )
            for program, beside in zip(programs, reversed(programs), strict=True):
                program.listen()
                if (program.is_over or program.has_lost_patience(beside)) and not program.has_steps:
                    why = program.why_no_steps()
                    raise NoStepsError(program.command.name, why)
                if program.is_over:
                    return False
        for program in programs:
            program.until_held()
            if len(programs) > 1:
                program.stop_children()
        return True

    def _is_enough(self, program: Program) -> bool:
        enough = (self.plan.steps, program.steps), (self.plan.seconds, program.seconds)
        return any(most is not None and done >= most for most, done in enough)

    def _finish(self, programs: Sequence[Program]) -> None:
        plan = self.plan
        is_bounded = plan.steps is not None or plan.seconds is not None
        for program in sorted(programs, key=lambda program: not program.is_over):
            if not is_bounded and self.failed is None and program.wait():
                self.failed = program
        if plan.b.changes is not None and any(program.is_over and not program.code for program in programs):
            for program in programs:
                program.free()
        self._end(programs)
        for program in programs:
            program.close()
            if program.code and not program.is_ended:
                self.failed = self.failed or program

    def _said(self, now: str) -> str:
        judgement, far = (
            self.judgement,
            f"pair {len(self.pairs) + 1} (at least {FEWEST_PAIRS}, at most {MOST_PAIRS}), {now}",
        )
        return f"{far} " if judgement is None else f"{far}; step time of B so far: {percent(judgement.verdict.ratio)} "


def _turn(program: Program, length_s: float) -> Turn:
    """Make every second block one step longer, so that periodic work changes its position in the blocks."""
    if not program.blocks:
        return Turn(1)
    last = program.blocks[-1]
    fitting, most = (round(length * 1e9 * last.steps / max(last.wall_ns, 1)) for length in (length_s, LONG_S))
    steps = max(1, min(max(fitting, min(4, most)), 4 * last.steps)) + len(program.blocks) % 2
    return Turn(steps, lead=steps // 4)
