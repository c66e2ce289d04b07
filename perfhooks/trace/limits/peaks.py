"""What the device of a trace can do at most: as it was measured, else by the datasheet of its name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from perfhooks.core import labels
from perfhooks.core.variables import PEAKS
from perfhooks.trace.limits.datasheets import DATASHEETS, TYPES, Peaks
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace

_LARGEST: Final = 1 << 20
"""Bytes of the file of measured peaks."""


@cached_per_trace
def of_trace(trace: Trace) -> Peaks | None:
    """The peaks of the device of a trace, or of its processor where no device was traced; None where nobody knows.

    What was measured comes before the datasheet. A part of a device has only what was measured on such a part.
    """
    name, units = device(trace)
    known = DATASHEETS.get(name)
    sheet = known if known is not None and units in (None, known.units) else None
    measured = read(file()).get(measured_as(name, units))
    if measured is None or sheet is None:
        return measured or sheet
    return replace(sheet, tflops=sheet.tflops | measured.tflops, gb_per_s=measured.gb_per_s, source=measured.source)


def ceiling(trace: Trace) -> Peaks | None:
    """Return what no work on the device of a trace exceeds: its datasheet, or the measured peaks without one."""
    known = of_trace(trace)
    return known and DATASHEETS.get(device(trace)[0], known)


def is_of_datasheet(trace: Trace) -> bool:
    """Whether the peaks of a trace are those of a datasheet, and were not measured."""
    known = of_trace(trace)
    return known is not None and known is DATASHEETS.get(device(trace)[0])


def device(trace: Trace) -> tuple[str, int | None]:
    """The name of what a trace was recorded on, and its multiprocessors; empty where the trace does not say.

    Of several devices the first speaks for all: mixed ones in one process are as rare as they are slow.
    """
    if not trace.is_device_traced:
        said = trace.metadata.get(labels.PROCESSOR)
        return (said if isinstance(said, str) else ""), None
    listed = trace.metadata.get("deviceProperties")
    first = listed[0] if isinstance(listed, list) and listed else None
    name, units = (first.get("name"), first.get("numSms")) if isinstance(first, dict) else ("", None)
    return (name if isinstance(name, str) else ""), (units if type(units) is int else None)


def is_partial(trace: Trace) -> bool:
    """Whether the device of a trace is a part of one, as MIG makes them, that nobody measured.

    It says so in its name, or has fewer multiprocessors than a whole one.
    """
    name, units = device(trace)
    known = DATASHEETS.get(name)
    is_part = " MIG " in name or bool(known is not None and known.units and units and units < known.units)
    return is_part and of_trace(trace) is None


def measured_as(name: str, units: int | None) -> str:
    """What a device is called in the file of measured peaks; a part of one is told apart."""
    known = DATASHEETS.get(name)
    is_whole = known is None or known.units is None or units in (None, known.units)
    return name if is_whole else f"{name}, {units} multiprocessors"


def file() -> Path:
    """Where measured peaks are kept: where ``PERFHOOKS_PEAKS`` says, else in the user's folder of settings."""
    said = os.environ.get(PEAKS)
    settings = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(said) if said else Path(settings) / "perfhooks" / "peaks.json"


def read(path: Path) -> dict[str, Peaks]:
    """The measured peaks in a file, by device; none where there is no such file, or it is broken."""
    try:
        with path.open("rb") as opened:
            found = msgspec.json.decode(opened.read(_LARGEST), type=dict[str, Peaks])
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}
    return {name: peaks for name, peaks in found.items() if _is_sound(peaks)}


def _is_sound(peaks: Peaks) -> bool:
    return peaks.gb_per_s > 0 and all(each in TYPES and value > 0 for each, value in peaks.tflops.items())
