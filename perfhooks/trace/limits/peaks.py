from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfhooks.core import labels
from perfhooks.core.variables import PEAKS
from perfhooks.trace.limits.datasheets import DATASHEETS, TYPES, Peaks
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace


@cached_per_trace
def of_trace(trace: Trace) -> Peaks | None:
    """Return the peak rates of the traced device (otherwise of the CPU). Measured peaks replace the datasheet."""
    name, units = device(trace)
    datasheet = DATASHEETS.get(name)
    peaks = datasheet if datasheet is not None and units in (None, datasheet.units) else None
    measured_peaks = read(file()).get(measured_as(name, units))
    if measured_peaks is None or peaks is None:
        return measured_peaks or peaks
    return replace(
        peaks,
        tflops=peaks.tflops | measured_peaks.tflops,
        gb_per_s=measured_peaks.gb_per_s,
        source=measured_peaks.source,
    )


def ceiling(trace: Trace) -> Peaks | None:
    """Return the upper bounds of rates: the datasheet, or else the measured peaks."""
    peaks = of_trace(trace)
    return peaks and DATASHEETS.get(device(trace)[0], peaks)


def is_of_datasheet(trace: Trace) -> bool:
    peaks = of_trace(trace)
    return peaks is not None and peaks is DATASHEETS.get(device(trace)[0])


def device(trace: Trace) -> tuple[str, int | None]:
    if not trace.is_device_traced:
        processor = trace.metadata.get(labels.PROCESSOR)
        return (processor if isinstance(processor, str) else ""), None
    devices = trace.metadata.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name, units = (first.get("name"), first.get("numSms")) if isinstance(first, dict) else ("", None)
    return (name if isinstance(name, str) else ""), (units if type(units) is int else None)


def is_partial(trace: Trace) -> bool:
    """Return whether the device is a partition (for example MIG) without measured peaks."""
    name, units = device(trace)
    datasheet = DATASHEETS.get(name)
    is_part = " MIG " in name or bool(datasheet is not None and datasheet.units and units and units < datasheet.units)
    return is_part and of_trace(trace) is None


def measured_as(name: str, units: int | None) -> str:
    """Return the name under which measured peaks are stored. A partition of a device has a separate name."""
    datasheet = DATASHEETS.get(name)
    is_whole = datasheet is None or datasheet.units is None or units in (None, datasheet.units)
    return name if is_whole else f"{name}, {units} multiprocessors"


def file() -> Path:
    """Return the path in ``PERFHOOKS_PEAKS``, else a file in the user's configuration folder."""
    path = os.environ.get(PEAKS)
    settings = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(path) if path else Path(settings) / "perfhooks" / "peaks.json"


def read(path: Path) -> dict[str, Peaks]:
    try:
        with path.open("rb") as file:
            by_device = msgspec.json.decode(file.read(1 << 20), type=dict[str, Peaks])
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}
    return {name: peaks for name, peaks in by_device.items() if _is_valid(peaks)}


def _is_valid(peaks: Peaks) -> bool:
    return peaks.gb_per_s > 0 and all(name in TYPES and value > 0 for name, value in peaks.tflops.items())
