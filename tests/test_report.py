"""The data of the page, and the files of a run it comes from, without a browser."""

import dataclasses
import json
import re
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
from many_ranks import ManyRanks

from perfhooks.analysis import flames
from perfhooks.analysis.findings.loader_plan import BatchCost, Demand, LoaderPlan
from perfhooks.core import json_values
from perfhooks.core.errors import PerfhooksError
from perfhooks.report import handlers
from perfhooks.report import page as report
from perfhooks.report.page import page, run_data, svg, terminal_tables, window_data
from perfhooks.report.page.data import RunData
from perfhooks.report.page.definitions import DEFINITIONS
from perfhooks.report.page.headline import described
from perfhooks.run.capture import Capture, Cost, Place
from perfhooks.run.layout import PAGE_DATA, SHARE
from perfhooks.run.publishing import publish_json
from perfhooks.testing import annotation, kernel, launch, memory, op, python_frame, step_mark, write_trace
from perfhooks.trace import read
from perfhooks.trace.tables import stacks, steps

HOSTILE = '</script><img src=x onerror="alert(1)">'


def events():
    """Two steps that load data, compute on a device and use memory."""
    found = []
    for number, start in ((4, 0), (5, 1000_000)):
        found += [
            step_mark(number, start, start + 900_000),
            annotation("data", start, start + 300_000),
            python_frame("train.py(3): main", start, start + 900_000),
            op("aten::mm", start + 300_000, start + 500_000, external=number),
            launch(number, start + 310_000, start + 320_000),
            kernel(number, start + 400_000, start + 700_000, external=number),
            memory(start + 350_000, 1 << 20, allocated=2 << 20),
        ]
    return found


@pytest.fixture
def trace(tmp_path):
    return read(write_trace(tmp_path / "trace.json", events()))


def window_of(folder, name="train-000004-000005", rank=0, *, trace=None, **facts):
    """A finished window in a run folder, with its share of the page."""
    facts = {"stage": "train", "first": 4, "last": 5, "reached": 5, "summary": {"wall_ms": 0.9}} | facts
    place = Place(folder / name, rank)
    capture = Capture(rank=rank, **facts)
    place.save(capture)
    if trace is not None:
        publish_json(place.artifact(SHARE), window_data.reduce(capture, trace))
    return place


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    publish_json(folder / "run.json", {"format": 1, "command": ["train.py"], "host": "here", "windows": []})
    return folder


def test_report_lists_ranks_without_files(run, trace):
    """As where the disk of one of two is full."""
    window_of(run, trace=trace)
    assert "ranks_together" not in run_data.gather(run)
    manifest = json.loads((run / "run.json").read_text())
    publish_json(run / "run.json", manifest | {"world_size": 2, "ranks": "all"})
    missing = run_data.gather(run)["ranks_together"]["missing"]
    assert "rank 1 has no files, although a recording was requested" in [entry["text"] for entry in missing]
    (run / "rank1.timeline.csv").write_text("")
    missing = run_data.gather(run)["ranks_together"]["missing"]
    assert ("train-000004-000005", [1]) in [(entry["window"], entry["ranks"]) for entry in missing]


# --- one window ---


def test_a_window_is_reduced_to_plain_data(trace):
    made = window_data.reduce(Capture(first=4, last=5, reached=5), trace)
    assert "problems" not in made
    assert msgspec.json.decode(msgspec.json.encode(made)) == made
    assert made["steps"]["rows"]["step"] == [4, 5]
    assert made["steps"]["rows"]["data_ms"] == [0.3, 0.3]
    assert made["steps"]["median_ms"] == 0.9
    assert made["kernels"]["rows"]["name"] == ["gemm"]
    assert made["kernels"]["classes"] == {"class": ["compute"], "total_ms": [0.6], "count": [2]}
    assert made["memory"]["alive"]["bytes"][0] == 1 << 20
    assert set(made["operators"]) >= {"name", "step"}
    assert made["checks"] is not None


def test_columns_of_the_step_table_are_in_the_report(trace):
    """Whoever adds one to the table adds it to the list in `sections.js` as well."""
    script = Path(report.__file__).with_name("templates").joinpath("sections.js").read_text(encoding="utf-8")
    figures = Path(report.__file__).with_name("templates").joinpath("figures.js").read_text(encoding="utf-8")
    shown = set(re.findall(r'key: "(\w+)"', script)) | set(re.findall(r'^  \["(\w+)", ', figures, re.MULTILINE))
    columns = set(steps.table(trace).columns) - {"rank", "stage"}
    assert columns - shown == set()


