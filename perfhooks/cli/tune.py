from __future__ import annotations

from typing import Annotated, Final

import typer

EXAMPLES: Final = """Examples:

- `perfhooks tune train.py --epochs 50`
- `perfhooks tune --minutes 20 --allow-numerics -- torchrun --nproc-per-node 2 train.py`

Options of perfhooks come first.
"""


def command(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", show_default=False)],
    *,
    minutes: Annotated[float, typer.Option("--minutes", help="Time limit.")] = 10,
    all_changes: Annotated[
        bool, typer.Option("--all", help="Try every change, not only those that the findings recommend.")
    ] = False,
    allow_numerics: Annotated[
        bool, typer.Option("--allow-numerics", help="Also try changes whose results are rounded differently.")
    ] = False,
    cwd_copy: Annotated[
        bool, typer.Option("--cwd-copy", help="Run each trial in a copy of the working directory.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Apply the patch, which needs a clean git tree.")] = False,
    out: Annotated[
        str | None, typer.Option("--out", help="Folder of the run. Default: perf.", show_default=False)
    ] = None,
) -> None:
    """Apply the fixes of findings to a training, measure them, and write a patch of the faster ones.

    Your files are not changed without --write.
    """
    from perfhooks.cli.tuning import results
    from perfhooks.cli.tuning.session import Session

    session = Session(
        words=words,
        minutes=minutes,
        all_changes=all_changes,
        is_numeric_allowed=allow_numerics,
        is_copied=cwd_copy,
        out=out,
    )
    results.tune(session, is_written=write)
    if session.interrupted:
        raise typer.Exit(128 + session.interrupted)
