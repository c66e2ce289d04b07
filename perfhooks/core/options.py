"""The options of every face, defined once."""

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
"""The recording options that a request for a window may switch on."""
MOST_STEPS: Final = 1000
"""Of a window on request: what they leave must fit into memory once, as any trace."""
MOST_WAITING: Final = 16
"""Windows on request that wait for their steps: more than people ask for, and few enough to be looked through at each
change of a training's course."""

Ranks = Literal["all", "first-of-node"] | Sequence[int] | Callable[[Job], bool]


class Rule(NamedTuple):
    """What an option may be; None may be given where that is its default."""

    text: str
    """As the end of "must be ..."."""
    holds: Callable[[Any], object]
    """Whether a value is so."""


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
    "parts of kernel names, as 'mine|other'",
    lambda value: isinstance(value, str) and all(map(str.strip, value.split("|"))),
)
_SIGNAL: Final = Rule(
    "the name of a signal, as 'USR2'",
    lambda value: isinstance(value, str) and hasattr(signal, f"SIG{value.upper().removeprefix('SIG')}"),
)
_RANKS: Final = Rule("'all', 'first-of-node', a list of one or more integers >= 0 or a callable", _are_ranks)
_ON_ERROR: Final = Rule("'warn' or 'raise'", ("warn", "raise").__contains__)
_TRIGGER: Final = Rule("'slow' or None", ("slow",).__contains__)
_KEEP: Final = Rule("'all' or 'slow'", ("all", "slow").__contains__)


class Default(NamedTuple):
    """What an option is when it is not given, and the rule for what may be given."""

    value: object
    rule: Rule | None = None
    """None where torch itself checks it, and for what is true or false."""


class RecordingOptions(TypedDict, total=False):
    """What ``torch.profiler.profile`` takes; what the installed torch does not know is left out, with a log line."""

    activities: Annotated[
        Any,
        Default(None),
        Doc(
            'What to record: torch\'s activities, or their names (``["cpu", "cuda"]``); None records all there are. '
            '``"cuda:cuspy"`` has torch\'s next recorder look at the device, '
            '``"cuda:cuspy+environment_counters"`` with an option of its ``CuspyConfig``; a mapping of an activity to '
            "the fields of ``ProfilerActivityConfig`` says all of it (on the command line in a JSON list). Where it is "
            "not available, Kineto records."
        ),
    ]
    record_shapes: Annotated[bool, Default(False), Doc("Record the shapes of the operators' inputs.")]
    profile_memory: Annotated[bool, Default(False), Doc("Record allocations.")]
    with_stack: Annotated[bool, Default(False), Doc("Record the Python stacks.")]
    with_flops: Annotated[bool, Default(False), Doc("Estimate floating point operations; records shapes as well.")]
    with_modules: Annotated[bool, Default(False), Doc("TorchScript's module hierarchy; deprecated by torch.")]
    experimental_config: Annotated[Any, Default(None), Doc("torch's own ``_ExperimentalConfig``.")]
    execution_trace_observer: Annotated[
        Any,
        Default(None),
        Doc("A ``torch.profiler.ExecutionTraceObserver``, started and stopped with each window."),
    ]
    acc_events: Annotated[
        bool, Default(False), Doc("Let ``events()`` add up over windows; grows without bound, as in torch.")
    ]
    use_cuda: Annotated[Any, Default(None), Doc("Deprecated by torch, gone in 2.14.")]
    custom_trace_id_callback: Annotated[Any, Default(None), Doc("Makes the trace id of a window.")]
    post_processing_timeout_s: Annotated[
        float | None, Default(None, _SECONDS), Doc("How long torch may take to parse events, in seconds.")
    ]