def test_every_term_of_a_column_has_a_definition():
    """The page shows none where there is none, and says nothing of it."""
    asked, group = set(), ""
    words = r'of = \(term\) => meaning\("([^"]+)"|meaning\("([^"]+)", "([^"]+)"\)|\bof\("([^"]+)"\)|\bterm: "([^"]+)"'
    for script in Path(report.__file__).parent.glob("templates/*.js"):
        for begun, other, named, by_of, of_steps in re.findall(words, script.read_text(encoding="utf-8")):
            group = begun or group
            asked |= {(other, named), (group if by_of else "", by_of), ("steps" if of_steps else "", of_steps)}
    asked -= {("", "")}
    assert len(asked) > 30
    assert sorted((group, term) for group, term in asked if term not in DEFINITIONS[group]) == []


@pytest.mark.parametrize(("workers", "is_shown"), [(1, True), (8, False)])
def test_plan_without_a_change_is_hidden(trace, monkeypatch, workers, is_shown):
    needs = Demand(rest_s=0.05, waited_s=0.05, cpus=16, workers=workers)
    plan = LoaderPlan.for_cost(BatchCost(cpu_s=0.1), needs)
    assert plan.is_larger == is_shown
    monkeypatch.setattr("perfhooks.analysis.findings.data.LoaderUse.shown_plan", lambda *_: plan)
    summary = window_data.reduce(Capture(), trace)
    assert ("plan" in run_data._rate_unprofiled(summary, Capture())) == is_shown


def test_values_that_a_trace_lacks_are_absent(tmp_path):
    made = window_data.reduce(Capture(), read(write_trace(tmp_path / "t.json", [op("aten::add", 0, 10)])))
    assert not {"kernels", "memory", "modules", "problems"} & set(made)


def test_failed_section_is_named_and_others_remain(trace, monkeypatch):
    def fail(*_):
        raise ValueError("no such luck")

    monkeypatch.setitem(window_data._PARTS, "kernels", fail)
    made = window_data.reduce(Capture(), trace)
    assert made["problems"] == ["kernels: ValueError: no such luck"]
    assert "kernels" not in made
    assert "steps" in made


@pytest.mark.parametrize("name", ["a100-ddp2-train", "b200-eager-stacks-shapes", "mi210-gpu-only"])
def test_windows_are_complete(traces, name):
    made = window_data.reduce(Capture(), read(traces / f"{name}.json.gz"))
    assert "problems" not in made


def test_unknown_columns_are_omitted():
    table = pl.DataFrame({"a": [1.23456789123, None], "b": [None, None], "c": ["x" * 500, "y"], "d": [2.0, 0.5]})
    made = json_values.columns(table)
    assert made["a"] == [1.234568, None]
    assert "b" not in made
    assert len(made["c"][0]) < 260
    assert made["d"] == [2, 0.5]


def test_names_that_are_invalid_in_json_are_repaired():
    assert msgspec.json.decode(msgspec.json.encode(json_values.text("a\ud800b"))) == "a\\ud800b"


# --- flame graphs ---


def children(flame):
    """The sum of each node's children."""
    sums = [0] * len(flame["value"])
    for parent, value in zip(flame["parent"], flame["value"], strict=True):
        if parent >= 0:
            sums[parent] += value
    return sums


def test_a_flame_graph_loses_no_time(traces):
    for by in ("host", "device"):
        summed = stacks.summed(read(traces / "a100-ddp2-train.json.gz"), by)
        flame = flames.tree(summed)
        assert flame["value"][0] == summed.values.sum()
        assert all(inner <= value for inner, value in zip(children(flame), flame["value"], strict=True))
        assert len(flame["value"]) <= 1500


def test_small_frames_are_summed_by_parent():
    # a;b a;c a;d e
    parents, values = np.array([-1, 0, 0, 0, -1]), np.array([0, 9000, 3, 4, 1])
    flame = flames.tree(stacks.Summed(list("abcde"), parents, np.arange(5), values))
    names = [flame["names"][frame] for frame in flame["frame"]]
    assert list(zip(names, flame["parent"], flame["value"], strict=True)) == [
        ("all", -1, 9008),
        ("a", 0, 9007),
        ("b", 1, 9000),
        ("(other)", 1, 7),
        ("(other)", 0, 1),
    ]


