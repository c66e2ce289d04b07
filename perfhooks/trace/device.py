"""What a device did: which work is computation, communication or a copy, and who launched it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from perfhooks.trace.intervals import Flags
    from perfhooks.trace.model import Ints, Trace

_COMMUNICATION: Final = re.compile(
    # the libraries of the vendors, then the kernels of torch's own symmetric memory
    r"(?:^|[^a-z])(?:nccl|rccl|hccl|xccl|cncl|mccl|eccl|oneccl|msccl)"
    r"|(?:multimem|one_shot|two_shot)_all_reduce|multimem_all_gather",
    re.IGNORECASE,
)
_LAUNCH: Final = re.compile(r"launch(?!hostfunc)", re.IGNORECASE)
# Plain cudaMemcpy waits for the device, and so does what ROCm's torch calls for item().
_WAIT: Final = re.compile(r"synchronize|^(?:cuda|hip)Memcpy(?:WithStream)?$", re.IGNORECASE)


def communicates(trace: Trace) -> Flags:
    """For each of `Trace.device_rows`, whether it is a kernel that communicates: by its arguments, else by its name."""
    rows = trace.device_rows
    named = _matching(trace, _COMMUNICATION)[trace.name[rows]]
    collective: Flags = trace.argument("collective")[rows] >= 0
    found: Flags = (trace.kind[rows] == Kind.KERNEL) & (named | collective)
    return found


def launch_calls(trace: Trace) -> Ints:
    """The calls that launch kernels or graphs."""
    rows = trace.rows(Kind.RUNTIME)
    return rows[_matching(trace, _LAUNCH)[trace.name[rows]]]


def wait_calls(trace: Trace) -> Ints:
    """The calls in which the host waits for the device."""
    rows = trace.rows(Kind.RUNTIME)
    return rows[_matching(trace, _WAIT)[trace.name[rows]]]


def launch_times(trace: Trace) -> Ints:
    """When each of `Trace.device_rows` was launched, in nanoseconds; its own start where nobody is known to have."""
    launches = trace.launches
    own = trace.start[trace.device_rows]
    found: Ints = np.where(launches >= 0, trace.start[launches], own) if len(own) else own
    return found


def _matching(trace: Trace, pattern: re.Pattern[str]) -> Flags:
    return np.array([bool(pattern.search(name)) for name in trace.names] or [False], np.bool_)
