"""The options of every face, defined once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from typing_extensions import TypedDict

from perfhooks.errors import OptionError
from perfhooks.run.job import Job

if TYPE_CHECKING:
    from perfhooks.guard import OnError

Ranks = Literal["all", "first-of-node"] | Sequence[int] | Callable[[Job], bool]


class Options(TypedDict, total=False):
    """What every face takes, under the same names; all are keyword-only and have a default."""

    # what torch.profiler.profile takes; options that the installed torch does not know are left out, with a log line
    activities: Any
    """What to record: torch's activities, or their names (``["cpu", "cuda"]``); None records all there are."""
    record_shapes: bool
    """Record the shapes of the operators' inputs."""
    profile_memory: bool
    """Record allocations."""
    with_stack: bool
    """Record the Python stacks."""
    with_flops: bool
    """Estimate floating point operations; records shapes as well."""
    with_modules: bool
    """TorchScript's module hierarchy; deprecated by torch."""
    experimental_config: Any
    """torch's own ``_ExperimentalConfig``."""
    execution_trace_observer: Any
    """A ``torch.profiler.ExecutionTraceObserver``, started and stopped with each window."""
    acc_events: bool
    """Let ``events()`` add up over windows; grows without bound, as in torch."""
    use_cuda: Any
    """Deprecated by torch, gone in 2.14."""
    custom_trace_id_callback: Any
    """Makes the trace id of a window."""
    post_processing_timeout_s: float | None
    """How long torch may take to parse events, in seconds."""

    # ours
    out: str | os.PathLike[str] | None
    """The folder that holds runs; None is ``perf``, or a folder ``perf`` beside the framework's own logs."""
    run: str | None
    """Name of the run, the same on all ranks; None takes the launcher's identity, else the time and the process."""
    ranks: Ranks
    """Which ranks record: ``"all"``, a list, ``"first-of-node"``, or a callable of the job's facts."""
    stage: str
    """What the loop is called in file names and tables."""
    background: bool
    """Whether a child process makes the files; otherwise the training waits for them."""
    exit_timeout: float
    """How long the end of the process waits for files, in seconds; after that they are made without it."""
    max_trace_mb: float | None
    """Shorten the windows to come when one's trace, as plain JSON, is larger than this, in MB; None sets no limit.

    Their folders are still called by the steps that the schedule asked for: ranks may be shortened differently."""
    keep_windows: int | None
    """How many windows of a stage a rank keeps, the latest ones; None keeps all."""
    on_error: OnError
    """``"warn"`` logs what fails on our side and lets training go on; ``"raise"`` is there for tests."""
    keep_results: bool
    """Whether ``key_averages()`` and the like can be asked after a window; they hold memory until the next one."""


DEFAULTS: Final[Options] = {
    "activities": None,
    "record_shapes": False,
    "profile_memory": False,
    "with_stack": False,
    "with_flops": False,
    "with_modules": False,
    "experimental_config": None,
    "execution_trace_observer": None,
    "acc_events": False,
    "use_cuda": None,
    "custom_trace_id_callback": None,
    "post_processing_timeout_s": None,
    "out": None,
    "run": None,
    "ranks": "all",
    "stage": "train",
    "background": True,
    "exit_timeout": 60.0,
    "max_trace_mb": None,
    "keep_windows": None,
    "on_error": "warn",
    "keep_results": True,
}
"""What an option is when it is not given."""

_OURS: Final = frozenset(DEFAULTS) - {
    "activities",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "experimental_config",
    "execution_trace_observer",
    "acc_events",
    "use_cuda",
    "custom_trace_id_callback",
    "post_processing_timeout_s",
}
_BOOLEANS: Final = frozenset(name for name, value in DEFAULTS.items() if isinstance(value, bool))


def checked(options: Options) -> Options:
    """All options, with their defaults, or an error that says which one is wrong.

    Raises:
        TypeError: No option has this name.
        OptionError: An option has a value that it cannot have.
    """
    for name in options:
        if name not in DEFAULTS:
            close = difflib.get_close_matches(name, DEFAULTS, n=1)
            raise TypeError(f"unexpected option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    whole: Options = {**DEFAULTS, **options}
    _check_plain(whole)
    _check_numbers(whole)
    _check_ranks(whole["ranks"])
    return whole


def _check_plain(options: Options) -> None:
    for name in _BOOLEANS:
        if not isinstance(options[name], bool):  # type: ignore[literal-required]
            raise OptionError(f"{name} must be true or false, got {options[name]!r}")  # type: ignore[literal-required]
    if options["on_error"] not in ("warn", "raise"):
        raise OptionError(f"on_error must be 'warn' or 'raise', got {options['on_error']!r}")
    _check_name("stage", options["stage"])
    if options["run"] is not None:
        _check_name("run", options["run"])
    out = options["out"]
    if out is not None and (not isinstance(out, str | os.PathLike) or not os.fspath(out)):
        raise OptionError(f"out must be a path, got {out!r}")
    config = options["experimental_config"]
    if config is not None and not hasattr(config, "verbose"):
        raise OptionError(f"experimental_config must be torch's _ExperimentalConfig, got {config!r}")


def _check_numbers(options: Options) -> None:
    _check_number("exit_timeout", options["exit_timeout"], least=0)
    if options["max_trace_mb"] is not None:
        _check_number("max_trace_mb", options["max_trace_mb"], above=0)
    if options["keep_windows"] is not None and (
        type(options["keep_windows"]) is not int or options["keep_windows"] < 1
    ):
        raise OptionError(f"keep_windows must be an integer >= 1 or None, got {options['keep_windows']!r}")


def check_step(step: object) -> None:
    """Whether something is the number of a step.

    Raises:
        OptionError: It is not.
    """
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise OptionError(f"step must be an integer >= 0, got {step!r}")


def recording(options: Options) -> dict[str, Any]:
    """Those of the given options that torch.profiler takes, less those at their default."""
    return {name: value for name, value in options.items() if name not in _OURS and value != DEFAULTS.get(name)}


def selected(ranks: Ranks, job: Job) -> bool:
    """Whether this process records."""
    if callable(ranks):
        return bool(ranks(job))
    if isinstance(ranks, str):
        return ranks == "all" or job.local_rank == 0
    return job.rank in ranks


def _check_name(option: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{option} must be a name, got {value!r}")


def _check_number(option: str, value: object, *, least: float | None = None, above: float | None = None) -> None:
    rule = f">= {least}" if above is None else f"> {above}"
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    if not fine or (least is not None and value < least) or (above is not None and value <= above):  # type: ignore[operator]
        raise OptionError(f"{option} must be a number {rule}, got {value!r}")


def are_any(ranks: Ranks, world_size: int) -> bool:
    """Whether ``ranks`` may name any rank of a job of that size."""
    return callable(ranks) or isinstance(ranks, str) or min(ranks) < world_size


def said(ranks: Ranks) -> str | list[int]:
    """``ranks`` for ``run.json``; of a callable, that it was one."""
    if callable(ranks):
        return "callable"
    return ranks if isinstance(ranks, str) else sorted(ranks)


def _check_ranks(ranks: object) -> None:
    if callable(ranks) or (isinstance(ranks, str) and ranks in ("all", "first-of-node")):
        return
    rule = "ranks must be 'all', 'first-of-node', a list of one or more integers >= 0 or a callable"
    if isinstance(ranks, str) or not isinstance(ranks, Sequence):
        raise OptionError(f"{rule}, got {ranks!r}")
    if not ranks or not all(isinstance(rank, int) and rank >= 0 for rank in ranks):
        raise OptionError(f"{rule}, got {list(ranks)!r}")