@pytest.mark.parametrize(("small", "name"), [(24, "(other)"), (25, "b")])
def test_frame_of_exactly_the_minimum_share_is_shown(small, name):
    flame = flames.tree(
        stacks.Summed(list("ab"), np.array([-1, -1]), np.arange(2), np.array([100 - small, small])), share=0.25
    )
    assert [flame["names"][frame] for frame in flame["frame"]] == ["all", "a", name]


def test_flame_graph_has_at_most_the_given_nodes():
    names, parents = [f"f{number}" for number in range(1000)], np.repeat([-1, 0], 500)
    parents[500:] = np.arange(500)
    flame = flames.tree(stacks.Summed(names, parents, np.arange(1000), np.repeat([0, 1], 500)), nodes=50)
    assert len(flame["value"]) <= 50
    assert flame["value"][0] == 500


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train.py(12): main", "code"),
        ("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1): _call_impl", "library"),
        ("<built-in function next>", "library"),
        ("threading.py(331): wait", "library"),
        ("lightning/pytorch/loops/fit_loop.py(217): run", "library"),
        ("lightning_resnet18.py(63): <module>", "code"),
        ("project/models/net.py(7): forward", "code"),
        ("nn.Module: Linear_0", "module"),
        ("aten::mm", "operator"),
        ("ConvolutionBackward0", "operator"),
        ("cudaLaunchKernel", "runtime"),
        ("hipMemcpyAsync", "runtime"),
        ("forward", "label"),
        ("cute", "label"),
        ("(other)", "other"),
    ],
)
def test_frames_are_distinguished_by_name(name, kind):
    assert flames.kind(name) == kind


def test_chart_contains_no_foreign_markup(tmp_path):
    import xml.etree.ElementTree as ET

    names = [HOSTILE, "\x00]]>", "b"]
    made = svg.flame(
        flames.tree(stacks.Summed(names, np.array([-1, 0, -1]), np.arange(3), np.array([0, 5, 5]))),
        title=f"a & {HOSTILE}",
    )
    root = ET.fromstring(made)
    assert HOSTILE in root.find(".//{*}title").text
    titles = [each.text.splitlines()[0] for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert HOSTILE in titles
    assert "�]]>" in titles
    assert not list(root.iter("{http://www.w3.org/2000/svg}img"))


def test_svg_height_fits_its_deepest_frame():
    import xml.etree.ElementTree as ET

    names = [str(depth) for depth in range(30)]
    chain = stacks.Summed(names, np.arange(-1, 29), np.arange(30), np.append(np.zeros(29, int), 5))
    root = ET.fromstring(svg.flame(flames.tree(chain), title="deep"))
    frames = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("y")]
    lowest = max(float(each.get("y")) + float(each.get("height")) for each in frames)
    assert lowest > 29 * 10
    assert 0 <= float(root.get("viewBox").split()[3]) - lowest <= 60


# --- the run ---


def test_windows_are_in_the_order_of_their_end(run, trace):
    window_of(run, "train-000010-000011", time=20.0, trace=trace, first=10, last=11)
    window_of(run, "train-000004-000005", time=10.0, trace=trace)
    made = run_data.gather(run)
    assert [each["name"] for each in made["windows"]] == ["train-000004-000005", "train-000010-000011"]
    assert made["windows"][0]["details"]["0"]["steps"]["count"] == 2
    assert list(made["run"]["command"]) == ["train.py"]


def test_unfinished_and_broken_windows_are_omitted(run, trace):
    window_of(run, trace=trace)
    window_of(run, "train-000010-000011", state="spooled")
    window_of(run, "train-000020-000021").capture_file.write_text("{")
    assert [each["name"] for each in run_data.gather(run)["windows"]] == ["train-000004-000005"]


def test_window_with_a_broken_summary_keeps_its_numbers(run):
    window_of(run).artifact(SHARE).write_text("{")
    made = run_data.gather(run)["windows"][0]
    assert made["details"] == {}
    assert made["ranks"][0]["mean"] == {"wall_ms": 0.9}


@pytest.mark.slow
def test_lowest_and_slowest_of_many_ranks_come_first(run, trace, monkeypatch):
    for rank in range(6):
        window_of(run, rank=rank, trace=trace, summary={"wall_ms": 9.0 if rank == 4 else 1.0})
    size = max(path.stat().st_size for path in run.glob(f"*/*{SHARE}"))
    monkeypatch.setattr(run_data, "_BUDGET", int(2.5 * size))
    made = run_data.gather(run)["windows"][0]
    assert list(made["details"]) == ["0", "4"]
    assert [each["rank"] for each in made["ranks"]] == list(range(6))


