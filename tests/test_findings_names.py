"""Advice names the modules, variables and tools of the device in the trace."""

import ast
import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import npu_twins
import pytest
from test_findings_devices import (
    PLANTED,
    STEP,
    STEPS,
    US,
    WHOLE,
    Case,
    allocations,
    delaying,
    found_in,
    made_of,
    many_launches,
    reading_values,
    slowed,
    steps,
    unfolding,
)

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.run.circumstances import Circumstances
from perfhooks.testing import op
from perfhooks.trace import read
from perfhooks.trace.names import devices

FOREIGN = re.compile("cuda|nccl|cudnn|nvidia|torch.?compile|reduce-overhead", re.IGNORECASE)
"""Names of other devices, and the compiler whose default backend does not support Ascend."""
RULES = Path(findings.__file__).parent
MADE = {**PLANTED, "slow-convolution": Case(steps(unfolding), {})}
FRAMEWORKS = ("", "Lightning", "mmengine", "the Trainer", "the program", "accelerate")
ABSTAINING = ("float32-products", "slow-convolution")
"""Rules that know NVIDIA's devices only."""


def texts(finding):
    return [finding.title, finding.estimate, finding.advice, finding.code]


@pytest.mark.parametrize("name", MADE)
def test_no_rule_advises_names_of_cuda_for_an_npu(name, tmp_path):
    """Only the kind of the device differs, so that the same rules find something."""
    trace = read(testing.write_trace(tmp_path / "t.json", MADE[name].events, **MADE[name].metadata))
    trace.is_npu = True
    for framework in FRAMEWORKS:
        capture = replace(WHOLE, circumstances=Circumstances(framework=framework, cudnn=False))
        found = findings.find(capture, trace)
        assert (name in {finding.rule for finding in found}) == (name not in ABSTAINING)
        for finding in found:
            assert not [text for text in texts(finding) if FOREIGN.search(text)], (finding.rule, framework)


@pytest.mark.parametrize("name", PLANTED)
def test_no_rule_advises_names_of_cuda_for_a_file_of_torch_npu(name, tmp_path):
    """The same training as `torch_npu` writes it."""
    events, metadata, _ = PLANTED[name]
    whole = op("aten::linear", 0, 2 * STEPS * STEP)
    path = testing.write_trace(tmp_path / "t.json", [whole, *events], **metadata)
    kineto = json.loads(path.read_text(), parse_float=Decimal)
    for event in kineto["traceEvents"]:
        event.setdefault("args", {})
    npu = npu_twins.by_torch_npu(kineto)
    (tmp_path / "trace_view.json").write_text(json.dumps(npu, default=float))
    trace = read(tmp_path / "trace_view.json")
    assert trace.is_npu
    for finding in findings.find(WHOLE, trace):
        assert not [text for text in texts(finding) if FOREIGN.search(text)], finding.rule


def test_texts_of_rules_contain_no_vendor_names():
    """Names belong into `perfhooks.trace.names.devices`, or to rules that know the device."""
    names = re.compile(r"torch\.cuda|\"cuda\"|CUDA graph|NCCL|nvidia-smi|_CUDA_")
    files = [path.read_text(encoding="utf-8") for path in (RULES / "texts").glob("*.toml")]
    lines = [line for file in files for line in file.splitlines() if names.search(line)]
    assert all("make_graphed_callables" in line for line in lines), "the version for CUDA graphs"
    for path in RULES.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documents]
        strings = [node.value for node in constants if isinstance(node.value, str)]
        assert not [text for text in strings if names.search(text)], path.name


AMD = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9}]}
INTEL = {"deviceProperties": [{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}]}


@pytest.mark.parametrize(
    ("metadata", "is_npu", "names"),
    [
        ({}, False, ("torch.cuda.synchronize", "nvidia-smi pmon", "PYTORCH_CUDA_ALLOC_CONF")),
        (AMD, False, ("torch.cuda.synchronize", "rocm-smi", "PYTORCH_HIP_ALLOC_CONF")),
        (INTEL, False, ("torch.xpu.synchronize", "xpu-smi", "PYTORCH_ALLOC_CONF")),
        ({}, True, ("torch.npu.synchronize", "npu-smi info", "PYTORCH_NPU_ALLOC_CONF")),
    ],
    ids=["NVIDIA", "AMD", "Intel", "Ascend"],
)
def test_names_depend_on_the_device(metadata, is_npu, names, tmp_path):
    cases = [made_of(reading_values), slowed(1400) if is_npu else made_of(delaying), steps(allocations, begin=700 * US)]
    for events, name in zip(cases, names, strict=True):
        trace = read(testing.write_trace(tmp_path / "t.json", events, **metadata))
        trace.is_npu = is_npu
        said = "\n".join(text for finding in findings.find(WHOLE, trace) for text in texts(finding))
        assert name in said
    assert devices.of_trace(trace).module == names[0].removesuffix(".synchronize")


def test_kernel_of_another_vendor_keeps_its_name(tmp_path):
    """Only advice is worded by the device: what the trace says stays."""
    found = found_in(tmp_path, steps(name="my_cuda_kernel"), AMD)
    assert all("torch.npu" not in text for finding in found for text in texts(finding))


@pytest.mark.parametrize(("metadata", "graph"), [({}, "CUDA graph"), (AMD, "HIP graph")], ids=["NVIDIA", "AMD"])
def test_graphs_have_the_name_of_the_device(metadata, graph, tmp_path):
    (finding,) = [
        finding for finding in found_in(tmp_path, made_of(many_launches), metadata) if finding.rule == "host-bound"
    ]
    said = " ".join([finding.advice, *finding.lines])
    assert set(re.findall("[A-Z]+ graph", said)) == {graph}
