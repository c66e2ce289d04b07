"""The options of every face, defined once."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, cast

from typing_extensions import Doc, TypedDict, get_type_hints

from perfhooks.errors import OnError, OptionError
from perfhooks.job import Job

RECORDING: Final = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
"""The recording options that a request for a window may switch on."""
MOST_STEPS: Final = 1000
"""Of a window on request: what they leave must fit into memory once, as any trace."""

Ranks = Literal["all", "first-of-node"] | Sequence[int] | Callable[[Job], bool]


class Default(NamedTuple):
    """What an option is when it is not given."""

    value: object


class RecordingOptions(TypedDict, total=False):
    """What ``torch.profiler.profile`` takes; what the installed torch does not know is left out, with a log line."""

    activities: Annotated[
        Any,
        Default(None),
        Doc('What to record: torch\'s activities, or their names (``["cpu", "cuda"]``); None records all there are.'),
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
        float | None, Default(None), Doc("How long torch may take to parse events, in seconds.")
    ]


class Options(RecordingOptions, total=False):
    """What every face takes, under the same names; all are keyword-only and have a default.

    This is the one place that defines an option: its type, its default and its meaning. Signatures and the help of all
    faces are made from it.
    """

    out: Annotated[
        str | os.PathLike[str] | None,
        Default(None),
        Doc("The folder that holds runs; None is ``perf``, or a folder ``perf`` beside the framework's own logs."),
    ]
    run: Annotated[
        str | None,
        Default(None),
        Doc("Name of the run, the same on all ranks; None takes the launcher's identity, else the time and process."),
    ]
    ranks: Annotated[
        Ranks,
        Default("all"),
        Doc('Which ranks record: ``"all"``, a list, ``"first-of-node"``, or a callable of the job\'s facts.'),
    ]
    stage: Annotated[str, Default("train"), Doc("What the loop is called in file names and tables.")]
    background: Annotated[
        bool, Default(True), Doc("Whether a child process makes the files; otherwise the training waits for them.")
    ]
    exit_timeout: Annotated[
        float,
        Default(60.0),
        Doc("How long the end of the process waits for files, in seconds; after that they are made without it."),
    ]
    max_trace_mb: Annotated[
        float | None,
        Default(None),
        Doc(
            "Shorten the windows to come when one's trace, as plain JSON, is larger than this, in MB; None sets no "
            "limit. Their folders are still called by the steps that the schedule asked for: ranks may be shortened "
            "differently."
        ),
    ]
    keep_windows: Annotated[
        int | None,
        Default(None),
        Doc("How many windows of a stage a rank keeps, the latest ones; None keeps all."),
    ]
    communication: Annotated[
        str | None,
        Default(None),
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
        Default(None),
        Doc(
            'What else opens a window: ``"slow"``, a slow step. The window lies over the next one where slow steps '
            "have a rhythm, else after the slow step; at most 10 windows, besides those of the schedule."
        ),
    ]
    keep: Annotated[
        str,
        Default("all"),
        Doc(
            'Which windows of the schedule are kept: ``"all"``, or ``"slow"``, those in which a step took more than 3 '
            "times the median and 50 ms."
        ),
    ]
    poll: Annotated[
        float,
        Default(1.0),
        Doc("Seconds between two looks at the run folder for requests; more spares a disk that many ranks share."),
    ]
    signal: Annotated[
        str | None,
        Default(None),
        Doc('A signal that asks this process for a window, as ``"USR2"``; its handler sets a flag and nothing else.'),
    ]
    on_error: Annotated[
        OnError,
        Default("warn"),
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


def described() -> list[Option]:
    """All options, in the order of their definition."""
    return [_option(name, hint) for name, hint in get_type_hints(Options, include_extras=True).items()]


def _option(name: str, hint: Any) -> Option:
    default, doc = hint.__metadata__
    return Option(name, hint.__origin__, default.value, doc.documentation)


DEFAULTS: Final = cast("Options", {option.name: option.default for option in described()})
"""What an option is when it is not given."""

_BOOLEANS: Final = frozenset(option.name for option in described() if option.type is bool)

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
    whole: Options = {**DEFAULTS, **options}
    _check_plain(whole)
    _check_numbers(whole)
    _check_signal(whole)
    _check_watching(whole)
    _check_ranks(whole["ranks"])
    return whole


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
            raise TypeError(f"unexpected option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def _check_plain(options: Options) -> None:
    for name, value in options.items():
        if name in _BOOLEANS and not isinstance(value, bool):
            raise OptionError(f"{name} must be true or false, got {value!r}")
    if options["on_error"] not in ("warn", "raise"):
        raise OptionError(f"on_error must be 'warn' or 'raise', got {options['on_error']!r}")
    _check_name("stage", options["stage"])
    if options["run"] is not None:
        _check_name("run", options["run"])
    if options["communication"] is not None:
        _check_parts("communication", options["communication"])
    out = options["out"]
    if out is not None and (not isinstance(out, str | os.PathLike) or not os.fspath(out)):
        raise OptionError(f"out must be a path, got {out!r}")


def _check_watching(options: Options) -> None:
    if options["trigger"] not in (None, "slow"):
        raise OptionError(f"trigger must be 'slow' or None, got {options['trigger']!r}")
    if options["keep"] not in ("all", "slow"):
        raise OptionError(f"keep must be 'all' or 'slow', got {options['keep']!r}")
    if not options["watch"] and (options["trigger"] or options["keep"] != "all"):
        raise OptionError("trigger and keep need watch=True: the thread that watches knows which steps are slow")


def _check_signal(options: Options) -> None:
    name = options["signal"]
    if name is None:
        return
    if not isinstance(name, str) or not hasattr(signal, f"SIG{name.upper().removeprefix('SIG')}"):
        raise OptionError(f"signal must be the name of a signal, as 'USR2', got {name!r}")
    if not options["watch"]:
        raise OptionError("signal needs watch=True: the thread that watches hears of it")


def _check_numbers(options: Options) -> None:
    _check_number("exit_timeout", options["exit_timeout"], may_be_zero=True)
    _check_number("poll", options["poll"])
    if options["max_trace_mb"] is not None:
        _check_number("max_trace_mb", options["max_trace_mb"])
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


def check_request(steps: object, recording: Mapping[str, object]) -> None:
    """Whether a window can be asked for like this.

    Raises:
        OptionError: A value cannot be.
        TypeError: What is to be recorded is no such option.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MOST_STEPS:
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


def _check_name(option: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{option} must be a name, got {value!r}")


def _check_parts(option: str, value: object) -> None:
    if not isinstance(value, str) or not all(map(str.strip, value.split("|"))):
        raise OptionError(f"{option} must be parts of kernel names, as 'mine|other', got {value!r}")


def _check_number(option: str, value: object, *, may_be_zero: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not (value > 0 or (may_be_zero and value == 0)):
        raise OptionError(f"{option} must be a number {'>=' if may_be_zero else '>'} 0, got {value!r}")


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