@pytest.mark.slow
def test_late_windows_have_room_before_early_ones(run, trace, monkeypatch):
    for number in range(4):
        window_of(run, f"train-{number:06d}-{number:06d}", time=float(number), trace=trace)
    size = max(path.stat().st_size for path in run.glob(f"*/*{SHARE}"))
    monkeypatch.setattr(run_data, "_BUDGET", int(2.5 * size))
    assert [bool(each["details"]) for each in run_data.gather(run)["windows"]] == [False, False, True, True]


def test_the_clock_of_all_steps_is_thinned_by_medians(run):
    window_of(run)
    rows = "".join(f"train,{step},wait,{step % 3}.0,\n" for step in range(4000))
    (run / "rank0.timeline.csv").write_text("stage,step,phase,wall_ms,data_ms\n" + rows)
    made = run_data.gather(run)["timeline"]["train"]
    assert len(made["step"]) <= 400
    assert set(made["wall_ms"]) == {1}


def test_timeline_without_rows_is_ignored(run):
    window_of(run)
    (run / "rank0.timeline.csv").write_text("stage,step,phase,wall_ms,data_ms\n")
    assert run_data.gather(run)["timeline"] == {}


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(PerfhooksError, match=r"run\.json"):
        run_data.gather(tmp_path)


def test_a_bare_trace_has_all_its_steps(tmp_path):
    made = run_data.from_trace(write_trace(tmp_path / "t.json", [step_mark(0, 0, 10), step_mark(1, 10, 20)]))
    assert made["windows"][0]["details"]["0"]["steps"]["rows"]["step"] == [0, 1]


def test_cost_of_recording_comes_from_the_capture(run, trace):
    window_of(run, cost=Cost(stop_s=0.5, idle_step_ms=7.0), trace=trace)
    assert run_data.gather(run)["windows"][0]["ranks"][0]["cost"]["idle_step_ms"] == 7.0


def test_windows_have_their_own_recording_cost(run, trace):
    """And of ranks whose details are not on the page only their numbers are."""
    window_of(run, time=1, cost=Cost(stop_s=0.5, save_s=0.25, free_s=0.125, trace_bytes=3_000_000), trace=trace)
    later = Cost(stop_s=0.001, save_s=0.002, free_s=0.003, trace_bytes=7, idle_step_ms=5.0, recorded_step_ms=6.0)
    window_of(run, "train-000010-000012", first=10, last=12, time=2, cost=later, trace=trace)
    window_of(run, "train-000010-000012", 1, first=10, last=12, time=2, cost=later)
    first, second = run_data.gather(run)["windows"]
    assert first["ranks"][0]["cost"] == {"stop_s": 0.5, "save_s": 0.25, "free_s": 0.125, "trace_bytes": 3_000_000}
    shown, brief = second["ranks"]
    assert shown["cost"] == {
        "stop_s": 0.001,
        "save_s": 0.002,
        "free_s": 0.003,
        "trace_bytes": 7,
        "idle_step_ms": 5.0,
        "recorded_step_ms": 6.0,
    }
    assert brief["mean"]
    assert "cost" not in brief


def test_summary_has_the_longest_stop_of_the_loop():
    costs = Cost(stop_s=0.5, save_s=0.25, free_s=0.05), Cost(stop_s=0.1, idle_step_ms=5.0, recorded_step_ms=6.5)
    assert terminal_tables.cost_line([Capture(cost=cost) for cost in costs]) == (
        "recording stopped the loop for 800 ms at the end of a window; median step 5 ms unprofiled, 6.5 ms profiled"
    )
    assert terminal_tables.cost_line([]) == ""


def test_terminal_cells_are_words_or_short_numbers():
    table = pl.DataFrame({"is": [True, False], "ms": [1234.56, 0.126], "what": ["a\nb", None], "nothing": [None, None]})
    assert [line.split() for line in terminal_tables.text(table).splitlines()] == [
        ["is", "ms", "what"], ["yes", "1235", "a", "b"], ["no", "0.13"],
    ]  # fmt: skip


