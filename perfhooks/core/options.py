from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, cast

from typing_extensions import Doc, TypedDict, get_type_hints

from perfhooks.core.errors import OnError, OptionError
from perfhooks.core.job import Job
from perfhooks.core.successors import successor

RECORDING: Final = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
"""Options of the recorder that a request for a window can set."""
MOST_STEPS: Final = 1000
"""Maximum steps of a requested window, because the trace must fit into memory."""
WARMUP: Final = 1
"""Warm-up steps of a requested window. Without warm-up, the first step would include the start of the recorder."""
MOST_WAITING: Final = 16
"""Maximum waiting requests. Each change of the schedule checks all requests."""

Ranks = Literal["all", "first-of-node"] | Sequence[int] | Callable[[Job], bool]


class Rule(NamedTuple):
    """The valid values of an option. None is valid if the default is None."""

    text: str
    """Requirement for a value, as the end of the sentence "must be ..."."""
    holds: Callable[[Any], object]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _are_ranks(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return callable(value) or value in ("all", "first-of-node")
    return len(value) > 0 and all(isinstance(rank, int) and rank >= 0 for rank in value)


_FLAG: Final = Rule("true or false", lambda value: isinstance(value, bool))
_NAME: Final = Rule("a name", lambda value: isinstance(value, str) and value.strip())
_ABOVE_0: Final = Rule("a number > 0", lambda value: _is_number(value) and value > 0)
_ABOVE_0_OR_NONE: Final = Rule("a number > 0", lambda value: value is None or _ABOVE_0.holds(value))
_FROM_0: Final = Rule("a number >= 0", lambda value: _is_number(value) and value >= 0)
_SECONDS: Final = Rule("non-negative, in seconds", _FROM_0.holds)
_COUNT: Final = Rule("an integer >= 1 or None", lambda value: _is_integer(value) and value >= 1)
_PATH: Final = Rule("a path", lambda value: isinstance(value, str | os.PathLike) and os.fspath(value))
_PARTS: Final = Rule(
    "parts of kernel names, for example 'mine|other'",
    lambda value: isinstance(value, str) and all(map(str.strip, value.split("|"))),
)
_SIGNAL: Final = Rule(
    "the name of a signal, for example 'USR2'",
    lambda value: isinstance(value, str) and hasattr(signal, f"SIG{value.upper().removeprefix('SIG')}"),
)
_RANKS: Final = Rule("'all', 'first-of-node', a list of one or more integers >= 0 or a callable", _are_ranks)
_ON_ERROR: Final = Rule("'warn' or 'raise'", ("warn", "raise").__contains__)
_TRIGGER: Final = Rule("'slow' or None", ("slow",).__contains__)
_KEEP: Final = Rule("'all' or 'slow'", ("all", "slow").__contains__)


class Default(NamedTuple):
    value: object
    rule: Rule | None = None


class RecordingOptions(TypedDict, total=False):
    """Options of ``torch.profiler.profile``. perfhooks ignores and logs options that the installed torch lacks."""

    activities: Annotated[
        Any,
        Default(None),
        Doc(
            'Activities to record: torch\'s activities or their names (``["cpu", "cuda"]``); None records all. '
            '``"cuda:cuspy"`` selects cuspy, a new recorder in torch 2.15, for the device, and '
            '``"cuda:cuspy+environment_counters"`` also sets an option of its ``CuspyConfig``. An item can also be a '
            "mapping of an activity to the fields of its ``ProfilerActivityConfig``; on the command line, write the "
            "list as JSON. If cuspy is not available, Kineto records."
        ),
    ]
    record_shapes: Annotated[bool, Default(False), Doc("Whether to record the shapes of operator inputs.")]
    profile_memory: Annotated[bool, Default(False), Doc("Whether to record memory allocations.")]
    with_stack: Annotated[bool, Default(False), Doc("Whether to record Python stacks.")]
    with_flops: Annotated[
        bool, Default(False), Doc("Whether to estimate floating point operations. Shapes are recorded too.")
    ]
    with_modules: Annotated[
        bool, Default(False), Doc("Whether to record the module hierarchy of TorchScript. Deprecated by torch.")
    ]
    experimental_config: Annotated[Any, Default(None), Doc("``_ExperimentalConfig`` of torch.")]
    execution_trace_observer: Annotated[
        Any,
        Default(None),
        Doc("``torch.profiler.ExecutionTraceObserver`` that starts and stops with each window."),
    ]
    acc_events: Annotated[
        bool,
        Default(False),
        Doc("Whether ``events()`` accumulates over windows. Memory grows without limit, as in torch."),
    ]
    use_cuda: Annotated[Any, Default(None), Doc("Deprecated by torch, removed in 2.14.")]
    custom_trace_id_callback: Annotated[Any, Default(None), Doc("Function that returns the trace id of a window.")]
    post_processing_timeout_s: Annotated[
        float | None, Default(None, _SECONDS), Doc("Maximum time for torch to parse events, in seconds.")
    ]


class Options(RecordingOptions, total=False):
    """All options. All options are keyword-only and have a default.

    Signatures and help texts of all interfaces are generated from this class.
    """

    out: Annotated[
        str | os.PathLike[str] | None,
        Default(None, _PATH),
        Doc("Folder of all runs. None selects ``perf``, inside the framework's log folder if there is one."),
    ]
    run: Annotated[
        str | None,
        Default(None, _NAME),
        Doc("Name of the run, equal on all ranks. None selects the launcher's job id, else the time and process id."),
    ]
    ranks: Annotated[
        Ranks,
        Default("all", _RANKS),
        Doc('Ranks that record: ``"all"``, ``"first-of-node"``, a list, or a function of a ``Job``.'),
    ]
    stage: Annotated[str, Default("train", _NAME), Doc("Name of the loop in file names and tables.")]
    background: Annotated[
        bool, Default(True), Doc("Whether a worker process makes the files. If not, the training waits for the files.")
    ]
    exit_timeout: Annotated[
        float,
        Default(2.0, _FROM_0),
        Doc("Maximum wait for files at the end of the process, in seconds. The worker finishes the remaining files."),
    ]
    max_trace_mb: Annotated[
        float | None,
        Default(20.0, _ABOVE_0_OR_NONE),
        Doc(
            "Maximum trace size of a window, as uncompressed JSON, in MB. A window ends before the step that would "
            "exceed this size, or inside its first step. The training waits at most 0.1 s per MB for a trace. None "
            "sets no limit. Folders are still named by the planned steps, because windows of ranks may end at "
            "different steps."
        ),
    ]
    keep_windows: Annotated[
        int | None,
        Default(None, _COUNT),
        Doc("Number of latest windows that each rank keeps per stage. None keeps all."),
    ]
    communication: Annotated[
        str | None,
        Default(None, _PARTS),
        Doc(
            'Parts of kernel names, for example ``"mine|other"``. Kernels with one of these parts in their name count '
            "as communication, in addition to kernels of known libraries such as NCCL."
        ),
    ]
    labels: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether to label the parts of a step automatically while a window records, for example forward and "
            "backward. Without a run folder, no labels are added."
        ),
    ]
    workers: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether to sample the workers of a loader in windows. A process of perfhooks reads the memory of "
            "the workers; the workers run no code of perfhooks and get no signal. Sampling works on Linux only, and "
            "only if files are written."
        ),
    ]
    explain: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether to record one more step with stacks and shapes after the first window, so that the report shows "
            "source lines and modules. This step is recorded only if you set no schedule, no handlers and no option of "
            "torch's recorder (``activities`` to ``post_processing_timeout_s``). The step costs the training at most "
            "1.2 seconds, and is skipped if it would cost more."
        ),
    ]
    watch: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether to start the watcher, a thread that sleeps most of the time. The watcher explains slow steps, "
            "reads requests for windows and writes the times of all steps (``timeline.csv``). It needs a run folder."
        ),
    ]
    trigger: Annotated[
        str | None,
        Default(None, _TRIGGER),
        Doc(
            'Trigger of additional windows: ``"slow"`` for slow steps. If slow steps are periodic, the window '
            "contains the next slow step; if not, the window follows the slow step. At most 10 windows in addition to"
            " the schedule."
        ),
    ]
    keep: Annotated[
        str,
        Default("all", _KEEP),
        Doc(
            'Windows of the schedule to keep: ``"all"``, or ``"slow"`` for windows with a slow step. A step is slow if '
            "it takes more than 3 times the median, or exceeds the median by much more than step times usually vary."
        ),
    ]
    poll: Annotated[
        float,
        Default(1.0, _ABOVE_0),
        Doc(
            "Interval of checks of the run folder for requests, in seconds. Increase the interval if many ranks share"
            " a disk."
        ),
    ]
    signal: Annotated[
        str | None,
        Default(None, _SIGNAL),
        Doc(
            'Signal that requests a window from this process, for example ``"USR2"``. The signal handler only sets a '
            "flag."
        ),
    ]
    on_error: Annotated[
        OnError,
        Default("warn", _ON_ERROR),
        Doc(
            'Action on errors in perfhooks: ``"warn"`` logs errors and the training continues; ``"raise"`` is for '
            "tests."
        ),
    ]
    keep_results: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether ``key_averages()`` and similar methods work after a window. The results use memory until the "
            "next window."
        ),
    ]


