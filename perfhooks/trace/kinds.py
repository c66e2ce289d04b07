"""What a slice of a trace is: many category names, few kinds."""

from __future__ import annotations

import enum
from typing import Final


class Kind(enum.IntEnum):
    """What a slice is, whatever its backend calls it."""

    OTHER = 0
    OP = 1
    """An operator, on the host."""
    ANNOTATION = 2
    """A label that code put around a piece of itself: ``record_function``, step marks, DataLoader ranges."""
    PYTHON = 3
    """A Python frame."""
    RUNTIME = 4
    """A call into the device's runtime or driver, on the host."""
    KERNEL = 5
    COPY = 6
    SET = 7
    DEVICE_ANNOTATION = 8
    """The shadow that a label throws on a stream; no work of the device."""
    SYNC = 9
    """A wait that the device's tracer reports on the device's side."""
    OVERHEAD = 10
    """Time the recorder itself took."""
    SPAN = 11
    """The extent of the recording."""


class Lane(enum.IntEnum):
    """Kinds that may nest in each other share a lane; a stream and a thread of the same number do not."""

    HOST = 0
    DEVICE = 1
    DEVICE_ANNOTATION = 2
    OTHER = 3


DEVICE_WORK: Final = (Kind.KERNEL, Kind.COPY, Kind.SET)
"""What keeps a device busy."""

HOST: Final = (Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME)

_LANES: Final = (
    dict.fromkeys(HOST, Lane.HOST)
    | dict.fromkeys(DEVICE_WORK, Lane.DEVICE)
    | {Kind.DEVICE_ANNOTATION: Lane.DEVICE_ANNOTATION}
)

LEGACY_HOST: Final = "CPU functions"
LEGACY_PROCESSES: Final = (LEGACY_HOST, "CUDA functions")
"""The processes of ``torch.autograd.profiler``'s ``export_chrome_trace``, whose events have no category."""

# Kineto's ActivityType names, those of torch 1.8 to 1.9 (capitalised), and the families that backends add to.
_EXACT: Final = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    LEGACY_PROCESSES[0].lower(): Kind.OP,
    LEGACY_PROCESSES[1].lower(): Kind.KERNEL,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
    "trace": Kind.SPAN,
    "mtia_ccp_events": Kind.KERNEL,
    # in a CUDA graph: a function of the host that a stream waits for, and a moment; neither keeps the device busy
    "graph_host_node": Kind.OTHER,
    "graph_event_node": Kind.OTHER,
}
_ENDINGS: Final = (("runtime", Kind.RUNTIME), ("driver", Kind.RUNTIME), ("annotation", Kind.DEVICE_ANNOTATION))
_PARTS: Final = (("memcpy", Kind.COPY), ("memset", Kind.SET), ("sync", Kind.SYNC), ("kernel", Kind.KERNEL))

NAMED: Final = {
    "mtia_ccp_events": {"dma_request": Kind.COPY, "event_wait": Kind.SYNC, "event_record": Kind.SYNC},
}
"""Slices that are something else than their category says, by category and name: Meta's MTIA writes all that a device
does into one (seen in the traces of HolisticTraceAnalysis, tests/data/mtia_*)."""


def classify(category: str, *, on_stream: bool = False) -> Kind:
    """Say what the slices of a category are.

    Args:
        category: the ``cat`` of an event.
        on_stream: whether its slices name a device and a stream, which decides about an unknown category.
    """
    name = category.lower()
    if name in _EXACT:
        return _EXACT[name]
    for ending, kind in _ENDINGS:
        if name.endswith(ending):
            return kind
    for part, kind in _PARTS:
        if part in name:
            return kind
    return Kind.KERNEL if on_stream else Kind.OTHER


def lane(kind: Kind) -> Lane:
    """The lane on which slices of this kind lie."""
    return _LANES.get(kind, Lane.OTHER)
