"""On a machine with a GPU: device columns against torch's own table, and the rules that hold for every step."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from perfhooks.trace import read
from perfhooks.trace.tables import kernels, operators, steps

pytestmark = [pytest.mark.gpu, pytest.mark.recorder]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three training steps on the GPU: the window's folder, and torch's own table of the same capture."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from perfhooks.record.loop.profiler import Profiler

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    model = model.cuda()
    model(torch.zeros(1, 3, 32, 32, device="cuda"))
    optimizer = torch.optim.AdamW(model.parameters())
    out = tmp_path_factory.mktemp("gpu")
    with Profiler(schedule="wait=2 warmup=2 active=3 repeat=1", out=out, run="r", background=False) as prof:
        for _ in range(8):
            with prof.region("transfer"):
                images = torch.randn(32, 3, 32, 32).cuda()
            with prof.region("forward"):
                loss = model(images).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return out / "r/train-000004-000006", prof.key_averages()


def test_device_times_equal_those_of_torch(recorded):
    """By operator, to 1 us or 0.1%; labels differ on purpose, as the operator table says."""
    folder, averages = recorded
    table = operators.table(read(folder / "rank0.pt.trace.json.gz"))
    found = {row["name"]: row for row in table.iter_rows(named=True) if row["kind"] == "op"}
    expected = {row.key: row for row in averages if row.key in found}
    assert len(expected) > 10
    for name, row in expected.items():
        assert found[name]["count"] == row.count, name
        assert (found[name]["self_device_ms"] or 0) * 1e3 == pytest.approx(row.self_device_time_total, rel=1e-3, abs=1)
        assert (found[name]["device_ms"] or 0) * 1e3 == pytest.approx(row.device_time_total, rel=1e-3, abs=1), name


def test_the_parts_of_every_step_sum(recorded):
    table = steps.table(read(recorded[0] / "rank0.pt.trace.json.gz"))
    assert table["step"].to_list() == [4, 5, 6]
    for row in table.iter_rows(named=True):
        device = (
            row["compute_ms"] + row["exposed_comm_ms"] + row["exposed_copy_ms"] + row["other_work_ms"] + row["idle_ms"]
        )
        assert device == pytest.approx(row["device_span_ms"], abs=1e-6)
        assert row["backward_ms"] > 0
        assert row["transfer_ms"] > 0
        assert row["kernels"] > 0


def test_every_kernel_is_counted_once(recorded):
    trace = read(recorded[0] / "rank0.pt.trace.json.gz")
    assert kernels.table(trace)["count"].sum() == len(trace.device_rows)
    with (Path(recorded[0]) / "rank0.kernels.csv").open() as file:
        assert sum(int(row["count"]) for row in csv.DictReader(file)) == len(trace.device_rows)
