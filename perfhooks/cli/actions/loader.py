from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import typer

from perfhooks.cli.actions import output, sources
from perfhooks.cli.turns.supervisor import GRACE_S, ComparisonEndError, supervise
from perfhooks.core.errors import CommandError, OptionError, PerfhooksError
from perfhooks.core.process import POLL_S
from perfhooks.core.progress import status_line
from perfhooks.record.launch import command_line, loader_trials
from perfhooks.report.page.terminal_tables import draw
from perfhooks.run.reading import read_json
from perfhooks.trials.loader_results import BRIEF, LoaderTrial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.cli.actions.show import Form
    from perfhooks.cli.turns.supervisor import Owner


def tried(command: Sequence[str], seconds: float, ends: float) -> LoaderTrial:
    if not command:
        raise OptionError("--loader needs a command, for example: perfhooks try --loader -- python train.py --lr 0.1")
    if not 0 < seconds < float("inf"):
        raise OptionError(f"seconds must be a number above 0, got {seconds:g}")
    words = command_line.command(command)
    with tempfile.TemporaryDirectory(prefix="perfhooks-try-") as folder, status_line() as status:
        status("trying the loader ")
        file = Path(folder, "trial.json")
        request = command_line.Request(trial=str(file), trial_ends=ends, here=os.fspath(Path.cwd()))
        code = _supervised(words, command_line.environment(request, os.environ), file, ends)
        if not file.exists():
            how = f"ended with exit code {code}, before it iterated"
            if code is None:
                how = f"did not iterate within {seconds:g} s (--seconds)"
            raise CommandError(
                f"{shlex.join(command)} {how} a torch.utils.data.DataLoader outside of torch.no_grad()", code or 1
            )
        trial = read_json(file, LoaderTrial, "the result of a loader trial")
        if code != 0:
            trial = msgspec.structs.replace(trial, is_interrupted=True)
    if not any(trial_row.batches for trial_row in trial.tried):
        raise PerfhooksError(f"the loader cannot be measured: {trial.problem or 'there was no time for a batch'}")
    return trial


def _supervised(words: Sequence[str], environment: dict[str, str], file: Path, ends: float) -> int | None:
    with contextlib.ExitStack() as opened:
        how: dict[str, Any] = {"env": environment}
        for name, number in (("stdin", 0), ("stdout", 2), ("stderr", 2)):
            with contextlib.suppress(OSError):  # a daemon may have closed it
                how[name] = os.dup(number)  # the supervisor replaces its own streams
                opened.callback(os.close, how[name])
        try:
            return supervise(functools.partial(_run, words, how, file, ends), clean=bool, status=bool, say=bool)
        except ComparisonEndError as error:
            raise typer.Exit(128 + error.number) from None


def _run(words: Sequence[str], how: dict[str, Any], file: Path, ends: float, owner: Owner) -> int | None:
    program = owner.start(words, **how)
    while (code := program.poll()) is None:
        if time.monotonic() > ends + (GRACE_S if file.exists() else 0) or owner.is_hurried:
            return None
        try:
            owner.check()
        except ComparisonEndError as error:
            if error.number != signal.SIGINT or not file.exists():
                raise
            loader_trials.stop_file(file).touch()
            ends = min(ends, time.monotonic())
        time.sleep(POLL_S)
    return code


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