class Option(NamedTuple):
    name: str
    type: Any
    default: Any
    meaning: str
    rule: Rule | None


@functools.cache
def all_options() -> tuple[Option, ...]:
    return tuple(_option(name, hint) for name, hint in get_type_hints(Options, include_extras=True).items())


def _option(name: str, hint: Any) -> Option:
    default, doc = hint.__metadata__
    rule = _FLAG if hint.__origin__ is bool else default.rule
    return Option(name, hint.__origin__, default.value, doc.documentation, rule)


DEFAULTS: Final = cast("Options", {option.name: option.default for option in all_options()})

Interface = TypeVar("Interface", bound=type)


def with_options(*, without: Collection[str] = (), **defaults: Any) -> Callable[[Interface], Interface]:
    """Add all options to signature and docstring of a class, with its own ``defaults``.

    The options replace the line ``**options: ...`` of the docstring.
    """
    accepted = [option for option in all_options() if option.name not in without]
    shown = [option._replace(default=defaults.get(option.name, option.default)) for option in accepted]

    def show(interface: Interface) -> Interface:
        own = inspect.signature(interface)
        parameters = [item for item in own.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type
            )
            for option in shown
        ]
        interface.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
        lines = "".join(f"        {option.name}: {option.meaning} Default: {option.default!r}.\n" for option in shown)
        interface.__doc__ = _OPTIONS_LINE.sub(lambda _: lines, interface.__doc__ or "")
        return interface

    return show


