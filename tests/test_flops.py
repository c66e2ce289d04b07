"""Floating point operations: torch's own count, and what it forgets as torch's other counter counts it."""

from __future__ import annotations

import functools

import pytest

from perfhooks.trace import read
from perfhooks.trace.tables import operators

pytestmark = pytest.mark.process


def work():
    """Every operator that torch counts, with the arguments that change the count or prevent it."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    a, b = torch.randn(4, 5, 6), torch.randn(4, 6, 7)
    torch.mm(a[0], b[0])
    torch.addmm(torch.randn(5, 7), a[0], b[0])
    torch.bmm(a, b)
    torch.baddbmm(torch.randn(4, 5, 7), a, b)
    torch.mm(torch.randn(3, 0), torch.randn(0, 3))
    for tensor in (a * 2, a + 1, a + a, torch.tensor(2.0) * a, a.mul(3), 3 * a):
        tensor.mul_(1)
    image = torch.randn(2, 4, 16, 16, requires_grad=True)
    for options in ({}, {"stride": 2, "padding": (1, 0)}, {"dilation": 2}, {"padding": "same"}):
        functional.conv2d(image, torch.randn(8, 4, 3, 3, requires_grad=True), **options).sum().backward()
    functional.conv2d(image, torch.randn(8, 2, 3, 3), groups=2)
    functional.conv2d(image[0], torch.randn(8, 4, 3, 3))


def forgotten():
    """What torch's profiler does not count: other convolutions, backward passes, attention."""
    import torch
    from torch.nn import functional

    image = torch.randn(2, 4, 9, 9, requires_grad=True)
    functional.conv2d(image, torch.randn(8, 4, 3, 3, requires_grad=True)).sum().backward()
    functional.conv2d(image.detach(), torch.randn(8, 4, 3, 3, requires_grad=True), padding="same").sum().backward()
    functional.conv_transpose2d(image, torch.randn(4, 3, 3, 3, requires_grad=True), stride=2).sum().backward()
    functional.conv1d(image[0], torch.randn(3, 9, 3), padding=1)
    functional.conv3d(torch.randn(1, 2, 6, 6, 6), torch.randn(3, 2, 3, 3, 3), stride=2)
    query, key = torch.randn(2, 4, 16, 8, requires_grad=True), torch.randn(2, 4, 12, 8, requires_grad=True)
    functional.scaled_dot_product_attention(query, key, key).sum().backward()
    functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    functional.scaled_dot_product_attention(query, key, key, attn_mask=torch.ones(16, 12, dtype=torch.bool))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Records each job once; gives the profiler and the trace."""

    @functools.cache
    def record(job):
        from torch.profiler import ProfilerActivity, profile

        path = tmp_path_factory.mktemp("recorded") / "t.json"
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as prof:
            job()
        prof.export_chrome_trace(str(path))
        return prof, read(path)

    return record


def by_name(table):
    return {row["name"]: row["flops"] for row in table.iter_rows(named=True) if row["flops"]}


@pytest.mark.parametrize("job", [work, forgotten])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_count_is_that_of_torch(recorded, job, grouped):
    prof, trace = recorded(job)
    table = operators.table(trace, by="shapes" if grouped else ())
    keys = ["name", "input_shapes"][: 1 + grouped]
    ours = {tuple(map(str, row[:-1])): row[-1] for row in table.select(*keys, "flops").iter_rows() if row[-1]}
    theirs = {
        (row.key, str(row.input_shapes))[: 1 + grouped]: row.flops
        for row in prof.key_averages(group_by_input_shape=grouped)
        if row.flops
    }
    assert ours == theirs
    assert ours


def test_omitted_operations_equal_those_of_flop_counter(recorded):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        forgotten()
    theirs = {f"aten::{op.__name__}": flops for op, flops in counter.get_flop_counts()["Global"].items()}
    ours = by_name(operators.table(recorded(forgotten)[1], all_flops=True))
    # the profiler sees a convolution where it is called, the other counter where it is computed
    ours["aten::convolution"] += ours.pop("aten::conv2d")
    assert {name: flops for name, flops in ours.items() if name in theirs} == theirs
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"  # which the counter of torch 2.4 forgets as well
    assert set(ours) - set(theirs) <= {"aten::mul", "aten::add", attention, f"{attention}_backward"}


def test_without_all_flops_the_count_equals_torch(recorded):
    assert set(by_name(operators.table(recorded(forgotten)[1]))) <= {"aten::conv2d", "aten::mul", "aten::add"}
