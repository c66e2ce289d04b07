from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from perfhooks import trace
from perfhooks.cli.actions import output
from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.progress import show_remaining, show_spinner
from perfhooks.report import page as report
from perfhooks.report.page.terminal_tables import draw
from perfhooks.run.circumstances import Circumstances
from perfhooks.run.layout import MANIFEST, PAGE
from perfhooks.trace.names.operators import NAMESPACE
from perfhooks.trace.window import Tables
from perfhooks.trials import bench, recorded, safe, trial, variants, written
from perfhooks.trials.cut import select_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.cli.actions.show import Form
    from perfhooks.cli.actions.sources import Source
    from perfhooks.trials.cut import OperatorSelection
    from perfhooks.trials.trial import Trial


def tried(
    source: Source,
    timed: Source,
    op: Sequence[str],
    variant: Sequence[str],
    finding: str | None,
    *,
    device: str | None,
    limit: int,
    memory: float | None,
    seconds: float,
    ends: float,
) -> Trial:
    """Measure variants of the operators in the trace ``source``, which has shapes.

    Times come from the trace ``timed``, because recording shapes slows the steps.
    """
    advice = None if finding is None else variants.advice_for(finding)
    variants.select_variants(variant)
    with show_spinner(f"reading {source.path}"):
        calls = recorded.load_calls(*_read(source, timed))
        offered = select_calls(calls, wanted(op, advice and advice.operators))
    if not offered.groups:
        raise PerfhooksError(_nothing(offered, op or ([finding] if finding else [])))
    where = safe.select_device(device, on_device=calls.on_device)
    options = bench.TrialOptions(
        device=where,
        variants=tuple(variant or (advice.variants if advice else ())),
        limit=limit,
        memory=safe.free_bytes(where) / 2 / 2**30 if memory is None else memory,
        seconds=seconds,
    )
    circumstances = Circumstances() if source.capture is None else source.capture.circumstances
    with show_remaining("trying") as tell:
        return trial.run(offered, calls.step_ms, options, circumstances, tell, ends=ends)


def _read(source: Source, timed: Source) -> tuple[Any, float | None, Any]:
    read = trace.read(source.path, strides=True)
    if source.capture is None or timed.capture is None:
        return Tables(read), None, None
    times = None if timed is source else timed.capture.tables(trace.read(timed.path))
    return source.capture.tables(read), timed.capture.cost.idle_step_ms, times


def wanted(op: Sequence[str] | None, pattern: str | None) -> Callable[[str], object] | None:
    if op and pattern:
        raise OptionError("use either --op or --finding")
    if op:
        names = {name if "::" in name or "#" in name else f"{NAMESPACE}{name}" for name in op}
        # the table shows an update by the class of its optimizer
        names |= {f"{name}.step" for name in names if "#" in name}
        return names.__contains__
    return None if pattern is None else re.compile(pattern).fullmatch


def _nothing(offered: OperatorSelection, names: Sequence[str]) -> str:
    if offered.left:
        first = offered.left[0]
        return f"nothing can be run again: {first.name}: {first.reason}"
    named = " or ".join(names)
    return f"there is no call of {named} in the steps of this recording" if names else "there are no operators in it"


def keep(done: Trial, source: Source) -> None:
    folder = Path(source.path).parent.parent
    is_run = source.capture is not None and (folder / MANIFEST).exists()
    if is_run and written.save_advice(done, folder) and (folder / PAGE).exists():
        typer.echo(f"{report.write(folder)} shows the measured gains next to the estimates", err=True)


def tell(done: Trial, form: Form) -> None:
    if form == "json":
        typer.echo(msgspec.json.encode(written.data(done)).decode())
        return
    if form == "csv":
        sys.stdout.write(output.csv_of_three_digits(written.table(done)))
        sys.stdout.flush()
    else:
        for line in written.skip_reasons(done):
            typer.echo(line)
        draw({"tried": written.terminal_table(done)}, limit=0)
    for line in written.sentences(done):
        typer.echo(line, err=form == "csv")
