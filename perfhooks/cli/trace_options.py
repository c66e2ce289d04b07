from __future__ import annotations

import os
from typing import Final

import typer

from perfhooks.core.errors import OptionError
from perfhooks.core.variables import MAX_UNPACKED_MB


def _allow(megabytes: float | None) -> float | None:
    if megabytes is not None:
        if not megabytes > 0:
            raise OptionError(f"max-unpacked-mb must be a number of megabytes above 0, got {megabytes:g}")
        os.environ[MAX_UNPACKED_MB] = str(megabytes)
    return megabytes


MAX_UNPACKED: Final = typer.Option(
    "--max-unpacked-mb",
    metavar="MB",
    callback=_allow,
    help=f"Maximum size of an unpacked trace in MB. Default: {MAX_UNPACKED_MB} in the environment, else the larger of "
    "268 and 100 times its packed size.",
    show_default=False,
)
"""Option for the maximum size of unpacked traces. Its parameters begin with ``_``, because only the callback uses the
value.
"""

COMMUNICATION: Final = typer.Option(
    "--communication",
    metavar="TEXT",
    help="Parts of kernel names, for example 'mine|other'. Kernels with such a name count as communication, in "
    "addition to kernels of NCCL and other known libraries.",
    show_default=False,
)
