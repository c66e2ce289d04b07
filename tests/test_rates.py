"""How far from the limit: operations beside torch's counter, and rates, limits and peaks in traces made for it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfhooks import testing
from perfhooks.cli.actions import show
from perfhooks.report.page import limit_sentences, roofline, window_data
from perfhooks.run.capture import Capture
from perfhooks.testing import kernel, launch, op
from perfhooks.trace import read
from perfhooks.trace.limits import peaks, rates, utilisation
from perfhooks.trace.limits.datasheets import DATASHEETS, TYPES
from perfhooks.trace.window import Tables

US = 1000
H100 = {"name": "NVIDIA H100 80GB HBM3", "numSms": 132}
B200 = {"name": "NVIDIA B200", "numSms": 148}
HALF = ["c10::BFloat16"] * 3


@pytest.fixture(autouse=True)
def _no_measured_peaks(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFHOOKS_PEAKS", str(tmp_path / "none.json"))


def resnet():
    """Residual blocks, one of which changes the size, with a stride, groups and no bias."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, size, out, stride):
            super().__init__()
            self.path = nn.Sequential(
                *(nn.Conv2d(size, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()),
                *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)),
            )
            self.shortcut = nn.Conv2d(size, out, 1, stride)

        def forward(self, image):
            return torch.relu(self.path(image) + self.shortcut(image))

    blocks = Block(8, 8, 1), Block(8, 16, 2)
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(model, nn.Flatten(), nn.Linear(16, 10)), torch.randn(2, 3, 32, 32)


def vit():
    """Patches by a convolution, then blocks of torch's own."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    patches = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.Flatten(2), nn.Unflatten(1, (16,)))

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.blocks = patches, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 10)

        def forward(self, image):
            return self.head(self.blocks(self.patches(image).transpose(1, 2)).mean(1))

    return Vit(), torch.randn(2, 3, 32, 32)


def gpt():
    """Causal attention, and the embedding as the last layer."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.joint = nn.Embedding(50, 16), nn.Linear(16, 48)
            self.out, self.wide, self.narrow = nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, tokens):
            x = self.table(tokens)
            parts = self.joint(x).view(*tokens.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).flatten(2))
            x = x + self.narrow(functional.gelu(self.wide(x)))
            return x @ self.table.weight.T

    return Gpt(), torch.randint(0, 50, (2, 12))


@pytest.mark.recorder
@pytest.mark.parametrize("made", [resnet, vit, gpt])
def test_operations_of_models_equal_those_of_flop_counter(tmp_path, made):
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils import flop_counter

    model, given = made()
    # torch counts the attention of CPUs since 2.15, by the formulas that it has for that of devices
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    formulas = {
        attention: lambda *shapes, **_: flop_counter.sdpa_flop_count(*shapes[:3]),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: (
            flop_counter.sdpa_backward_flop_count(*shapes[:4])
        ),
    }

    def train():
        model(given).sum().backward()

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        train()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    with flop_counter.FlopCounterMode(
        display=False, custom_mapping={} if attention in flop_counter.flop_registry else formulas
    ) as counter:
        train()
    found = rates.calls(read(tmp_path / "t.json"))
    assert found.flops[(found.outer < 0) & (found.flops > 0)].sum() == counter.get_total_flops()


def traced(folder, *events, device=H100):
    metadata = {"deviceProperties": [device]} if device else {}
    return Tables(read(testing.write_trace(folder / "t.json", events, **metadata)))


def called(number, name, shapes, types, *kernels, inputs=(), start=0):
    """An operator and the kernels that it launches, each with its name and how long it runs."""
    given = {"Input_Dims": shapes, "Input_type": types, "Concrete_Inputs": list(inputs)}
    events = [op(name, start, start + 50 * US, **given)]
    for place, (each, length) in enumerate(kernels):
        begin = start + (10 + place) * US
        events.append(launch(number + place, begin, begin + US))
        events.append(
            kernel(number + place, start + 100 * US * (place + 1), start + 100 * US * (place + 1) + length, name=each)
        )
    return events


