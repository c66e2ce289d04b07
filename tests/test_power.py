"""How much power a device may take: asked of a library that stands in for NVIDIA's, and said beside the peaks."""

from __future__ import annotations

import platform
import sys
import types

import pytest
from test_rates import H100, HALF, PRODUCT, US, called

from perfhooks import testing
from perfhooks.report.finishing.finish import finish
from perfhooks.report.finishing.power import limit_of
from perfhooks.report.page import limit_sentences
from perfhooks.run.capture import Capture, Place
from perfhooks.run.circumstances import Circumstances, PowerLimit
from perfhooks.run.liveness import boot
from perfhooks.run.publishing import publish_json
from perfhooks.trace import read

NAME = H100["name"]
SAID = "The power of the device is limited to 500 W, 700 W by default: it cannot hold the peaks of its datasheet."


@pytest.fixture(autouse=True)
def _no_measured_peaks(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFHOOKS_PEAKS", str(tmp_path / "none.json"))


def managed(monkeypatch, *devices, error=None):
    """The library of a machine with some devices: name, limit and default limit in milliwatts."""
    opened = []

    def default(place):
        if error is not None:
            raise error
        return devices[place][2]

    library = types.SimpleNamespace(
        nvmlInit=lambda: opened.append(1),
        nvmlShutdown=lambda: opened.append(-1),
        nvmlDeviceGetCount=lambda: len(devices),
        nvmlDeviceGetHandleByIndex=lambda place: place,
        nvmlDeviceGetName=lambda place: devices[place][0],
        nvmlDeviceGetEnforcedPowerLimit=lambda place: devices[place][1],
        nvmlDeviceGetPowerManagementDefaultLimit=default,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return opened


@pytest.mark.parametrize(
    ("devices", "name", "limit"),
    [
        ([(NAME, 500_000, 700_000)] * 2, NAME, (500, 700)),
        ([(NAME.encode(), 700_000, 700_000)], NAME, (700, 700)),
        ([(NAME, 500_000, 700_000)], f"{NAME} MIG 1g.10gb", (500, 700)),
        ([(NAME, 500_000, 700_000), (NAME, 700_000, 700_000)], NAME, None),
        ([("NVIDIA L4", 72_000, 72_000)], NAME, None),
        ([], NAME, None),
    ],
)
def test_a_limit_is_that_of_all_devices_of_a_name(monkeypatch, devices, name, limit):
    """Which of them the training used is nowhere said; where they differ nobody knows."""
    opened = managed(monkeypatch, *devices)
    assert limit_of(name) == (None if limit is None else PowerLimit(*limit))
    assert sum(opened) == 0, "what was begun is ended"


def test_unknown_power_limit_is_none(monkeypatch):
    opened = managed(monkeypatch, (NAME, 500_000, 700_000), error=RuntimeError("Not Supported"))
    assert limit_of(NAME) is None
    assert opened == [1, -1]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert limit_of(NAME) is None


def product(path, **metadata):
    events = [
        testing.step_mark(0, 0, 2000 * US),
        *called(1, "aten::mm", PRODUCT, HALF[:2], ("nvjet_hsh", 200 * US)),
    ]
    return testing.write_trace(path, events, deviceProperties=[H100], **metadata)


@pytest.mark.parametrize(
    ("watts", "elsewhere", "is_said"), [(500, False, True), (700, False, False), (500, True, False)]
)
def test_power_cap_is_recorded_and_shown_beside_the_peaks(monkeypatch, tmp_path, watts, elsewhere, is_said):
    """Of a machine that has started again since, or of another one, nobody asks: its limits say nothing."""
    managed(monkeypatch, (NAME, watts * 1000, 700_000))
    publish_json(tmp_path / "run.json", {"format": 1, "world_size": 1})
    place = Place(tmp_path / "train-000000-000000", 0)
    where = {"node": platform.node(), "boot": "another" if elsewhere else boot()}
    made = {"first": 0, "last": 0, "reached": 1, "token": "a1"}
    place.save(Capture(rank=0, stage="train", state="spooled", **where, **made))
    product(place.saved_trace("a1"))
    finish(place)
    found = place.load()
    assert found.circumstances.power == (None if elsewhere else PowerLimit(watts, 700))
    trace = read(product(tmp_path / "t.json"))
    assert (SAID in limit_sentences.sentences(found, trace)) == is_said


def test_measured_peaks_are_not_doubted(tmp_path):
    """The file of peaks says under which limit that was."""
    kept = tmp_path / "none.json"
    trace = read(product(tmp_path / "t.json"))
    capped = Capture(last=0, circumstances=Circumstances(power=PowerLimit(500, 700)))
    assert limit_sentences.sentences(capped, trace)[-1] == SAID
    kept.write_text(f'{{"{NAME}": {{"tflops": {{"float16": 700}}, "gb_per_s": 3000, "source": "measured"}}}}')
    again = read(product(tmp_path / "t2.json"))
    assert SAID not in limit_sentences.sentences(capped, again)
