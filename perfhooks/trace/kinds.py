"""Kinds of trace slices; traces have many category names but few kinds."""

from __future__ import annotations

import enum
from typing import Final


class Kind(enum.IntEnum):
    OTHER = 0
    OP = 1
    ANNOTATION = 2
    """Labels: ``record_function``, step marks, DataLoader ranges."""
    PYTHON = 3
    RUNTIME = 4
    KERNEL = 5
    COPY = 6
    SET = 7
    DEVICE_ANNOTATION = 8
    """Copy of a label on a stream (``gpu_user_annotation``); not device work."""
    SYNC = 9
    OVERHEAD = 10
    SPAN = 11


class Lane(enum.IntEnum):
    """Group of kinds whose slices may nest in each other.

    A stream and a thread with the same number have different lanes.
    """

    HOST = 0
    DEVICE = 1
    DEVICE_ANNOTATION = 2
    OTHER = 3


DEVICE_WORK: Final = (Kind.KERNEL, Kind.COPY, Kind.SET)

HOST: Final = (Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME)

_LANES: Final = (
    dict.fromkeys(HOST, Lane.HOST)
    | dict.fromkeys(DEVICE_WORK, Lane.DEVICE)
    | {Kind.DEVICE_ANNOTATION: Lane.DEVICE_ANNOTATION}
)

LEGACY_HOST: Final = "CPU functions"
LEGACY_PROCESSES: Final = (LEGACY_HOST, "CUDA functions")
"""Processes in torch's legacy ``export_chrome_trace``, whose events have no category."""

# Kineto's ActivityType names, names of torch 1.8 to 1.9, and name patterns of backends
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
    # host function and event of a CUDA graph, which keep no device busy
    "graph_host_node": Kind.OTHER,
    "graph_event_node": Kind.OTHER,
}
_ENDINGS: Final = (("runtime", Kind.RUNTIME), ("driver", Kind.RUNTIME), ("annotation", Kind.DEVICE_ANNOTATION))
_PARTS: Final = (("memcpy", Kind.COPY), ("memset", Kind.SET), ("sync", Kind.SYNC), ("kernel", Kind.KERNEL))

NAMED: Final = {
    "mtia_ccp_events": {"dma_request": Kind.COPY, "event_wait": Kind.SYNC, "event_record": Kind.SYNC},
}
"""Kinds of slices, keyed by category and name. Meta's MTIA writes all device events into one category."""


def classify(category: str, *, on_stream: bool = False) -> Kind:
    """Return the kind of slices by their category.

    Slices of an unknown category are kernels if ``on_stream`` is set.
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
    return _LANES.get(kind, Lane.OTHER)
