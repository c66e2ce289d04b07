"""`perfhooks try`: what a person types, what comes out, and what the page of the run says afterwards."""

import contextlib
import csv
import io
import json
import sys

import pytest
import torch
from terminal import Terminal
from test_trying import Costs, Machine

from perfhooks import Profiler, testing
from perfhooks.cli import app
from perfhooks.cli.actions import trying as work
from perfhooks.report.page.data import read_run
from perfhooks.trials import timing, trial

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a training in float64."""
    out = tmp_path_factory.mktemp("runs")
    model = torch.nn.Linear(256, 256).double()
    x = torch.randn(256, 256, dtype=torch.float64)
    with Profiler(
        out=out, run="mine", schedule="wait=1 warmup=1 active=2 repeat=1", record_shapes=True, background=False
    ) as profiler:
        for _ in range(5):
            model(x).sum().backward()
            profiler.step()
    return out / "mine"


@pytest.fixture
def run(monkeypatch, capfd):
    """Runs the command line in this process, by a clock that only products of matrices move on."""

    def call(*arguments):
        machine = Machine()
        monkeypatch.setattr(timing, "timer", machine.clock)
        monkeypatch.setattr(trial, "COMPARABLE", (0.0, 1e9))
        monkeypatch.setattr(sys, "argv", ["perfhooks", "try", "--seconds", "1e6", *map(str, arguments)])
        with Costs(machine, by_bytes), pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call


def by_bytes(name, tensors):
    """Whatever else is tried would never fill a block, so each test says what it tries."""
    return 1e-8 * sum(each.nbytes for each in tensors) if name in ("aten::mm", "aten::addmm") else 0.0


def test_finding_is_tried_and_shown_beside_the_estimate(run, folder):
    code, out, err = run(folder, "--finding", "float64-products", "--csv")
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["variant"] for row in rows} == {"float32"}
    assert {row["verdict"] for row in rows} == {"faster"}
    assert {row["operator"] for row in rows} == {"aten::linear", "aten::mm"}
    assert all(float(row["times"]) == pytest.approx(2) for row in rows)
    assert "a step of" in err
    (kept,) = read_run(folder / "report.json").tried
    assert (kept.rule, kept.variant, kept.device) == ("float64-products", "float32", "cpu")
    assert kept.times == pytest.approx(2)
    assert kept.saved_ms == pytest.approx(sum(float(row["saved_ms"]) for row in rows), rel=0.01)
    assert '"tried"' in (folder / "report.html").read_text()
    # another finding leaves what was measured of this one
    run(folder, "--op", "mm", "--variant", "channels_last")
    assert len(read_run(folder / "report.json").tried) == 1


def test_a_pipe_gets_the_table_and_the_result_in_eight_lines(run, folder):
    code, out, err = run(folder, "--finding", "float64-products")
    assert (code, err.count("saves")) == (0, 0)
    last = out.rstrip().splitlines()[-8:]
    assert any(line.startswith("If nothing else changes, a step of") for line in last)
    assert last[-1].startswith("  float32: ")


def test_numbers_have_three_digits_and_unknown_ends_are_empty(run, folder):
    _, out, _ = run(folder, "--op", "mm", "--variant", "float32", "--csv")
    for row in csv.DictReader(io.StringIO(out)):
        digits = [
            row[name].partition("e")[0].replace(".", "").strip("0") for name in ("times", "recorded_ms", "saved_ms")
        ]
        assert all(len(each) <= 3 for each in digits), row
    few = timing.Timing(outcome="undecided", ratio=1, low=1 / timing.UNBOUNDED, high=timing.UNBOUNDED, a=(1,), b=(1,))
    assert (few.columns["low"], few.columns["high"]) == (None, None)


def test_json_lists_operators_that_cannot_run_again(run, folder):
    code, out, _ = run(folder, "--json", "--op", "mm", "--limit", 1, "--variant", "float32")
    found = json.loads(out)
    assert code == 0
    assert found["rows"][0]["variant"] == "float32"
    assert 0 < found["covered"] <= 1
    assert all(each["reason"] for each in found["left"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--variant", "faster"), "variant must be one of float32, bf16"),
        (("--finding", "host-bound"), "finding must be one of"),
        (("--op", "aten::conv2d", "--op", "bmm"), "there is no call of aten::conv2d or bmm in"),
        (("--op", "mm", "--finding", "float64-products"), "use either --op or --finding"),
        (("--limit", "0"), "limit must be an integer >= 1"),
        (("--seconds", "0"), "seconds must be a number above 0"),
        (("--memory", "-1"), "memory must be a number of GiB above 0"),
        (("--device", "nowhere"), "device must be a device of torch"),
    ],
)
def test_invalid_options_are_rejected_in_one_line(run, folder, arguments, said):
    code, out, err = run(folder, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_removed_option_is_an_unknown_option(run, tmp_path):
    answers = [run(tmp_path / "absent.json", option, tmp_path / "x.json") for option in ("--export", "--nothing")]
    assert [(code, out) for code, out, _ in answers] == [(2, "")] * 2
    assert "No such option: --export" in answers[0][2]
    assert answers[0][2].count("\n") <= answers[1][2].count("\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ([[2**62] * 64] * 2, "needs 4.29e+09 GiB"),
        ([[2**62] * 100_000] * 2, "its arguments were not recorded"),
        ([["x", -1], [[2], 3]], "its arguments were not recorded"),
        ([[[2], [3]]] * 2, "its arguments were not recorded"),
    ],
    ids=["endless", "deep", "wrong", "nested"],
)
def test_shapes_that_no_tensor_has_are_a_line(run, tmp_path, dims, said):
    shapes = {"Input_Dims": dims, "Input_type": ["float", "float"]}
    events = [testing.step_mark(0, 0, 1000), testing.op("aten::mm", 0, 500, **shapes)]
    _, out, err = run(testing.write_trace(tmp_path / "t.json", events), "--variant", "bf16", "--csv")
    assert said in out + err


WAITS = """
import time
from perfhooks.trials import trial, variants