_OPTIONS_LINE: Final = re.compile(r"^ +\*\*options: .*\n", re.MULTILINE)


def check_options(options: Options) -> Options:
    """Return all options. Raise a TypeError for unknown options, an OptionError for invalid values."""
    check_names(options)
    values: dict[str, Any] = {**DEFAULTS, **options}
    for name, _, default, _, rule in all_options():
        value = values[name]
        if rule is not None and not (value is None and default is None) and not rule.holds(value):
            raise OptionError(f"{name} must be {rule.text}, got {value!r}")
    if not values["watch"] and (values["trigger"] or values["keep"] != "all"):
        raise OptionError("trigger and keep need watch=True: the watcher detects slow steps")
    if not values["watch"] and values["signal"] is not None:
        raise OptionError("signal needs watch=True: the watcher reads requests")
    return cast("Options", values)


def check_names(options: Iterable[str], also: Iterable[str] = ()) -> None:
    """Raise a TypeError for unknown options. The error also suggests names of ``also``."""
    for name in options:
        if name not in DEFAULTS:
            close = difflib.get_close_matches(name, [*also, *DEFAULTS], n=1)
            advice = successor(name) or (f"did you mean {close[0]!r}?" if close else "")
            raise TypeError(f"unexpected option {name!r}" + (f"; {advice}" if advice else ""))


def check_step(step: Any) -> None:
    """Raise an OptionError unless the value is an integer of 0 or more."""
    if not _is_integer(step) or step < 0:
        raise OptionError(f"step must be an integer >= 0, got {step!r}")


def check_request(steps: Any, recording: Mapping[str, object]) -> None:
    """Check a request for a window. Raise an OptionError for a wrong value, a TypeError for a wrong name."""
    if not _is_integer(steps) or not 1 <= steps <= MOST_STEPS:
        raise OptionError(f"steps must be an integer from 1 to {MOST_STEPS}, got {steps!r}")
    for name, value in recording.items():
        if name not in RECORDING:
            raise TypeError(f"a request for a window accepts {', '.join(RECORDING)}, got {name!r}")
        if not isinstance(value, bool):
            raise OptionError(f"{name} must be true or false, got {value!r}")


def recording(options: Options) -> dict[str, Any]:
    """Return the recorder options that differ from torch's defaults."""
    names = RecordingOptions.__annotations__
    return {name: value for name, value in options.items() if name in names and value != DEFAULTS.get(name)}


def is_selected(ranks: Ranks, job: Job) -> bool:
    if callable(ranks):
        return bool(ranks(job))
    if isinstance(ranks, str):
        return ranks == "all" or job.local_rank == 0
    return job.rank in ranks


def may_select_any(ranks: Ranks, world_size: int) -> bool:
    return callable(ranks) or isinstance(ranks, str) or min(ranks) < world_size


def describe_ranks(ranks: Ranks) -> str | list[int]:
    if callable(ranks):
        return "callable"
    return ranks if isinstance(ranks, str) else sorted(ranks)
