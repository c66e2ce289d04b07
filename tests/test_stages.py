"""Which loop a trace shows that nobody of ours recorded: training, inference, or nobody can tell."""

import pytest

from perfhooks import testing
from perfhooks.report.page import markdown, run_data
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, kernel, launch, op, python_frame, step_mark
from perfhooks.trace import read
from perfhooks.trace.names import stages
from perfhooks.trace.window import Tables

LINEAR = op("aten::linear", 0, 10)
NOTED = op("aten::linear", 0, 10, Sequence_number=7)
"""As torch records an operator whose gradient it may need."""


def shown(tmp_path, events):
    return stages.shown(read(testing.write_trace(tmp_path / "t.json", events)))


@pytest.mark.parametrize(
    "sign",
    [
        op("autograd::engine::evaluate_function: AddmmBackward0", 20, 30),
        op("AddmmBackward0", 20, 30),
        op("CompiledFunctionBackward", 20, 30),
        op("Optimizer.step#AdamW.step", 20, 30),
        annotation("Optimizer.zero_grad#SGD.zero_grad", 20, 30),
        annotation("backward", 20, 30),
        annotation("optimizer (auto)", 20, 30),
        python_frame("torch/autograd/__init__.py(270): backward", 20, 30),
        kernel(1, 20, 30, name="MIOpenBatchNormBwdSpatial"),
        kernel(1, 20, 30, name="igemm_wrw_gtcx3_nhwc_bf16_bx0"),
        kernel(1, 20, 30, name="void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>"),
    ],
    ids=lambda event: event["name"],
)
def test_gradients_and_updates_are_training(tmp_path, sign):
    assert shown(tmp_path, [LINEAR, sign]) == "train"
    assert shown(tmp_path, [sign]) == "train"


@pytest.mark.parametrize(
    ("events", "stage"),
    [
        ([LINEAR], "inference"),
        ([NOTED], "unknown"),
        ([NOTED, op("vllm::unified_kv_cache_update", 20, 30)], "inference"),
        ([NOTED, kernel(1, 20, 30, name="void vllm::reshape_and_cache_flash_kernel<...>")], "inference"),
        ([op("aten::add", 0, 10)], "unknown"),
        ([step_mark(0, 0, 10)], "unknown"),
        ([kernel(1, 0, 10, name="ampere_sgemm_128x64_tn")], "unknown"),
        ([LINEAR, kernel(1, 20, 30, name="igemm_bwd_gtcx3_nhwc_bf16_bx0")], "inference"),  # of a transposed convolution
    ],
)
def test_layers_without_autograd_or_with_a_cache_are_inference(tmp_path, events, stage):
    assert shown(tmp_path, events) == stage


SHOWN = {
    "train": ("a100-ddp2", "v100-resnet", "mi250-minitoy", "mi210-gpu-only", "sampled-128ranks", "odd-no-distributed"),
    "inference": ("b200-eager", "h100-bert", "mi300-bert", "triton-compile"),
    "unknown": ("alexnet-cuda-sync", "cpu-only-rank34"),
}


@pytest.mark.slow
def test_recorded_traces_have_the_right_stage(recordings):
    for path in recordings.glob("*.json.gz"):
        (stage,) = (stage for stage, names in SHOWN.items() if path.name.startswith(names))
        assert stages.shown(read(path)) == stage, path.name


def test_recorded_stage_overrides_detection(tmp_path):
    trace = read(testing.write_trace(tmp_path / "t.json", [step_mark(0, 0, 50), LINEAR]))
    assert Tables(trace).steps["stage"].to_list() == ["inference"]
    assert Capture(stage="validate", last=0).tables(trace).steps["stage"].to_list() == ["validate"]
    assert Capture(stage="trace", last=0).tables(trace).steps["stage"].to_list() == ["inference"]


def test_report_and_summary_name_the_detected_stage(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", [step_mark(0, 0, 50), LINEAR])
    assert run_data.from_trace(path)["windows"][0]["stage"] == "inference"
    assert "- stage: inference" in markdown.of_trace(path)


def test_summary_lists_kernels_of_replayed_graphs(tmp_path):
    """Operators launched little of what the device did, so it says what it did."""
    graph = [launch(9, 0, 90, name="cudaGraphLaunch")]
    graph += [
        kernel(9, 100 + place, 100 + place + 1, name=f"fused_moe_kernel_{place % 2}") for place in range(0, 80, 2)
    ]
    copying = [
        op("aten::copy_", 91, 99),
        launch(1, 92, 93, external=1),
        kernel(1, 400, 410, external=1, name="copy_it"),
    ]
    path = testing.write_trace(tmp_path / "t.json", [step_mark(0, 0, 500), *graph, *copying])
    text = markdown.of_trace(path)
    assert "Operators launched only 20% of the 0.05 us of device work in a step." in text
    assert "| fused_moe_kernel_0 | moe | 40 | 4e-05 |" in text
    launched = testing.write_trace(tmp_path / "u.json", [step_mark(0, 0, 500), *copying])
    assert "Largest kernels" not in markdown.of_trace(launched)
