from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from perfhooks.core.errors import OptionError, PerfhooksError

EXAMPLES: Final = """Examples:

- `perfhooks try perf/latest`
- `perfhooks try perf/latest --op aten::conv2d --variant channels_last --variant bf16`
- `perfhooks try perf/latest --finding optimizer-loop`
- `perfhooks try --loader -- python train.py --lr 0.1`
"""


Target = Annotated[
    list[str] | None,
    typer.Argument(
        help="A run folder or a trace, the last run if none is given; with --loader the command of a training, behind "
        "`--`.",
        show_default=False,
    ),
]
OfLoader = Annotated[
    bool,
    typer.Option(
        "--loader",
        help="Try the DataLoader of a training: the command runs until its training iterates one, which is then driven "
        "with more and fewer workers, and the command is ended before it makes a step.",
    ),
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
    str | None, typer.Option("--finding", help="Rule of a finding, to measure its advice.", show_default=False)
]
Device = Annotated[str | None, typer.Option("--device", help="Device; the recorded device by default.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of operators, the most expensive first.")]
Memory = Annotated[
    float | None, typer.Option("--memory", help="Maximum memory in GiB; half of the free memory by default.")
]
Seconds = Annotated[float, typer.Option("--seconds", help="Maximum total time. More time decides more comparisons.")]
Csv = Annotated[bool, typer.Option("--csv", help="CSV on standard output; the result goes to standard error.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, including operators that cannot be run again.")]


def command(
    target: Target = None,
    *,
    of_loader: OfLoader = False,
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
    """Measure what advice gives: recorded operators, or a training's loader, run again in other ways.

    Operators need a recording with shapes (record_shapes=True). Inputs have the recorded sizes, types and layout; each
    variant is timed in turn with the original, and its results are held against it.
    """
    ends = time.monotonic() + seconds
    from perfhooks.cli.actions import loader, show, sources

    form_name = show.form(csv=csv, json=json) if csv or json else "table"
    if of_loader:
        if op or variant or finding or device or memory:
            raise OptionError("--loader goes with --seconds, --csv and --json, and with no option of operators")
        loader.tell(loader.tried(target or (), seconds, ends), form_name)
        return
    if target and len(target) > 1:
        raise OptionError(f"one recording at a time, got {' '.join(target)}; a command goes with --loader")
    traces = sources.find(target[0] if target else None)
    source, timed = sources.last_window(traces, need="record_shapes")[0], sources.last_window(traces)[0]
    try:
        from perfhooks.cli.actions import trying
    except ModuleNotFoundError as error:
        raise PerfhooksError(f"try runs operators of torch, and {error.name} is not installed") from error

    done = trying.tried(
        source,
        timed,
        op or (),
        variant or (),
        finding,
        device=device,
        limit=limit,
        memory=memory,
        seconds=seconds,
        ends=ends,
    )
    trying.tell(done, form_name)
    trying.keep(done, source)
    if done.is_interrupted:
        raise typer.Exit(130)  # Ctrl-C
