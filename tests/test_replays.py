"""Whether steps that the host launches too slowly could be replayed as CUDA graphs."""

import pytest
from test_findings_devices import FAST, MS, STEP, US, found_in, made_of, many_launches

from perfhooks.testing import op


def host_bound(tmp_path, plant):
    """The finding about steps of a hundred kernels, to which something is added."""

    def step(made, at):
        many_launches(made, at)
        plant(made, at)

    (finding,) = [each for each in found_in(tmp_path, made_of(step)) if each.rule == "host-bound"]
    return finding


def said(finding):
    (line,) = [line for line in finding.lines if "CUDA graph" in line or "same 10" in line]
    return line


def test_graphs_are_advised_for_steps_with_equal_launches(tmp_path):
    finding = host_bound(tmp_path, lambda made, at: None)
    assert said(finding).startswith("each step launches the same 100 kernels, copies and memsets, in the same order")
    assert "CUDA graphs fit these steps" in finding.advice


def read_value(made, at, begin):
    made.events.append(op("aten::item", at + begin, at + begin + 40 * US))
    made.call("cudaStreamSynchronize", at + begin + 5 * US, at + begin + 35 * US)


def test_waits_between_kernels_prevent_a_graph(tmp_path):
    finding = host_bound(tmp_path, lambda made, at: read_value(made, at, 4 * MS + 40 * US))
    assert said(finding) == "a CUDA graph cannot contain the waits between kernels, 1 in a step: aten::item: 30 us"
    assert "move reads of device values out of the step" in finding.advice
    assert "CUDA graphs fit" not in finding.advice


def test_waits_after_the_last_kernel_allow_a_graph(tmp_path):
    finding = host_bound(tmp_path, lambda made, at: read_value(made, at, 9900 * US))
    assert said(finding).startswith("each step launches the same")


def test_waits_for_events_allow_a_graph(tmp_path):
    """DistributedDataParallel times its steps so."""

    def plant(made, at):
        made.call("cudaEventSynchronize", at + 4040 * US, at + 4050 * US)

    assert said(host_bound(tmp_path, plant)).startswith("each step launches the same")


@pytest.mark.parametrize("other", ["name", "number"])
def test_steps_with_different_kernels_prevent_a_graph(other, tmp_path):
    def plant(made, at):
        if at < STEP * 2:
            name = f"a kernel for {at // STEP}" if other == "name" else FAST
            made.work(at + 9500 * US, at + 9600 * US, at + 9610 * US, call_us=5, name=name)

    finding = host_bound(tmp_path, plant)
    assert said(finding) == "the kernels differ from step to step, but a CUDA graph replays equal kernels"
    assert "pad them to a few lengths" in finding.advice
