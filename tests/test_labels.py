"""The table of labels: what somebody labelled, by total time, wherever tables are shown."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch
from torch.profiler import record_function

import perfhooks
from perfhooks import OptionError, Profiler, testing
from perfhooks.cli.actions import show
from perfhooks.report.page import markdown, window_data
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, op, step_mark
from perfhooks.trace import labels, operators, read

MATRIX = torch.ones(32, 32)
EVENTS = [
    *(step_mark(0, 0, 1_000_000), step_mark(1, 1_000_000, 2_000_000)),
    *(annotation("LABEL2", 100_000, 900_000), annotation("LABEL2", 1_100_000, 1_700_000)),
    *(op("aten::mm", 200_000, 500_000), annotation("mask indices", 500_000, 600_000)),
    *(annotation("forward", 920_000, 990_000), annotation("Optimizer.step#SGD.step", 1_750_000, 1_800_000)),
    annotation("nccl:all_reduce", 1_810_000, 1_820_000),
]
OWN = {"LABEL2": (2, 1.4, 0.7, 1.0, 70.0), "mask indices": (1, 0.1, 0.1, 0.1, 5.0)}
"""Calls, total, mean, self in milliseconds, share in percent of the two that were recorded."""


@pytest.fixture
def trace(tmp_path):
    return read(testing.write_trace(tmp_path / "t.json", EVENTS))


@pytest.mark.recorder
def test_record_function_label_equals_key_averages(tmp_path):
    with Profiler(activities=["cpu"]) as prof, record_function("model_inference"):
        for _ in range(50):
            MATRIX @ MATRIX
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    found = read(tmp_path / "t.json")
    (row,) = labels.table(found).iter_rows(named=True)
    (torchs,) = (each for each in prof.key_averages() if each.key == "model_inference")
    assert (row["name"], row["own"], row["calls"]) == ("model_inference", True, torchs.count)
    assert row["total_ms"] * 1000 == pytest.approx(torchs.cpu_time_total)
    assert row["self_ms"] * 1000 == pytest.approx(torchs.self_cpu_time_total)
    whole = operators.table(found)["exclusive_cpu_ms"].sum()
    assert row["percent"] <= 100 * (1 + 1e-9)
    assert row["total_ms"] <= whole + 1e-6


def test_labels_have_calls_times_and_shares(trace):
    table = labels.table(trace)
    rows = {row["name"]: row for row in table.iter_rows(named=True)}
    measured = ("calls", "total_ms", "mean_ms", "self_ms", "percent")
    assert {name: pytest.approx(wanted) for name, wanted in OWN.items()} == {
        name: tuple(rows[name][column] for column in measured) for name in OWN
    }
    assert table["name"].to_list()[:3] == ["LABEL2", "mask indices", "ProfilerStep*"]


def test_labels_of_torch_and_step_parts_are_not_own(trace):
    table = labels.table(trace)
    assert table.filter(~table["own"])["name"].to_list() == [
        *("ProfilerStep*", "forward", "Optimizer.step#SGD.step", "nccl:all_reduce"),
    ]


def test_hooks_of_lightning_are_no_labels_of_the_user(tmp_path):
    names = ("[Strategy]DDPStrategy.backward", "[LightningModule]Net.on_fit", "[_EvaluationLoop].val_next", "[mine] a")
    events = [annotation(name, 10 * place, 10 * place + 5) for place, name in enumerate(names)]
    table = labels.table(read(testing.write_trace(tmp_path / "t.json", events)))
    assert table.filter("own")["name"].to_list() == ["[mine] a"]


@pytest.mark.parametrize("name", ["a100-ddp2-train-3steps", "sampled-128ranks-rank0"])
def test_recorded_labels_have_the_times_of_the_operator_table(recordings, name):
    found = read(recordings / f"{name}.json.gz")
    wanted = operators.table(found)
    wanted = {row["name"]: row for row in wanted.iter_rows(named=True) if row["kind"] == "annotation"}
    rows = {row["name"]: row for row in labels.table(found).iter_rows(named=True)}
    assert rows.keys() == wanted.keys()
    for label, row in rows.items():
        assert (row["calls"], row["total_ms"], row["self_ms"], row["device_ms"]) == tuple(
            wanted[label][column] for column in ("count", "cpu_ms", "self_cpu_ms", "device_ms")
        )


def test_handler_writes_labels_in_the_requested_order(trace):
    def names(**options):
        (artifact,) = perfhooks.LabelTable(**options).artifacts(Capture(), trace)
        assert artifact.name == "labels.csv"
        file = io.BytesIO()
        artifact.write(file)
        return [row["name"] for row in csv.DictReader(io.StringIO(file.getvalue().decode()))]

    assert names()[0] == "LABEL2"
    assert names(sort_by="cpu_time_total", row_limit=2) == ["ProfilerStep*", "LABEL2"]
    with pytest.raises(OptionError, match=r"'cpu_time_totl'.*did you mean 'cpu_time_total'"):
        perfhooks.LabelTable(sort_by="cpu_time_totl")


def test_report_and_markdown_begin_with_own_labels(trace):
    assert window_data.reduce(Capture(), trace)["labels"]["name"][0] == "LABEL2"
    text = markdown.of_trace(Path(trace.path))
    assert "| LABEL2 | 2 | 1.4 | 0.7 | 1 | 70% |" in text
    assert text.index("LABEL2") < text.index("Where the step goes")
    assert "ProfilerStep" not in text


def test_without_own_labels_there_is_no_table_of_labels(tmp_path, capsys, monkeypatch):
    path = testing.write_trace(tmp_path / "t.json", [step_mark(0, 0, 1000), op("aten::mm", 100, 200)])
    assert "labels" not in window_data.reduce(Capture(), read(path))
    show.show(str(path), (), form="table")
    assert "labels" not in capsys.readouterr().out
    path = testing.write_trace(tmp_path / "labelled.json", EVENTS)
    show.show(str(path), (), form="table")
    text = capsys.readouterr().out
    assert text.startswith("labels ")
    assert text.index("LABEL2") < text.index("steps ")


@pytest.mark.worker
def test_the_summary_begins_with_the_labels_of_the_last_window(tmp_path):
    schedule = perfhooks.Schedule(wait=0, warmup=1, active=2, repeat=1)
    with Profiler(schedule=schedule, on_trace_ready=["steps", "labels"], activities=["cpu"], out=tmp_path) as prof:
        for _ in range(3):
            with record_function("linear pass"):
                MATRIX @ MATRIX
            prof.step()
    text = prof.summary()
    assert "linear pass" in text.splitlines()[1]
    assert text.index("linear pass") < text.index("wall")
