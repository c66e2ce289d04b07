"""The table of categories: every name where it belongs, and parts that sum to the whole."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from twins import TRACES

from perfhooks import testing
from perfhooks.testing import op
from perfhooks.trace import Kind, read
from perfhooks.trace.names import ranges, work_kinds
from perfhooks.trace.names.communication import library
from perfhooks.trace.nesting import intervals
from perfhooks.trace.tables import categories, kernels

DATA = Path(__file__).parent / "data"


def test_pointwise_operators_of_torch_are_at_least_elementwise():
    tagged = [name for name in dir(torch.ops.aten) if not name.startswith("__")]
    overloads = {name: getattr(torch.ops.aten, name) for name in tagged}
    pointwise = [
        f"aten::{name}"
        for name, each in overloads.items()
        if hasattr(each, "overloads")
        and all(torch.Tag.pointwise in getattr(each, overload).tags for overload in each.overloads())
    ]
    assert len(pointwise) > 50
    assert {name for name in pointwise if work_kinds.of_operator(name) == "other"} == set()


def judged(table):
    """Kinds that somebody who knows what they do gave to kernels, without the rules: kind, name, why it stays other."""
    rows = [line.split("\t") for line in (DATA / table).read_text("utf-8").splitlines()[1:]]
    return [(kind, name, "".join(why)) for kind, name, *why in rows]


def said(name):
    """What the table of categories says of a kernel by its name alone; copies and memsets have a class of their own."""
    moves = re.match(r"Mem(?:cpy|set) ", name)
    return "communication" if library(name) else "copies" if moves else work_kinds.of_kernel(name)


@pytest.mark.parametrize("table", ["kernel_kinds.tsv", "library_kernels.tsv"])
def test_kernels_have_the_kinds_that_an_expert_assigned(table):
    """Those of 226 recorded traces, and such as stand in the code of libraries."""
    rows = judged(table)
    assert {kind for kind, _, _ in rows} <= set(categories.CATEGORIES)
    assert [(name, kind, told) for kind, name, _ in rows if (told := said(name)) != kind] == []


def test_operator_name_decides_its_kind(tmp_path):
    for kind, name, _ in judged("operator_kinds.tsv"):
        trace = read(testing.write_trace(tmp_path / "t.json", [op(name, 0, 10)]))
        assert categories.table(trace)["category"].to_list() == [kind], name


def test_kernels_of_kind_other_have_a_reason():
    rows = judged("kernel_kinds.tsv")
    assert len(rows) == 518
    assert 0 < sum(kind == "other" for kind, _, _ in rows) < 10
    assert all((kind == "other") == bool(why) for kind, _, why in rows)


def test_names_of_any_length_are_classified_at_once():
    for part in ("mean_", "fused_", "triton_", "copy_", "_<", "chunk_"):
        for front in ("", "triton_poi_fused_", "triton_red_fused_"):
            work_kinds.of_kernel(front + part * 50_000)  # whatever somebody wrote into a file


def check_sums(trace):
    """The device's to the table of kernels, class by class where classes are the same; the host's to its operators."""
    table = categories.table(trace)
    assert table["category"].is_unique().all()
    whole = kernels.table(trace)
    assert (table["kernels"].sum() or 0) == len(trace.device_rows)
    assert (table["device_ms"].sum() or 0) == pytest.approx(whole["total_ms"].sum(), abs=1e-6)
    by_class = dict(whole.group_by("class").agg(pl.col("total_ms").sum()).iter_rows())
    by_category = dict(table.select("category", "device_ms").iter_rows())
    assert (by_category.get("communication") or 0) == pytest.approx(by_class.get("communication", 0), abs=1e-6)
    assert (by_category.get("copies") or 0) >= by_class.get("copy", 0) + by_class.get("set", 0) - 1e-6
    ops = trace.rows(Kind.OP)
    ops = (
        ops[[not re.match(ranges.AROUND_OPERATORS, trace.names[each]) for each in trace.name[ops]]] if len(ops) else ops
    )
    ran = sum(
        intervals.total(intervals.union(trace.start[mine], trace.end[mine]))
        for mine in (ops[trace.thread[ops] == thread] for thread in np.unique(trace.thread[ops]))
    )
    assert (table["host_ms"].sum() or 0) == pytest.approx(ran * 1e-6, abs=1e-6)
    assert (table["calls"].sum() or 0) == len(ops)
    return table


@pytest.mark.parametrize("name", TRACES)
def test_parts_of_a_trace_sum_to_the_trace(traces, name):
    check_sums(read(traces / f"{name}.json.gz"))


MADE_OF = {
    "a100-ddp2-train-3steps": ("convolution", 30),
    "v100-resnet-train-5steps": ("convolution", 60),
    "h100-bert-small": ("gemms", 60),
    "triton-compile": ("gemms", 60),
    "mi210-gpu-only": ("convolution", 35),
}
"""The largest part, and its least share in percent."""


@pytest.mark.slow
def test_categories_of_real_models_are_complete(recordings):
    for path in recordings.glob("*.json.gz"):
        top = check_sums(read(path)).row(0, named=True)
        first, least = MADE_OF.get(path.name.removesuffix(".json.gz"), (top["category"], -1))
        assert top["category"] == first, path.name
        assert (top["device_percent"] or 0) > least, path.name


def test_report_has_a_light_and_a_dark_colour_for_each_kind():
    style = (Path(categories.__file__).parents[2] / "report/page/templates/page.css").read_text("utf-8")
    assert {kind: f"--work-{kind}: light-dark(#" in style for kind in categories.CATEGORIES} == dict.fromkeys(
        categories.CATEGORIES, True
    )