class Options(RecordingOptions, total=False):
    """What every face takes, under the same names; all are keyword-only and have a default.

    This is the one place that defines an option: its type, its default and its meaning. Signatures and the help of all
    faces are made from it.
    """

    out: Annotated[
        str | os.PathLike[str] | None,
        Default(None, _PATH),
        Doc("The folder that holds runs; None is ``perf``, or a folder ``perf`` beside the framework's own logs."),
    ]
    run: Annotated[
        str | None,
        Default(None, _NAME),
        Doc("Name of the run, the same on all ranks; None takes the launcher's identity, else the time and process."),
    ]
    ranks: Annotated[
        Ranks,
        Default("all", _RANKS),
        Doc('Which ranks record: ``"all"``, a list, ``"first-of-node"``, or a callable of the job\'s facts.'),
    ]
    stage: Annotated[str, Default("train", _NAME), Doc("What the loop is called in file names and tables.")]
    background: Annotated[
        bool, Default(True), Doc("Whether a child process makes the files; otherwise the training waits for them.")
    ]
    exit_timeout: Annotated[
        float,
        Default(2.0, _FROM_0),
        Doc("How long the end of the process waits for files, in seconds; after that they are made without it."),
    ]
    max_trace_mb: Annotated[
        float | None,
        Default(20.0, _ABOVE_0_OR_NONE),
        Doc(
            "Largest trace of a window, as plain JSON, in MB. A window ends before the step that would exceed it, or "
            "inside its first step. The training waits at most 0.1 s per MB for a trace. None sets no limit. Folders "
            "are still named by the planned steps, because the windows of ranks may end at different steps."
        ),
    ]
    keep_windows: Annotated[
        int | None,
        Default(None, _COUNT),
        Doc("How many windows of a stage a rank keeps, the latest ones; None keeps all."),
    ]
    communication: Annotated[
        str | None,
        Default(None, _PARTS),
        Doc(
            'Parts of names, as ``"mine|other"``: kernels in whose name one of them is found communicate, as do those '
            "of NCCL and the other libraries that are known."
        ),
    ]
    labels: Annotated[
        bool,
        Default(True),
        Doc("Whether the parts of a step that nobody labelled are labelled while a window records and makes files."),
    ]
    workers: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether the workers of a loader are sampled while a window records. A process of perfhooks reads their "
            "memory; the workers run no code of perfhooks and get no signal. On Linux, and only if files are written."
        ),
    ]
    explain: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether the first window is followed by one step with stacks and shapes, which names lines and "
            "modules, where neither a schedule nor anything to record was given. It takes at most 1.2 seconds of the "
            "training; where it would take more, it is left out."
        ),
    ]
    watch: Annotated[
        bool,
        Default(True),
        Doc(
            "Whether a thread that sleeps most of the time looks after the run: it explains slow steps, hears requests "
            "for windows, and keeps the timeline on the disk up to date. Only where files are written."
        ),
    ]
    trigger: Annotated[
        str | None,
        Default(None, _TRIGGER),
        Doc(
            'What else opens a window: ``"slow"``, a slow step. The window lies over the next one where slow steps '
            "have a rhythm, else after the slow step; at most 10 windows, besides those of the schedule."
        ),
    ]
    keep: Annotated[
        str,
        Default("all", _KEEP),
        Doc(
            'Which windows of the schedule are kept: ``"all"``, or ``"slow"``, those in which a step was slow: more '
            "than 3 times the median, or far beyond what steps vary by."
        ),
    ]
    poll: Annotated[
        float,
        Default(1.0, _ABOVE_0),
        Doc("Seconds between two looks at the run folder for requests; more spares a disk that many ranks share."),
    ]
    signal: Annotated[
        str | None,
        Default(None, _SIGNAL),
        Doc('A signal that asks this process for a window, as ``"USR2"``; its handler sets a flag and nothing else.'),
    ]
    on_error: Annotated[
        OnError,
        Default("warn", _ON_ERROR),
        Doc('``"warn"`` logs what fails on our side and lets training go on; ``"raise"`` is there for tests.'),
    ]
    keep_results: Annotated[
        bool,
        Default(True),
        Doc("Whether ``key_averages()`` and the like can be asked after a window; they hold memory until the next."),
    ]


class Option(NamedTuple):
    """One option, as help and documentation show it."""

    name: str
    type: Any
    default: Any
    meaning: str
    rule: Rule | None


@functools.cache
def described() -> tuple[Option, ...]:
    """All options, in the order of their definition."""
    return tuple(_option(name, hint) for name, hint in get_type_hints(Options, include_extras=True).items())


def _option(name: str, hint: Any) -> Option:
    default, doc = hint.__metadata__
    rule = _FLAG if hint.__origin__ is bool else default.rule
    return Option(name, hint.__origin__, default.value, doc.documentation, rule)


DEFAULTS: Final = cast("Options", {option.name: option.default for option in described()})
"""What an option is when it is not given."""

Face = TypeVar("Face", bound=type)


