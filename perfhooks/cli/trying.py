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
        help="Run folder or trace. Default: the last run below the current folder. With --loader: the command of a "
        "training, after `--`.",
        show_default=False,
    ),
]
OfLoader = Annotated[
    bool,
    typer.Option(
        "--loader",
        help="Measure the DataLoader of a training with different numbers of workers. The command runs until its "
        "training iterates a DataLoader, and is ended before it makes a step.",
    ),
]
Operators = Annotated[
    list[str] | None,
    typer.Option("--op", help="Only this operator, for example aten::mm. Repeat it for several.", show_default=False),
]
Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Only this variant, for example bf16. Repeat it for several.", show_default=False),
]
FindingName = Annotated[
    str | None, typer.Option("--finding", help="Name of a finding, to measure its fix.", show_default=False)
]
Device = Annotated[str | None, typer.Option("--device", help="Device; the recorded device by default.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of operators, the most expensive first.")]
Memory = Annotated[
    float | None,
    typer.Option("--memory", help="Maximum memory on the device in GiB; half of its free memory by default."),
]
Seconds = Annotated[
    float, typer.Option("--seconds", help="Maximum total time in seconds. More time decides more comparisons.")
]
Csv = Annotated[
    bool, typer.Option("--csv", help="Write CSV to standard output, and the conclusions to standard error.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, which includes operators that cannot be run again.")]


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
    """Measure the gain of a fix: run recorded operators, or the loader of a training, in other variants.

    Operators need a recording with shapes (record_shapes=True). Inputs have the recorded sizes, types and layout.
    Blocks of each variant alternate with blocks of the original, and their results are compared.
    """
    ends = time.monotonic() + seconds
    from perfhooks.cli.actions import loader, show, sources

    form_name = show.form(csv=csv, json=json) if csv or json else "table"
    if of_loader:
        if op or variant or finding or device or memory:
            raise OptionError("--loader allows only --seconds, --csv and --json; the other options are for operators")
        loader.tell(loader.tried(target or (), seconds, ends), form_name)
        return
    if target and len(target) > 1:
        raise OptionError(f"try measures one recording at a time, got {' '.join(target)}; for a command use --loader")
    traces = sources.find(target[0] if target else None)
    source, timed = sources.last_window(traces, need="record_shapes")[0], sources.last_window(traces)[0]
    try:
        from perfhooks.cli.actions import trying
    except ModuleNotFoundError as error:
        raise PerfhooksError(f"try runs operators of torch, but {error.name} is not installed") from error

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
        raise typer.Exit(130)
