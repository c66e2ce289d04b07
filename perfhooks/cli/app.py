"""The entry point of the command line. `perfhooks run` starts without typer and the modules of the other verbs."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from perfhooks.cli.actions import run
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.words import line


def main() -> None:
    """Run a command. An error of perfhooks prints one line, and the exit code is mostly 2."""
    try:
        plain = run.parsed(sys.argv[1:])
        if plain is not None:
            run.start(plain)
        __getattr__("app")(args=run.separated(sys.argv[1:]))
    except (PerfhooksError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != "torch":
            raise
        sys.stderr.write(f"{line(f'perfhooks: {error}')}\n")
        sys.exit(error.exit_code if isinstance(error, PerfhooksError) else 2)
    except OSError as error:
        text = ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error)
        sys.stderr.write(f"{line(f'perfhooks: {text}')}\n")
        sys.exit(2)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("perfhooks.cli.verbs").app