def row(table, name):
    return next(each for each in table.iter_rows(named=True) if each["name"] == name)


PRODUCT = [[4096, 4096], [4096, 4096]]
FLOPS, BYTES = 2 * 4096**3, 3 * 2 * 4096**2


@pytest.mark.parametrize(
    "device",
    [
        None,
        {"name": "NVIDIA H100", "numSms": 132},
        {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"},
        {**H100, "numSms": 16},
    ],
)
def test_unknown_or_partial_device_has_rates_without_limits(tmp_path, device):
    found = traced(tmp_path, *called(1, "aten::mm", PRODUCT, HALF[:2], ("nvjet_hsh", 200 * US)), device=device)
    each = row(found.kernels, "nvjet_hsh")
    assert each["tflops_per_s"] is not None
    assert (each["limit_percent"], each["limit"]) == (None, None)
    is_part = bool(device and device.get("numSms") != 132)
    assert peaks.is_partial(found.trace) == is_part
    assert ("a part of a GPU with" in limit_sentences.sentences(Capture(last=0), found.trace)[-1]) == is_part


def measured(tmp_path, **devices):
    """Writes peaks into the file of those that were measured: of each device those of types, and of its memory."""
    found = {
        name: {"tflops": tflops, "gb_per_s": speed, "source": "measured"} for name, (tflops, speed) in devices.items()
    }
    (tmp_path / "none.json").write_text(json.dumps(found))


def limit(tmp_path, types, kernel, device):
    """The percent of its limit that a product reaches on a device."""
    found = traced(tmp_path, *called(1, "aten::mm", PRODUCT, types, (kernel, 9000 * US)), device=device)
    return row(found.kernels, kernel)["limit_percent"]


def test_measured_peaks_override_the_datasheet(tmp_path):
    products = (HALF[:2], "nvjet_hsh"), (["float"] * 2, "ampere_sgemm")
    half, single = (limit(tmp_path, *product, H100) for product in products)
    sheet = DATASHEETS[H100["name"]]
    measured(tmp_path, **{H100["name"]: ({"bfloat16": sheet.tflops["bfloat16"] / 4}, 2000.0)})
    assert [limit(tmp_path, *product, H100) for product in products] == pytest.approx([4 * half, single])
    found = traced(tmp_path, *called(1, "aten::mm", PRODUCT, HALF[:2], ("nvjet_hsh", 200 * US)))
    known = peaks.of_trace(found.trace)
    assert (known.gb_per_s, known.source) == (2000.0, "measured")


def test_partial_device_has_only_its_measured_peaks(tmp_path):
    part, product = {**H100, "numSms": 16}, (HALF[:2], "nvjet_hsh")
    measured(tmp_path, **{H100["name"]: ({"bfloat16": 500.0}, 2000.0)})
    assert limit(tmp_path, *product, part) is None
    measured(tmp_path, **{f"{H100['name']}, 16 multiprocessors": ({"bfloat16": 50.0}, 400.0)})
    assert not peaks.is_partial(traced(tmp_path, kernel(1, 0, 5), device=part).trace)
    assert limit(tmp_path, *product, part) > 0
    assert limit(tmp_path, ["float"] * 2, "ampere_sgemm", part) is None
    assert limit(tmp_path, *product, H100) == pytest.approx(limit(tmp_path, *product, part) * 50 / 989.5, rel=1e-2)


def test_impossible_measured_peaks_are_ignored(tmp_path):
    sound = ({"float32": 1.0}, 10.0)
    odd = {"slow": ({"float32": 0.0}, 10.0), "still": ({"float32": 1.0}, 0.0), "strange": ({"float5": 1.0}, 10.0)}
    measured(tmp_path, **odd, sound=sound)
    assert list(peaks.read(peaks.file())) == ["sound"]
    assert peaks.read(tmp_path / "nowhere.json") == {}


def test_measured_peaks_are_among_the_settings_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv("PERFHOOKS_PEAKS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert peaks.file() == tmp_path / "perfhooks/peaks.json"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "ann"))
    assert peaks.file() == tmp_path / "ann/.config/perfhooks/peaks.json"


def test_datasheets_have_known_types_and_plausible_ratios():
    """Dense figures only: float8 is twice half precision where both are known, and half precision twice TF32."""
    for name, known in DATASHEETS.items():
        assert set(known.tflops) <= set(TYPES), name
        assert min(known.tflops.values()) > 0 < known.gb_per_s, name
        for fast, slow in (("float8", "float16"), ("float16", "tf32")):
            if {fast, slow} <= set(known.tflops):
                assert known.tflops[fast] == pytest.approx(2 * known.tflops[slow], rel=0.04), name


@pytest.mark.recorder
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_recomputation_in_a_checkpoint_counts_separately(tmp_path, monkeypatch, reentrant):
    """Without it, it is what torch's counter counts without checkpoints; in a function of one's own, backward is called
    what forward is."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, weight):
            ctx.save_for_backward(value, weight)
            return torch.nn.functional.linear(value, weight)

        @staticmethod
        def backward(ctx, gradient):
            value, weight = ctx.saved_tensors
            return torch.nn.functional.linear(gradient, weight.T), gradient.T.matmul(value)

    first, second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    given, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def block(value):
        return second(torch.tanh(first(value)))

    def train(reentrant=reentrant):
        made = block(given) if reentrant is None else checkpoint(block, given, use_reentrant=reentrant)
        Own.apply(made, weight).sum().backward()

    train()  # what is made once is made
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        train()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    with FlopCounterMode(display=False) as counter:
        train(None)
    found = utilisation.computed(read(tmp_path / "t.json"))
    assert found.flops[~found.again].sum() == counter.get_total_flops()
    assert found.flops[found.again].sum() == (0 if reentrant is None else 2 * 2 * 4 * 8 * 16)


def test_single_kernels_sum_to_their_operators(traces):
    """On every dialect; and no rate of a kernel needs more operations than its operator has."""
    for path in sorted(traces.glob("*.json*")):
        trace = read(path)
        found, work = rates.of_calls(trace), rates.of_work(trace)
        for name in ("flops", "bytes", "least_ps"):
            assert work[name].sum() <= found[name][rates.calls(trace).outer < 0].sum() + len(work[name]), path
        assert np.all(work["flops_ns"] >= 0)


def test_sentences_name_the_largest_operators_and_shares(tmp_path):
    half = called(1, "aten::mm", PRODUCT, HALF[:2], ("nvjet_hsh", 200 * US))
    small = called(3, "aten::mm", [[2048, 4096], [4096, 4096]], HALF[:2], ("nvjet_hsh", 200 * US), start=600 * US)
    moved = called(5, "aten::add", [[1 << 26]] * 2 + [[]], [*HALF[:2], "Scalar"], ("add", 150 * US), start=1200 * US)
    tables = traced(tmp_path, testing.step_mark(3, 0, 2000 * US), *half, *small, *moved)
    speed, used = limit_sentences.sentences(Capture(last=0), tables.trace)
    assert speed == (
        "mm at 344 to 687 TFLOP/s (35 to 69% of their limit), add at 2,684 GB/s (80% of its limit)."
    )  # fmt: skip
    assert used == (
        "MFU 10.4%: at the dense peaks of NVIDIA H100 80GB HBM3 (NVIDIA H100 Tensor Core GPU datasheet), matrix "
        "products, convolutions and attention would take this percentage of the step time (causal attention counts "
        "as full attention; known for 100% of the kernel time)."
    )
    assert limit_sentences.sentences(Capture(last=0, request="explanation"), tables.trace) == [speed]
    alone = read(testing.write_trace(tmp_path / "host.json", half[:1], perfhooksProcessor="one, 2 threads"))
    assert len(limit_sentences.sentences(Capture(last=0), alone)) == 1
    assert limit_sentences.sentences(Capture(last=0, request="explanation"), alone) == []
    share = window_data.reduce(Capture(last=0), tables.trace)
    assert share["limits"] == [speed, used]


def test_work_below_a_twentieth_is_in_no_sentence(tmp_path):
    large, given = called(1, "aten::mm", PRODUCT, HALF[:2]), {"Input_Dims": [[64, 64]] * 2, "Input_type": HALF[:2]}
    for small, is_named in ((2, False), (4, True)):
        events = [*large, op("aten::bmm", 90 * US, (90 + small) * US, **given)]
        (said,) = limit_sentences.sentences(Capture(last=0), read(testing.write_trace(tmp_path / "t.json", events)))
        assert ("bmm at" in said) == is_named


def test_roofline_contains_work_with_shapes_and_peaks(tmp_path):
    """An operator at its limit lies on the roof; what has no peaks, no shapes or no device's times has no roof.

    Nor has a type in which nothing ran, as what is captured into a graph.
    """
    half = called(1, "aten::mm", PRODUCT, HALF[:2], ("nvjet_hsh", 200 * US))
    single = called(3, "aten::mm", [[64, 64]] * 2, ["float"] * 2, ("ampere_sgemm", 900 * US), start=600 * US)
    moved = called(5, "aten::add", [[1 << 26]] * 2 + [[]], [*HALF[:2], "Scalar"], ("add", 150 * US), start=2400 * US)
    captured = called(7, "aten::mm", PRODUCT, ["double"] * 2, start=3000 * US)
    trace = traced(tmp_path, testing.step_mark(3, 0, 4000 * US), *half, *single, *moved, *captured).trace
    found = roofline.of_window(Capture(last=0), trace)
    sheet = DATASHEETS["NVIDIA H100 80GB HBM3"]
    assert found["roofs"] == {name: sheet.tflops[name] for name in ("float32", "bfloat16")}
    assert (found["gb_per_s"], found["device"]) == (sheet.gb_per_s, "NVIDIA H100 80GB HBM3")
    points = found["points"]
    assert points["name"] == ["aten::mm", "aten::mm"]
    for speed, moves, share, peak in zip(
        points["tflops_per_s"], points["flops_per_byte"], points["limit_percent"], (67, 989.5), strict=True
    ):
        assert 100 * speed / min(peak, moves * sheet.gb_per_s / 1000) == pytest.approx(share, rel=2e-3)
    assert window_data.reduce(Capture(last=0), trace)["roofline"] == found
    host = read(testing.write_trace(tmp_path / "host.json", half[:1], perfhooksProcessor="one, 2 threads"))
    shapeless = traced(tmp_path, op("aten::mm", 0, 50 * US), *half[1:]).trace
    for nothing in (host, shapeless):
        assert roofline.of_window(Capture(last=0), nothing) == {}


def test_a_roofline_has_the_sixty_points_that_took_most_time(tmp_path):
    """More would cover each other."""
    products = [
        called(2 * each + 1, "aten::mm", [[64, 64], [64, 64 + each]], HALF[:2], ("nvjet", (20 + each) * US), start=at)
        for each, at in enumerate(range(0, 70 * 100 * US, 100 * US))
    ]
    trace = traced(tmp_path, testing.step_mark(3, 0, 7000 * US), *(event for made in products for event in made)).trace
    points = roofline.of_window(Capture(last=0), trace)["points"]
    assert points["ms"] == pytest.approx([(89 - place) / 1000 for place in range(60)])


def test_terminal_sorts_operators_by_device_time(tmp_path, capsys):
    """Kernels have a table of their own; CSV and JSON have all rows in torch's order."""
    host = op("aten::roll", 1000 * US, 9000 * US)
    events = [*called(1, "aten::mm", PRODUCT, HALF[:2], ("nvjet_hsh", 200 * US)), host]
    path = testing.write_trace(tmp_path / "t.json", events)
    show.show(str(path), ["operators"], form="table")
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines[:2]] == ["aten::mm", "aten::roll"]
    assert not any("nvjet" in line for line in lines)
    show.show(str(path), ["operators"], form="csv")
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()[1:3]] == ["aten::roll", "aten::mm"]
