from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.trace.bounds import MAX_NUMBER
from perfhooks.trace.nesting import device, intervals, step_marks
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Intervals


class Span(NamedTuple):
    """Device times of each step, in ns, from the first to the last device work that the step launched.

    The fields are columns of `perfhooks.trace.tables.steps.table`.
    """

    device_span: Ints
    busy: Ints
    idle: Ints
    compute: Ints
    comm: Ints
    exposed_comm: Ints
    exposed_copy: Ints
    other_work: Ints


@cached_per_trace
def span(trace: Trace) -> Span:
    """Split the time from the first to the last device work of each step into the fields of `Span`."""
    marks, rows = step_marks.find(trace), trace.device_rows
    step = step_marks.step_of(marks, device.launch_times(trace))
    own_work = np.flatnonzero((step >= 0) & (trace.end > trace.start)[rows])
    if not len(own_work):
        return Span(*[np.zeros(len(marks.start), np.int64)] * len(Span._fields))
    step, kind, start, end = (
        step[own_work],
        device.classes(trace)[own_work],
        trace.start[rows[own_work]],
        trace.end[rows[own_work]],
    )
    # times are numbered separately for each step, because work of several steps can overlap
    time = intervals.distinct(start, end)
    begin, finish = (step * len(time) + np.searchsorted(time, edge) for edge in (start, end))
    kinds = (kind == device.COMPUTE, kind == device.COMMUNICATION, kind > device.COMMUNICATION)
    compute, comm, copied = (intervals.union(begin[is_kind], finish[is_kind]) for is_kind in kinds)
    kernels = intervals.joined(compute, comm)
    sets = (compute, comm, kernels, intervals.joined(kernels, copied))
    compute_ns, comm_ns, in_kernels, busy = (_time_per_step(moments, time, len(marks.start)) for moments in sets)
    first, last = _work_extents(step, start, end, len(marks.start))
    device_busy = intervals.within(device.busy(trace), first, last)
    return Span(
        *(last - first, busy, last - first - device_busy, compute_ns, comm_ns),
        *(in_kernels - compute_ns, busy - in_kernels, device_busy - busy),
    )


def _time_per_step(moments: Intervals, time: Ints, count: int) -> Ints:
    step, index = np.divmod(moments, len(time))
    return summed(step[:, 0], time[index[:, 1]] - time[index[:, 0]], count)


def _work_extents(step: Ints, start: Ints, end: Ints, count: int) -> tuple[Ints, Ints]:
    first, last = np.full(count, MAX_NUMBER), np.full(count, -MAX_NUMBER)
    np.minimum.at(first, step, start)
    np.maximum.at(last, step, end)
    return np.where(first < MAX_NUMBER, first, 0), np.where(last > -MAX_NUMBER, last, 0)