def with_options(*, without: Collection[str] = (), **defaults: Any) -> Callable[[Face], Face]:
    """Let ``help()``, ``inspect.signature`` and notebooks show every option of a face, with its default and meaning.

    Args:
        without: Options that the face does not take.
        **defaults: Where they differ from those of :class:`Options`.

    Returns:
        A decorator of classes whose constructor takes ``**options: Unpack[Options]``. A line ``**options: ...`` among
        the arguments of their docstring gives way to the options.
    """
    taken = [option for option in described() if option.name not in without]
    shown = [option._replace(default=defaults.get(option.name, option.default)) for option in taken]

    def show(face: Face) -> Face:
        own = inspect.signature(face)
        parameters = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type
            )
            for option in shown
        ]
        face.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect asks for it
        lines = "".join(f"        {option.name}: {option.meaning} Default: {option.default!r}.\n" for option in shown)
        face.__doc__ = _OPTIONS_LINE.sub(lambda _: lines, face.__doc__ or "")
        return face

    return show


_OPTIONS_LINE: Final = re.compile(r"^ +\*\*options: .*\n", re.MULTILINE)


def checked(options: Options) -> Options:
    """All options, with their defaults, or an error that says which one is wrong.

    Raises:
        TypeError: No option has this name.
        OptionError: An option has a value that it cannot have.
    """
    check_names(options)
    whole: dict[str, Any] = {**DEFAULTS, **options}
    for name, _, default, _, rule in described():
        value = whole[name]
        if rule is not None and not (value is None and default is None) and not rule.holds(value):
            raise OptionError(f"{name} must be {rule.text}, got {value!r}")
    if not whole["watch"] and (whole["trigger"] or whole["keep"] != "all"):
        raise OptionError("trigger and keep need watch=True: the thread that watches knows which steps are slow")
    if not whole["watch"] and whole["signal"] is not None:
        raise OptionError("signal needs watch=True: the thread that watches hears of it")
    return cast("Options", whole)


def check_names(options: Iterable[str], also: Iterable[str] = ()) -> None:
    """Whether there are options of these names.

    Args:
        options: What was given.
        also: Names of other arguments, which may have been meant.

    Raises:
        TypeError: There is none.
    """
    for name in options:
        if name not in DEFAULTS:
            close = difflib.get_close_matches(name, [*also, *DEFAULTS], n=1)
            advice = successor(name) or (f"did you mean {close[0]!r}?" if close else "")
            raise TypeError(f"unexpected option {name!r}" + (f"; {advice}" if advice else ""))


def check_step(step: Any) -> None:
    """Whether something is the number of a step.

    Raises:
        OptionError: It is not.
    """
    if not _is_integer(step) or step < 0:
        raise OptionError(f"step must be an integer >= 0, got {step!r}")


def check_request(steps: Any, recording: Mapping[str, object]) -> None:
    """Whether a window can be asked for like this.

    Raises:
        OptionError: A value cannot be.
        TypeError: What is to be recorded is no such option.
    """
    if not _is_integer(steps) or not 1 <= steps <= MOST_STEPS:
        raise OptionError(f"steps must be an integer from 1 to {MOST_STEPS}, got {steps!r}")
    for name, value in recording.items():
        if name not in RECORDING:
            raise TypeError(f"a request takes {', '.join(RECORDING)}, got {name!r}")
        if not isinstance(value, bool):
            raise OptionError(f"{name} must be true or false, got {value!r}")


def recording(options: Options) -> dict[str, Any]:
    """Those of the given options that torch.profiler takes, less those at their default."""
    names = get_type_hints(RecordingOptions)
    return {name: value for name, value in options.items() if name in names and value != DEFAULTS.get(name)}


def selected(ranks: Ranks, job: Job) -> bool:
    """Whether this process records."""
    if callable(ranks):
        return bool(ranks(job))
    if isinstance(ranks, str):
        return ranks == "all" or job.local_rank == 0
    return job.rank in ranks


def are_any(ranks: Ranks, world_size: int) -> bool:
    """Whether ``ranks`` may name any rank of a job of that size."""
    return callable(ranks) or isinstance(ranks, str) or min(ranks) < world_size


def said(ranks: Ranks) -> str | list[int]:
    """``ranks`` for ``run.json``; of a callable, that it was one."""
    if callable(ranks):
        return "callable"
    return ranks if isinstance(ranks, str) else sorted(ranks)