class Waits:
    # does nothing, and of the second operator never ends
    name, tolerance = "waits", 1
    calls = 0

    def suits(self, call):
        return True

    def changed(self, call):
        self.calls += 1
        if self.calls > 1:
            with open("/dev/tty", "w") as terminal:  # what a child says is shown to nobody
                print("WAITING", file=terminal, flush=True)
            time.sleep(3600)
        return call.with_tensors(lambda each: each.clone())

variants.VARIANTS = (Waits(),)
trial.COMPARABLE = (0.0, 1e9)  # whatever else the machine does
"""


def test_ctrl_c_shows_the_measurements_so_far(folder):
    with contextlib.closing(Terminal("try", str(folder), "--seconds", "1e6", first=WAITS)) as terminal:
        terminal.read_until(lambda: "WAITING" in terminal.text)
        assert "trying 2 of 10" in terminal.text
        terminal.press(b"\x03")
        assert terminal.end() == 130
        shown = terminal.text.partition("WAITING")[2]
        assert "waits" in shown, "the row of the first operator"
        assert "Interrupted: fewer operators were measured than planned." in shown
        assert "; 2 operators tried here" in shown
        assert "Traceback" not in terminal.text


def test_recording_without_shapes_explains_how_to_record_shapes(run, tmp_path):
    path = testing.write_trace(tmp_path / "plain.json", [testing.op("aten::mm", 0, 500)])
    code, _, err = run(path)
    assert code == 2
    assert "record_shapes=True" in err


def test_update_is_selected_by_the_name_in_the_table():
    wanted = work.wanted(["Optimizer.step#SGD", "mm"], None)
    assert [name for name in ("Optimizer.step#SGD.step", "aten::mm", "Optimizer.step#Adam.step") if wanted(name)] == [
        "Optimizer.step#SGD.step",
        "aten::mm",
    ]
