"""``perfhooks try``: the advice measured on the user's own shapes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perfhooks.command.show import Form, form
from perfhooks.command.targets import Source, find, last_window
from perfhooks.errors import OptionError, PerfhooksError
from perfhooks.progress import remaining, working

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.trying.cut import Cut
    from perfhooks.trying.trial import Trial

# What is imported in functions needs torch or polars, which `perfhooks --help` must not wait for, or not have.

EXAMPLES: Final = """Examples:

- `perfhooks try perf/latest`
- `perfhooks try perf/latest --op aten::conv2d --variant channels_last --variant bf16`
- `perfhooks try perf/latest --finding optimizer-loop`
"""
"""What ``--help`` ends with."""

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""


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
Limit = Annotated[int, typer.Option("--limit", "-n", help="How many of the operators that cost most.")]
Memory = Annotated[
    float | None, typer.Option("--memory", help="GiB that may be taken; half of what is free if not given.")
]
Seconds = Annotated[float, typer.Option("--seconds", help="How long it may take, roughly; more decides more.")]
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
    csv: Csv = False,
    json: Json = False,
) -> None:
    """Measure what advice gives: recorded operators run again, as they were and in other ways.

    Needs a recording with shapes (record_shapes=True). Inputs have the recorded sizes, types and layout; each variant
    is timed in turn with the original, and its results are held against it.
    """
    chosen = form(csv=csv, json=json)
    source = last_window(find(target))[0]
    try:
        from perfhooks.run.circumstances import Circumstances
        from perfhooks.trying import recorded, safe, trial, variants
        from perfhooks.trying.cut import cut
    except ModuleNotFoundError as error:
        raise PerfhooksError(f"try runs operators of torch, and {error.name} is not installed") from error

    advice = None if finding is None else variants.advised(finding)
    variants.chosen(variant or ())
    with working(f"reading {source.path}"):
        calls = recorded.find(*_read(source))
        offered = cut(calls, _wanted(op, advice and advice.operators))
    if not offered.groups:
        raise PerfhooksError(_nothing(offered, op or ([finding] if finding else [])))
    where = safe.device_of(device, on_device=calls.on_device)
    wish = trial.Wish(
        device=where,
        variants=tuple(variant or (advice.variants if advice else ())),
        limit=limit,
        memory=safe.SHARE * safe.free_bytes(where) / safe.GIB if memory is None else memory,
        seconds=seconds,
    )
    said = Circumstances() if source.capture is None else source.capture.circumstances
    with remaining("trying") as tell:
        done = trial.run(offered, calls.step_ms, wish, said, tell)
    _tell(done, chosen)
    _keep(done, source)
    if done.is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _read(source: Source) -> tuple[Any, float | None]:
    """The tables of a window, and what its steps take that nobody records where its run knows."""
    from perfhooks import trace
    from perfhooks.trace.window import Tables

    read = trace.read(source.path, strides=True)
    if source.capture is None:
        return Tables(read), None
    return source.capture.tables(read), source.capture.cost.idle_step_ms


def _wanted(op: Sequence[str] | None, pattern: str | None) -> Callable[[str], object] | None:
    """Says of a name whether its calls were asked for; None where nothing was."""
    if op and pattern:
        raise OptionError("choose one of --op and --finding")
    if op:
        from perfhooks.trace.names.operators import NAMESPACE

        names = {name if "::" in name or "#" in name else f"{NAMESPACE}{name}" for name in op}
        names |= {f"{name}.step" for name in names if "#" in name}  # an update is called by its class in the table
        return names.__contains__
    return None if pattern is None else re.compile(pattern).fullmatch


def _nothing(offered: Cut, asked: Sequence[str]) -> str:
    if offered.left:
        first = offered.left[0]
        return f"nothing can be run again: {first.name}: {first.reason}"
    named = " or ".join(asked)
    return f"there is no call of {named} in the steps of this recording" if asked else "there are no operators in it"


def _keep(done: Trial, source: Source) -> None:
    """Put what was measured of findings into the run, and onto its page."""
    from perfhooks import report
    from perfhooks.run.layout import MANIFEST, PAGE
    from perfhooks.trying import written

    folder = Path(source.path).parent.parent
    is_run = source.capture is not None and (folder / MANIFEST).exists()
    if is_run and written.keep(done, folder) and (folder / PAGE).exists():
        typer.echo(f"{report.write(folder)} shows it beside what was estimated", err=True)


def _tell(done: Trial, chosen: Form) -> None:
    import msgspec

    from perfhooks.report.terminal_tables import draw
    from perfhooks.trying import written

    if chosen == "json":
        typer.echo(msgspec.json.encode(written.data(done)).decode())
        return
    if chosen == "csv":
        sys.stdout.write(written.table(done).write_csv(float_precision=6))
        sys.stdout.flush()
    else:
        draw({"tried": written.brief(done)}, limit=0)
    for line in written.sentences(done):
        typer.echo(line, err=chosen == "csv")
