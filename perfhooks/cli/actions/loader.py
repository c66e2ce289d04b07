from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import psutil
import typer

from perfhooks.cli.actions import output, sources
from perfhooks.cli.turns.supervisor import GRACE_S
from perfhooks.core.errors import CommandError, OptionError, PerfhooksError
from perfhooks.core.progress import show_spinner
from perfhooks.record.launch import command_line
from perfhooks.report.page.terminal_tables import draw
from perfhooks.run.reading import read_json
from perfhooks.trials.loader_results import BRIEF, LoaderTrial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.cli.actions.show import Form


def tried(command: Sequence[str], seconds: float, ends: float) -> LoaderTrial:
    if not command:
        raise OptionError("--loader needs a command, for example: perfhooks try --loader -- python train.py --lr 0.1")
    if not 0 < seconds < float("inf"):
        raise OptionError(f"seconds must be a number above 0, got {seconds:g}")
    words = command_line.command(command)
    with tempfile.TemporaryDirectory(prefix="perfhooks-try-") as folder, show_spinner("trying the loader"):
        file = Path(folder, "trial.json")
        request = command_line.Request(trial=str(file), trial_ends=ends, here=os.fspath(Path.cwd()))
        code = _run(words, command_line.environment(request, os.environ), file, ends)
        if not file.exists():
            name = words[-1] if len(words) == 1 else words[1]
            how = f"ended with exit code {code}, before it iterated"
            if code is None:
                how = f"did not iterate within {seconds:g} s (--seconds)"
            raise CommandError(f"{name} {how} a torch.utils.data.DataLoader with gradients enabled", code or 1)
        trial = read_json(file, LoaderTrial, "the result of a loader trial")
    if not any(trial_row.batches for trial_row in trial.tried):
        raise PerfhooksError(f"the loader cannot be measured: {trial.problem or 'there was no time for a batch'}")
    return trial


def _run(words: Sequence[str], environment: dict[str, str], file: Path, ends: float) -> int | None:
    program = psutil.Popen(words, env=environment, stdout=sys.stderr)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the program, which then writes its result
    try:
        with contextlib.suppress(psutil.TimeoutExpired):
            return int(program.wait(max(ends - time.monotonic(), 0)) or 0)
        with contextlib.suppress(psutil.TimeoutExpired):
            return int(program.wait(GRACE_S if file.exists() else 0) or 0)
        _end(program)
        return None
    finally:
        signal.signal(signal.SIGINT, before)


def _end(program: psutil.Process) -> None:
    processes = [*program.children(recursive=True), program]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, GRACE_S)


def tell(trial: LoaderTrial, form: Form) -> None:
    if form == "json":
        sentences = [*trial.sentences(*_step())]
        typer.echo(msgspec.json.encode({"tried": trial.rows(), "sentences": sentences}).decode())
        return
    table = pl.DataFrame(trial.rows(), infer_schema_length=None)
    if form == "csv":
        sys.stdout.write(output.csv_of_three_digits(table))
        sys.stdout.flush()
    else:
        draw({"loader": table.filter(pl.col("batches_per_s").is_not_null()).select(BRIEF)}, limit=0)
    for line in trial.sentences(*_step()):
        typer.echo(line, err=form == "csv")


def _step() -> tuple[float | None, float]:
    try:
        capture = sources.last_window(sources.find(None))[0].capture
    except PerfhooksError:
        return None, 0.0
    cost = None if capture is None else capture.cost
    if cost is None or not cost.idle_step_ms or cost.idle_data_ms is None:
        return None, 0.0
    waited = min(cost.idle_data_ms, cost.idle_step_ms)
    return cost.idle_step_ms - waited, waited
