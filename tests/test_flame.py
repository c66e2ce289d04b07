"""The flame graph as a picture: whole, escaped, and nothing where there is nothing."""

import io
import xml.etree.ElementTree as ET

import pytest

from perfhooks.analysis import flames
from perfhooks.core.errors import OptionError
from perfhooks.report.handlers import Flame
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, kernel, launch, op, python_frame, step_mark, write_trace
from perfhooks.trace import read
from perfhooks.trace.tables import stacks

SVG = "{http://www.w3.org/2000/svg}"


def drawn(handler, trace):
    found = {}
    for artifact in handler.artifacts(Capture(first=1, last=2), trace):
        file = io.BytesIO()
        artifact.write(file)
        found[artifact.name] = ET.fromstring(file.getvalue())
    return found


def frames(root):
    groups = [group for group in root.iter(f"{SVG}g") if group.get("data-x")]
    return {group.find(f"{SVG}title").text.splitlines()[0]: group for group in groups}


@pytest.fixture
def trace(tmp_path):
    events = [
        step_mark(1, 0, 1000),
        python_frame("train.py(1): <module>", 0, 1000),
        op("aten::mm", 0, 250, external=1),
        launch(1, 10, 20),
        kernel(1, 300, 700, external=1),
    ]
    return read(write_trace(tmp_path / "t.json", events))


def test_frames_are_as_wide_as_their_time(trace):
    root = drawn(Flame(), trace)["flame.svg"]
    boxes = list(root.iter(f"{SVG}rect"))
    lowest = max(
        float(box.get("y", 0)) + float(box.get("height", 0)) for box in boxes if "%" not in box.get("height", "")
    )
    assert lowest <= float(root.get("viewBox").split()[3])
    found = frames(root)
    assert float(found["aten::mm"].get("data-w")) == pytest.approx(0.25)
    assert "0.25 us, 25%" in found["aten::mm"].find(f"{SVG}title").text
    assert int(found["aten::mm"].get("data-d")) > int(found["train.py(1): <module>"].get("data-d"))


def test_frame_shows_the_part_of_its_name_that_fits(tmp_path):
    long = "aten::" + "long" * 20
    events = [step_mark(1, 0, 1000), op("aten::mm", 0, 250), op(long, 250, 500), op("aten::add", 500, 501)]
    found = frames(drawn(Flame(share=0), read(write_trace(tmp_path / "t.json", events)))["flame.svg"])
    shown = {name: "".join(group.find(f"{SVG}text").itertext()) for name, group in found.items() if "aten" in name}
    assert shown["aten::mm"] == "aten::mm"
    assert shown[long].endswith("…")
    assert long.startswith(shown[long][:-1])
    assert len(shown[long]) > 20
    assert shown["aten::add"] == ""


def test_chart_shows_at_most_five_thousand_frames(tmp_path):
    """Whatever share was asked for: a browser is to open it."""
    events = [op(f"aten::op{place}", 10 * place, 10 * place + 1 + place % 7) for place in range(8000)]
    trace = read(write_trace(tmp_path / "t.json", [step_mark(1, 0, 80_000), *events]))
    found = frames(drawn(Flame(share=0), trace)["flame.svg"])
    assert 4000 < len(found) <= 5000
    assert sum(int(name.removeprefix("aten::op")) % 7 == 6 for name in found if "aten" in name) == 8000 // 7


def test_device_time_has_kernels_as_leaves(trace):
    root = drawn(Flame(by="device"), trace)["flame.device.svg"]
    assert frames(root)["gemm"].find(f"{SVG}rect").get("class") == "kernel"


def test_empty_trace_has_no_chart(trace):
    assert drawn(Flame(by="bytes"), trace) == {}


@pytest.mark.parametrize("options", [{"by": "gpu"}, {"share": 1}, {"share": -0.1}, {"share": "x"}])
def test_wrong_options_are_rejected(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Flame(**options)


def test_flame_graph_begins_at_user_code_and_keeps_all_time(tmp_path):
    """What a launcher does besides, the labels around the user's code, and code without a user's frame stay."""
    launcher = ["<frozen runpy>(198): _run_module_as_main", "fast/cli.py(7): main", "torch/nn/run.py(3): call"]
    events = [python_frame(name, place, 990 - place) for place, name in enumerate(launcher)]
    events += [annotation("fit", 10, 900), python_frame("fast/loop.py(2): fit", 11, 899)]
    events += [python_frame("train.py(5): training_step", begin, begin + 100) for begin in (100, 300)]
    events += [python_frame("torch/nn/module.py(1): _call_impl", 120, 150), op("aten::mm", 130, 140)]
    events.append(op("aten::add", 600, 700))
    trace = read(write_trace(tmp_path / "t.json", [step_mark(1, 0, 1000), *events]))
    owners = {"fast": "installed", "train.py": "user"}
    made = flames.tree(stacks.summed(trace), share=0, owners=owners)
    names = [made["names"][frame] for frame in made["frame"]]
    paths = []
    for parent, name in zip(made["parent"], names, strict=True):
        paths.append([*paths[parent], name] if parent >= 0 else [])
    step = ["step", "fit", "train.py(5): training_step"]
    assert [*step, "torch/nn/module.py(1): _call_impl", "aten::mm"] in paths
    assert ["step", "fast/cli.py(7): main", *launcher[2:], "fit", "fast/loop.py(2): fit", "aten::add"] in paths
    assert not any("fast/cli.py(7): main" in path and step[-1] in path for path in paths)
    assert made["value"][0] == 1000
    assert made["value"][paths.index(step)] == 200
