"""``perfhooks try``: the advice measured on the user's own shapes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perfhooks.command.output import write
from perfhooks.command.show import Form, form
from perfhooks.command.targets import Source, find, last_window
from perfhooks.errors import OptionError, PerfhooksError
from perfhooks.progress import remaining, working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.tables import Tables
    from perfhooks.trying.cut import Cut
    from perfhooks.trying.trial import Trial, Wish

EXAMPLES: Final = """Examples:

- `perfhooks try perf/latest`
- `perfhooks try perf/latest --op aten::conv2d --variant channels_last --variant bf16`
- `perfhooks try perf/latest --finding optimizer-loop`
- `perfhooks try trace.json.gz --export operators.json`
"""
"""What ``--help`` ends with."""

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""
_GIB: Final = 1 << 30


Target = Annotated[
    str | None, typer.Argument(help="A run folder or a trace; the last run if none is given.", show_default=False)
]
Operators = Annotated[
    list[str] | None,
    typer.Option("--op", help="Only this operator, as aten::mm; may be given several times.", show_default=False),
]
Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Only this variant; several times for several.", show_default=False),
]
FindingName = Annotated[
    str | None, typer.Option("--finding", help="What a finding is about, and what it advises.", show_default=False)
]
Device = Annotated[str | None, typer.Option("--device", help="Where to run; where it was recorded if not given.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="So many of the operators that cost most.")]
Memory = Annotated[
    float | None, typer.Option("--memory", help="GiB that may be taken; half of what is free if not given.")
]
Seconds = Annotated[float, typer.Option("--seconds", help="How long it may take, roughly; more decides more.")]
Export = Annotated[
    Path | None,
    typer.Option("--export", help="Write the recorded calls to a file for other benchmarks, and try nothing."),
]
Csv = Annotated[bool, typer.Option("--csv", help="CSV, as in a pipe.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, with what cannot be run again.")]


def command(
    target: Target = None,
    *,
    op: Operators = None,
    variant: Variants = None,
    finding: FindingName = None,
    device: Device = None,
    limit: Limit = 10,
    memory: Memory = None,
    seconds: Seconds = 60,
    export: Export = None,
    csv: Csv = False,
    json: Json = False,
) -> None:
    """Measure what advice gives: recorded operators run again, as they were and in other ways.

    Needs a recording with shapes (record_shapes=True). Inputs have the recorded sizes, types and layout; each variant
    is timed in turn with the original, and its results are held against it.
    """
    chosen = form(csv=csv, json=json)
    if limit < 1:
        raise OptionError(f"limit must be an integer >= 1, got {limit}")
    source = last_window(find(target))[0]
    try:
        from perfhooks.trying import advice, recorded, trial
        from perfhooks.trying.cut import cut
    except ModuleNotFoundError as error:
        raise PerfhooksError(f"try runs operators of torch, and {error.name} is not installed") from error

    asked = None if finding is None else advice.of(finding)
    trial.chosen(variant or ())
    with working(f"reading {source.path}"):
        calls = recorded.find(_tables(source), _unrecorded_ms(source))
        offered = cut(calls, _wanted(op, asked and asked.operators))
    if export is not None:
        _export(offered, export)
        return
    if not offered.groups:
        raise PerfhooksError(_nothing(offered, op or ([finding] if finding else [])))
    variants = variant or (asked.variants if asked else ())
    wish = _wish(device, variants, limit, memory, seconds, on_device=calls.on_device)
    with remaining("trying") as tell:
        done = trial.run(offered, calls.step_ms, wish, _said(source), tell)
    _tell(done, chosen)
    _keep(done, source)
    if done.is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _tables(source: Source) -> Tables:
    from perfhooks import trace
    from perfhooks.trace.tables import Tables

    read = trace.read(source.path, strides=True)
    return Tables(read) if source.capture is None else source.capture.tables(read)


def _unrecorded_ms(source: Source) -> float | None:
    return None if source.capture is None else source.capture.cost.idle_step_ms


def _wanted(op: Sequence[str] | None, pattern: str | None) -> Any:
    if op and pattern:
        raise OptionError("choose one of --op and --finding")
    if op:
        given = {each if "::" in each or "#" in each else f"aten::{each}" for each in op}
        given |= {f"{each}.step" for each in given if "#" in each}  # an update is called by its class in the table
        return given.__contains__
    return None if pattern is None else re.compile(pattern).fullmatch


def _nothing(offered: Cut, asked: Sequence[str]) -> str:
    if offered.left:
        first = offered.left[0]
        return f"nothing can be run again: {first.name}: {first.reason}"
    named = " or ".join(asked)
    return f"there is no call of {named} in the steps of this recording" if asked else "there are no operators in it"


def _wish(
    device: str | None, variants: Sequence[str], limit: int, memory: float | None, seconds: float, *, on_device: bool
) -> Wish:
    from perfhooks.trying import safe
    from perfhooks.trying.trial import Wish

    if memory is not None and memory <= 0:
        raise OptionError(f"memory must be a number of GiB above 0, got {memory:g}")
    if not seconds > 0:
        raise OptionError(f"seconds must be a number above 0, got {seconds:g}")
    where = safe.device_of(device, on_device=on_device)
    limit_bytes = int(safe.SHARE * safe.free_bytes(where)) if memory is None else int(memory * _GIB)
    return Wish(device=where, variants=tuple(variants), count=limit, memory=limit_bytes, total=seconds)


def _said(source: Source) -> Any:
    from perfhooks.run.circumstances import Circumstances

    return Circumstances() if source.capture is None else source.capture.circumstances


def _export(offered: Cut, path: Path) -> None:
    import msgspec

    from perfhooks.trying import export

    write(path, msgspec.json.format(msgspec.json.encode(export.data(offered)), indent=1))
    typer.echo(path)


def _keep(done: Trial, source: Source) -> None:
    """Put what was measured of findings into the run, and onto its page."""
    from perfhooks.run.layout import MANIFEST
    from perfhooks.trying import kept

    folder = Path(source.path).parent.parent
    if source.capture is None or not (folder / MANIFEST).exists() or not kept.keep(done, folder):
        return
    from perfhooks import report
    from perfhooks.run.layout import PAGE

    if (folder / PAGE).exists():
        typer.echo(f"{report.write(folder)} shows it beside what was estimated", err=True)


def _tell(done: Trial, chosen: Form) -> None:
    from perfhooks.trying import written

    if chosen == "json":
        import msgspec

        typer.echo(msgspec.json.encode(written.data(done)).decode())
        return
    if chosen == "csv":
        sys.stdout.write(written.table(done).write_csv(float_precision=6))
        sys.stdout.flush()
    else:
        from perfhooks.report.terminal_tables import draw

        draw({"tried": written.brief(done)}, limit=0)
    for line in written.sentences(done):
        typer.echo(line, err=chosen == "csv")