@pytest.mark.slow
def test_report_limits_the_rows_of_its_tables(run, tmp_path):
    """240 steps, 80 operators and 40 lines of what came before the first step, those that cost most."""
    events = [step_mark(place, 1000 * place, 1000 * place + 1000) for place in range(300)]
    events += [op(f"aten::op{place}", 1000 * place, 1000 * place + 100 + place) for place in range(300)]
    found = read(write_trace(tmp_path / "long.json", events))
    made = window_data.reduce(Capture(first=0, last=299, reached=300), found)
    assert len(made["steps"]["rows"]["step"]) == 240
    assert made["steps"]["count"] == 300
    names = made["operators"]["name"]["name"]
    assert len(names) == 80
    assert "aten::op299" in names
    launching = [op(f"aten::on{place}", 1000 * place, 1000 * place + 50, external=place + 1) for place in range(300)]
    launching += [launch(place + 1, 1000 * place, 1000 * place + 5, external=place + 1) for place in range(300)]
    work = [kernel(place + 1, 1000 * place + 10, 1000 * place + 900 - place, name="k") for place in range(300)]
    long = write_trace(tmp_path / "device.json", [*events, *launching, *work])
    names = window_data.reduce(Capture(first=0, last=299, reached=300), read(long))["operators"]["name"]["name"]
    assert [name for name in names if "on" in name] == [f"aten::on{place}" for place in range(40)]
    lines = "".join(f"import,module{place},{place}.0\n" for place in range(60))
    (run / "rank0.startup.csv").write_text("phase,what,seconds\n" + lines)
    startup = run_data.gather(run)["startup"]
    assert startup["what"][0] == "module59"
    assert len(startup["what"]) == 40


def test_single_trace_has_a_report(tmp_path):
    made = run_data.from_trace(write_trace(tmp_path / "t.json", events(), distributedInfo={"rank": 3, "world_size": 4}))
    (only,) = made["windows"]
    assert (only["first"], only["last"]) == (4, 5)
    assert only["ranks"][0]["rank"] == 3
    assert only["details"]["3"]["subject"]["world_size"] == 4


def test_report_has_the_name_of_the_run_behind_a_link(run, monkeypatch):
    (run.parent / "latest").symlink_to("run")
    monkeypatch.chdir(run)
    assert {run_data.gather(path)["title"] for path in (run, run.parent / "latest", Path())} == {"run"}


# --- several ranks ---


def test_report_names_the_straggler_with_its_part(tmp_path):
    made = run_data.gather(ManyRanks(ranks=3, node=1, slow_data={1: 30.0}).write(tmp_path / "run"))
    (finding,) = made["findings"]
    assert (finding["rule"], finding["rank"], finding["part"]) == ("straggler", 1, "data")
    assert finding["gain_ms"] == pytest.approx(30.0)
    together = made["ranks_together"]
    assert list(together["windows"]) == [each["name"] for each in reversed(made["windows"])]
    ranks = together["windows"][made["windows"][0]["name"]]["ranks"]
    assert ranks["data_ms"] == [1.0, 31.0, 1.0]
    assert [own + wait for own, wait in zip(ranks["own_ms"], ranks["wait_ms"], strict=True)] == ranks["wall_ms"]
    assert together["missing"] == []


def test_report_lists_missing_files_of_a_rank(tmp_path):
    folder = ManyRanks(ranks=3, node=1).write(tmp_path / "run")
    name = run_data.gather(folder)["windows"][-1]["name"]
    for path in (folder / name).glob("rank2.*"):
        path.unlink()
    together = run_data.gather(folder)["ranks_together"]
    assert [(each["window"], each["ranks"]) for each in together["missing"]] == [(name, [2])]
    assert together["missing_count"] == 1


def test_single_rank_has_no_comparison_of_ranks(run, trace):
    window_of(run, trace=trace)
    assert not {"ranks_together", "findings"} & set(run_data.gather(run))


def test_failed_comparison_of_ranks_omits_only_itself(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("no such luck")

    monkeypatch.setattr("perfhooks.analysis.ranks.gather", fail)
    made = run_data.gather(ManyRanks(ranks=2, node=1).write(tmp_path / "run"))
    assert made["ranks_together"] == {"problem": "ValueError: no such luck"}
    assert "findings" not in made
    assert len(made["windows"][0]["ranks"]) == 2


def test_late_windows_are_compared_if_not_all_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(run_data, "_BUDGET", 40)
    made = run_data.gather(ManyRanks(ranks=2, node=1, windows=3).write(tmp_path / "run"))
    assert list(made["ranks_together"]["windows"]) == [made["windows"][-1]["name"]]


# --- the page ---


def embedded(html, name):
    return re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html, re.DOTALL)[1]


