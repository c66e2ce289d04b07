from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from perfhooks.core import plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES: Final = """Examples:

- `perfhooks doctor --out /shared/perf`
- `perfhooks doctor --peaks`
"""

FRAMEWORKS: Final = ("lightning", "pytorch_lightning", "mmengine", "transformers", "accelerate", "tensorboard")
_ALSO: Final = ("pytorch_lightning",)
"""Second import name of Lightning. No pip extra has this name."""
_OTHER_TOOLS: Final = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "KINETO_USE_DAEMON")


State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Diagnosis:
    state: State
    """``problem`` keeps perfhooks from recording; ``note`` is information."""
    subject: str
    text: str


def command(
    out: Annotated[Path, typer.Option("--out", help="Folder of all runs, to check that it is writable.")] = Path(
        "perf"
    ),
    *,
    peaks: Annotated[
        bool,
        typer.Option(
            "--peaks",
            help="Measure the peaks of this device instead: GEMMs of each type, and copies. It takes a minute and "
            "stores the result. No other program should use the device.",
        ),
    ] = False,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Delete the local copies of remote runs instead."),
    ] = False,
) -> None:
    """Check what this installation can record on this machine."""
    if peaks:
        from perfhooks.cli.actions.peaks import measure

        for line in measure():
            typer.echo(line)
        return
    if forget:
        from perfhooks.cli.actions.mirror import forget as forget_all

        typer.echo(f"{forget_all() / 1e6:.1f} MB of copies of remote runs were deleted")
        return
    logging.getLogger("perfhooks").setLevel(logging.WARNING)  # of the check
    healthy = True
    for diagnosis in examine(out):
        healthy = healthy and diagnosis.state != "problem"
        typer.echo(f"{diagnosis.state:8} {diagnosis.subject:12} {diagnosis.text}")
    if not healthy:
        raise typer.Exit(1)


def examine(out: Path) -> Iterator[Diagnosis]:
    yield Diagnosis("ok", "python", sys.version.split()[0])
    torch = _looked("torch", _torch)
    yield torch
    # without torch, all of these checks would fail for the same reason
    of_torch = (("recorder", _recorder), ("devices", _devices), ("stacks", _stacks)) if torch.state == "ok" else ()
    for subject, look in (
        *of_torch,
        ("frameworks", _frameworks),
        ("plugins", _plugins),
        ("other tools", _other_tools),
        ("files", lambda: _files(out)),
    ):
        yield _looked(subject, look)


def _looked(subject: str, look: Callable[[], tuple[State, str]]) -> Diagnosis:
    try:
        state, text = look()
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is the diagnosis
        return Diagnosis("problem", subject, f"{type(error).__name__}: {error}")
    return Diagnosis(state, subject, text)


def _imported() -> Any:
    import torch

    return torch


def _recording() -> tuple[Any, Any]:
    from perfhooks.record.loop import profiler, stack_support

    return profiler, stack_support


def _torch() -> tuple[State, str]:
    if importlib.util.find_spec("torch") is None:
        return "problem", "not installed; to record: pip install 'torch>=2.4'"
    torch = _imported()
    number = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return ("ok" if number >= (2, 4) else "problem"), f"{torch.__version__}; 2.4 or later is needed"


def _recorder() -> tuple[State, str]:
    torch, (profiler, stack_support) = _imported(), _recording()
    stacks = stack_support.danger() is None
    with tempfile.TemporaryDirectory() as folder:
        with profiler.Profiler(
            schedule="wait=0 warmup=1 active=1 repeat=1", with_stack=stacks, profile_memory=True, record_shapes=True,
            out=folder, run="doctor", background=False, on_error="raise", on_trace_ready=["trace", "steps"],
        ) as prof:  # fmt: skip  # all that can be recorded, then how
            for _ in range(2):
                torch.ones(8) + 1
                prof.step()
        result = list(Path(folder).glob("doctor/*/rank0.pt.trace.json.gz"))
        if not result:
            return "problem", "no step was recorded; a line above may say why"
        size = result[0].stat().st_size
    return "ok", f"Kineto recorded a step and wrote it ({size / 1000:.1f} kB)"


def _devices() -> tuple[State, str]:
    from perfhooks.report.finishing.power import limit_of

    torch = _imported()
    names = sorted(activity.name for activity in torch.profiler.supported_activities())
    accelerator = getattr(torch, "accelerator", None)
    result = accelerator is not None and accelerator.is_available()
    working = str(accelerator.current_accelerator()) if result and accelerator is not None else None
    if working is None and torch.cuda.is_available():
        working = "cuda"
    text = f"torch can record {', '.join(names)}; " + (
        f"{working} works here" if working else "no accelerator works here"
    )
    limit = limit_of(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else None
    if limit is not None and limit.is_lowered:
        return "note", f"{text}; its power is limited to {limit}: it cannot hold the peaks of its datasheet"
    return ("ok" if working else "note"), text


def _stacks() -> tuple[State, str]:
    _, stack_support = _recording()
    problem = stack_support.danger() or stack_support.lost_calls()
    return ("ok", "with_stack works with this Python and torch") if problem is None else ("note", problem)


def _frameworks() -> tuple[State, str]:
    versions = {name: version for name in FRAMEWORKS if (version := _version(name))}
    missing = [name for name in FRAMEWORKS if name not in versions and name not in _ALSO]
    result = (
        ", ".join(f"{name} {version}" for name, version in versions.items())
        or "none is installed; perfhooks can profile a plain PyTorch loop"
    )
    return "ok", result + (f"; to install others: pip install 'perfhooks[{','.join(missing)}]'" if missing else "")


def _plugins() -> tuple[State, str]:
    problems = dict(plugins.problems())
    failed = [problem for problem in problems.values() if problem]
    return ("note" if failed else "ok"), "; ".join([", ".join(problems) or "none is installed", *failed])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _other_tools() -> tuple[State, str]:
    active = [name for name in _OTHER_TOOLS if os.environ.get(name)]
    if active:
        return "note", f"{', '.join(active)} is set: only one tool at a time can record a device"
    return "ok", "no environment variable of another profiler is set"


def _files(out: Path) -> tuple[State, str]:
    from perfhooks.run import remote

    remote.check_out(out)
    network = (
        " (on a network disk: traces are saved in the temporary folder first)"
        if remote.is_network_disk(out.absolute())
        else ""
    )
    return "ok", f"{out} can be written{network}"