def test_report_contains_data_but_no_foreign_markup(tmp_path):
    given = run_data.from_trace(write_trace(tmp_path / "t.json", [op(HOSTILE, 0, 1000)]))
    html = page.render(given).decode()
    assert HOSTILE not in html
    assert json.loads(embedded(html, "data"))["windows"][0]["details"]["0"]["operators"]["name"]["name"] == [HOSTILE]
    assert "<" not in embedded(html, "data")


def test_report_needs_no_other_files(run, trace):
    window_of(run, trace=trace)
    html = report.write(run).read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)
    stored = json.loads((run / PAGE_DATA).read_text())
    assert stored.pop("inputs")
    assert stored == json.loads(embedded(html, "data"))


def test_trace_command_writes_a_report(tmp_path):
    made = page.render(run_data.from_trace(write_trace(tmp_path / "t.json", events()))).decode()
    assert "aten::mm" in embedded(made, "data")


@pytest.mark.slow
def test_report_of_ten_real_windows_is_small(run, recordings):
    real = read(recordings / "b200-eager-stacks-shapes.json.gz")
    assert len(msgspec.json.encode(window_data.reduce(Capture(), real))) < 150_000
    for number in range(10):
        window_of(run, f"train-{number:06d}-{number:06d}", time=float(number), trace=real)
    assert report.write(run).stat().st_size < 6_500_000


@pytest.mark.slow
def test_report_of_a_thousand_ranks_is_small(tmp_path, traces):
    real = read(traces / "sampled-128ranks-rank0.json.gz")
    share = msgspec.json.encode(window_data.reduce(Capture(), real))
    mean = described(Capture(), real).summary
    run = ManyRanks(ranks=1024, windows=3, node=8, slow_data={700: 30.0}).write(tmp_path / "run")
    for folder in run.glob("train-*"):
        for rank in range(1024):
            place = Place(folder, rank)
            place.save(dataclasses.replace(place.load(), summary=mean))
            place.artifact(SHARE).write_bytes(share)
    assert report.write(run).stat().st_size < 6_500_000
    whole = json.loads((run / PAGE_DATA).read_text())
    assert whole["findings"][0]["rank"] == 700
    assert len(whole["ranks_together"]["windows"]) == 3
    made = whole["windows"][-1]
    assert len(made["ranks"]) == 1024
    assert len(made["details"]) > 5


def test_one_rank_writes_the_report_for_all_ranks(run, trace):
    first, second = (window_of(run, rank=rank, trace=trace) for rank in (0, 1))
    third = window_of(run, rank=2)
    assert report.is_due(first)
    assert not report.is_due(second), "the third has not finished, and is the one to write"
    publish_json(third.artifact(SHARE), {})
    assert report.is_due(third)


def test_window_without_the_page_handler_has_no_report(run):
    assert not report.is_due(window_of(run))


# --- handlers ---


def test_page_handler_writes_the_data_of_the_report(trace, tmp_path):
    made, _ = handlers.PageData().artifacts(Capture(), trace)
    assert made.name == SHARE
    with (tmp_path / "p").open("wb") as file:
        made.write(file)
    assert json.loads((tmp_path / "p").read_text())["format"] == 1


@pytest.mark.parametrize(
    ("size", "told"), [(8, 8), (2.5, None), (2**70, None), ("many", None), (True, None), (-1, None)]
)
def test_missing_world_size_is_omitted(tmp_path, size, told):
    events = [step_mark(0, 0, 1000), op("aten::mm", 10, 500)]
    path = write_trace(tmp_path / "t.json", events, distributedInfo={"rank": 0, "world_size": size})
    found = msgspec.convert(run_data.from_trace(path), RunData)
    assert found.windows[0].details["0"].subject.world_size == told


@pytest.mark.slow
def test_packed_plotly_is_stored_next_to_compiled_files(tmp_path, monkeypatch):
    monkeypatch.setattr(page.__spec__, "cached", str(tmp_path / "page.pyc"))
    monkeypatch.setattr(page.sys, "dont_write_bytecode", True)
    packed = page._packed_plotly()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(page.sys, "dont_write_bytecode", False)
    assert page._packed_plotly() == packed
    [kept] = tmp_path.iterdir()
    kept.write_text("kept", encoding="ascii")
    assert page._packed_plotly() == b"kept"
    monkeypatch.setattr(page.__spec__, "cached", str(tmp_path / "missing" / "page.pyc"))
    assert page._packed_plotly() == packed
