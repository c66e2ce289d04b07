"""The page in a real browser: it draws itself, answers to hands and keys, and asks nobody for anything."""

import csv
import dataclasses
import io
import itertools
import re
from urllib.parse import parse_qs

import msgspec
import pytest
import warm
from many_ranks import ManyRanks

from perfhooks.analysis import flames
from perfhooks.core import words
from perfhooks.report import page as report
from perfhooks.report.page import page, run_data, svg, window_data
from perfhooks.report.page.definitions import DEFINITIONS
from perfhooks.report.page.run_summary import read_summary
from perfhooks.run.capture import Capture
from perfhooks.run.compilation import Break, Compilation, Graph
from perfhooks.run.live import slow_steps
from perfhooks.run.live.slow_steps import SlowStep
from perfhooks.run.timeline import HEADER
from perfhooks.testing import annotation, kernel, launch, memory, op, python_frame, step_mark, write_trace
from perfhooks.trace import read
from perfhooks.trace.tables import stacks

pytestmark = pytest.mark.browser

HOSTILE = '</script><img src=x onerror="document.body.dataset.taken=1">'
TURNED = "\u202egpj\x1b]8;;http://x\x07\n.exe"
"""A name with a mark that turns the direction of the text, a command of a terminal and a line break."""

LOOP = """
import sys
import torch
import perfhooks

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(16, 64) for _ in range(12)]
with perfhooks.Profiler(
    schedule="wait=2 warmup=1 active=2 repeat=2", out=sys.argv[1], run="r",
    with_stack=True, record_shapes=True, profile_memory=True,
) as prof:
    for batch in prof.steps(batches):
        with prof.region("forward"):
            loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def recorded(channel, tmp_path_factory):
    """The folder of a small real run, with two windows."""
    out = tmp_path_factory.mktemp("out")
    (out / "loop.py").write_text(LOOP)
    done = warm.run(channel, out / "loop.py", out, timeout=300)
    assert done.returncode == 0, done.stderr
    return out / "r"


def of_trace(path, folder):
    made = folder / "report.html"
    made.write_bytes(page.render(run_data.from_trace(path)))
    return made


def texts(chromium, selector):
    return chromium.run(f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)")


def sections(chromium):
    return chromium.run("[...document.querySelectorAll('main section')].map(each => each.id)")


def assert_quiet(chromium):
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in chromium.requests if url.startswith("file:")]) == 1


def search(chromium, section, text):
    chromium.run(
        f"(input => {{ input.value = {text!r}; input.dispatchEvent(new Event('input')); }})"
        f"(document.querySelector('#{section} input[type=search]'))"
    )


def test_report_of_a_run_renders(chromium, recorded):
    chromium.open(recorded / "report.html")
    assert_quiet(chromium)
    # on a busy machine the steps wait for their loader long enough that there is a plan for it, or a step is slow
    assert [name for name in sections(chromium) if name not in ("plan", "slow")] == [
        # one rank has no section of ranks
        *("overview", "timeline", "steps", "windows", "categories", "operators", "memory", "flame", "functions"),
        *("modules", "checks"),
    ]
    assert texts(chromium, "h1") == ["Sequential on CPU"]
    assert chromium.run("document.querySelectorAll('.figure .main-svg').length") >= 6
    parts = [part.name for part in read_summary(recorded).parts]
    assert texts(chromium, ".shares th[scope=row]") == parts != []
    assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
    # the flame graph begins at a frame of the user
    first = chromium.run("(f => [f.className, f.textContent])(document.querySelector('#flame .frame'))")
    assert "k-code" in first[0]
    assert "loop.py" in first[1]
    # the menu has four groups and their sections
    assert texts(chromium, ".menu > a") == ["Steps", "Work", "Code", "Trust"]
    assert texts(chromium, ".menu:nth-child(3) .items a") == ["Flame graph", "Python functions", "Modules"]
    chromium.run("document.querySelector('.menu:nth-child(3) > a').focus()")
    assert chromium.run("getComputedStyle(document.querySelector('.menu:nth-child(3) .items')).display") == "block"
    # definitions are tooltips for the mouse and the keyboard
    shown = "!document.getElementById('tooltip').hidden && document.getElementById('tooltip').textContent"
    chromium.run("document.querySelector('#operators th [data-key=self_cpu_ms]').focus()")
    assert chromium.run(shown) == DEFINITIONS["operators"]["self host"]
    assert chromium.run("document.activeElement.getAttribute('aria-description')") == chromium.run(shown)
    chromium.press("Escape")
    assert chromium.run(shown) is False
    chromium.run("document.querySelector('#flame .info').dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))")
    assert all(text in chromium.run(shown) for text in DEFINITIONS["flame"].values())
    # the rules for numbers stand in `perfhooks.core.words` and in a script: both write the same of 300 numbers
    numbers = [0.0, *(1.37**power * 1e-4 for power in range(-10, 89))]
    for script, ours in (("ms", words.ms), ("percent", words.share), ("bytes", words.size), ("digits", words.number)):
        assert chromium.run(f"{numbers}.map(value => {script}(value))") == [ours(number) for number in numbers]


def test_report_begins_with_own_labels_and_sorts_by_clicks(chromium, tmp_path):
    events = [step_mark(0, 0, 900_000), annotation("LABEL2", 0, 600_000)]
    events += [annotation("mask indices", start, start + 5) for start in (700_000, 800_000)]
    events += [python_frame("a.py(9): long", 0, 600_000)]
    events += [python_frame("b.py(3): often", start, start + 5) for start in (700_000, 800_000)]
    chromium.open(of_trace(write_trace(tmp_path / "t.json", events), tmp_path))
    assert_quiet(chromium)
    assert sections(chromium)[:2] == ["overview", "labels"]
    for table, column, first in (
        ("labels", "calls", ["LABEL2", "mask indices"]),
        ("functions", "calls", ["long", "often"]),
    ):
        assert [row.split("9")[0] for row in texts(chromium, f"#{table} tbody td:first-child")] == first
        chromium.run(f"document.querySelector('#{table} th [data-key={column}]').click()")
        assert texts(chromium, f"#{table} tbody td:first-child") == first[::-1]
    chromium.run("document.querySelector('#labels [data-key=all]').click()")
    assert "step" in texts(chromium, "#labels tbody td:first-child")


def test_counters_have_lanes_beside_the_steps(chromium, tmp_path):
    marks = [step_mark(number, number * 10_000_000, (number + 1) * 10_000_000) for number in range(3)]
    samples = [
        {"ph": "C", "name": name, "pid": "GPU 0 Counters", "ts": time * 1000.0, "args": {"": value}}
        for name, values in (("Power (W)", (100.0, 700.0, 300.0)), ("<b>Clock (MHz)", (1980.0, 1200.0, 1980.0)))
        for time, value in zip((0, 10, 20), values, strict=True)
    ]
    chromium.open(of_trace(write_trace(tmp_path / "t.json", [*marks, *samples]), tmp_path))
    chromium.wait("document.querySelector('.counters .main-svg')")
    assert texts(chromium, ".counters .annotation-text") == ["Power (W), device 0", "<b>Clock (MHz), device 0"]
    drawn = "document.querySelector('.counters .figure').data.map(each => [each.x, each.y].map(v => [v[0], v.at(-1)]))"
    assert chromium.run(drawn) == [[[0, 30], [100, 300]], [[0, 30], [1980, 1980]]]
    assert chromium.run("document.querySelector('.counters .figure').data[0].y.filter(w => w === 700).length") == 2 * 66
    assert_quiet(chromium)
    chromium.open(of_trace(write_trace(tmp_path / "none.json", marks), tmp_path))
    assert texts(chromium, ".counters") == []


def test_operators_are_below_the_roofs_of_their_device(chromium, tmp_path):
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
    call = op("aten::mm", 0, 100_000, Input_Dims=[[4096, 4096]] * 2, Input_type=["float"] * 2)
    rest = [launch(1, 0, 1000), kernel(1, 2_000, 4_002_000, name="ampere_sgemm"), step_mark(0, 0, 5_000_000)]
    chromium.open(of_trace(write_trace(tmp_path / "t.json", [call, *rest], deviceProperties=device), tmp_path))
    chromium.wait("document.querySelector('.roofline .main-svg')")
    roof, point = chromium.run("document.querySelector('.roofline .figure').data.map(each => [each.x, each.y])")
    assert roof[1][-2:] == [67, 67]
    assert roof[0][-2] == pytest.approx(67e3 / 3350)
    assert point == [[pytest.approx(2 * 4096 / 12, rel=1e-3)], [pytest.approx(2 * 4.096**3 / 4, rel=1e-3)]]
    assert_quiet(chromium)
    call = op("aten::mm", 0, 100_000)
    chromium.open(of_trace(write_trace(tmp_path / "n.json", [call, *rest], deviceProperties=device), tmp_path))
    assert texts(chromium, "#operators h2") == ["Operators"]
    assert texts(chromium, ".roofline") == []


def test_compiled_functions_are_shown(chromium, tmp_path):
    graph = Graph(id="0/0", function="net.py(3): forward", operators=9, seconds=3.0, backend_s=2.0, inductor_s=1.5)
    again = dataclasses.replace(graph, id="0/1", reason=HOSTILE, is_recorded=True)
    met = Break(reason="no print", line="net.py(5): forward", functions=("net.py: forward",), count=2)
    events = [step_mark(0, 0, 900_000), op("Torch-Compiled Region: 0/1", 0, 300_000)]
    path = write_trace(tmp_path / "t.json", events)
    capture = Capture(first=0, last=0, reached=1, compilation=Compilation(graphs=(graph, again), breaks=(met,)))
    data = run_data.from_trace(path)
    data["windows"][0]["details"]["0"] = window_data.reduce(capture, read(path))
    (tmp_path / "report.html").write_bytes(page.render(data))
    chromium.open(tmp_path / "report.html")
    assert_quiet(chromium)
    (lead, *_) = texts(chromium, "#compiled .lead")
    assert "runs for 0.3 ms (33%). 2 graphs took 6 s to compile, 1 of them in this window." in lead
    told = texts(chromium, "#compiled td, #compiled th")
    assert {HOSTILE, "no print"} <= set(told)
    assert any(text.startswith("forward") and "net.py:5" in text for text in told), told


def test_report_shows_the_cost_of_ending_each_window(chromium, recorded, tmp_path):
    """Stopping, saving and freeing together, and how large the trace was."""
    given = msgspec.json.decode((recorded / "report.json").read_bytes())
    last = given["windows"][-1]
    costs = {"first": (0.5, 0.25, 0.05, 3_000_000), "second": (0.02, 0.02, 0.002, 7_000_000)}
    given["windows"] = []
    for name, values in costs.items():
        cost = dict(zip(("stop_s", "save_s", "free_s", "trace_bytes"), values, strict=True))
        given["windows"].append(last | {"name": name, "ranks": [last["ranks"][0] | {"cost": cost}]})
    path = tmp_path / "report.html"
    path.write_bytes(page.render(given))
    chromium.open(path)
    said = "The end of this window stopped the training for"
    assert f"{said} 42 ms, for a trace of 6.68 MiB." in texts(chromium, "#checks")[0]
    choose = "(each => { each.value = each.options[0].value; each.dispatchEvent(new Event('change')); })"
    chromium.run(f"{choose}(document.querySelector('select')); 0")
    assert f"{said} 800 ms, for a trace of 2.86 MiB." in texts(chromium, "#checks")[0]


@pytest.mark.parametrize("name", ["a100-ddp2-train", "b200-eager-stacks-shapes", "h100-bert-small"])
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_of_devices_draw_themselves(chromium, traces, tmp_path, name, width):
    chromium.open(of_trace(traces / f"{name}.json.gz", tmp_path), width=width, dark=width < 1000)
    assert_quiet(chromium)
    assert {"categories", "operators", "kernels", "gaps", "flame", "checks"} <= set(sections(chromium))
    widths = "[...document.querySelectorAll('.share-track')].map(each => [...each.children].map(i => i.offsetWidth))"
    assert all(sum(parts) > 0 for parts in chromium.run(widths))
    colours = "[...document.querySelectorAll('.share-track i')].map(each => getComputedStyle(each).backgroundColor)"
    assert "rgba(0, 0, 0, 0)" not in chromium.run(colours), "every kind of work has a colour"
    assert "compute" in texts(chromium, ".shares th[scope=row]")
    assert chromium.run("document.documentElement.scrollWidth <= innerWidth"), "the page itself never scrolls sideways"
    if width < 1000:
        assert_whole(chromium)


def test_operators_are_searched_sorted_and_grouped(chromium, traces, tmp_path):
    chromium.open(of_trace(traces / "h100-bert-small.json.gz", tmp_path))
    rows = "#operators tbody tr td:first-child"
    search(chromium, "operators", "aten add")
    found = texts(chromium, rows)
    assert found
    assert all("aten" in name and "add" in name for name in found)
    search(chromium, "operators", "")
    chromium.run("document.querySelector('#operators th button[data-key=name]').click()")
    names = texts(chromium, rows)
    assert names == chromium.run(f"{names}.sort((one, other) => one.localeCompare(other))")
    assert texts(chromium, "#operators th[aria-sort=ascending]") == ["Operator"]
    chromium.run("document.querySelector('#operators button[data-key=count]').click()")
    counts = [int(each.replace(",", "")) for each in texts(chromium, "#operators tbody tr td:nth-child(2)")]
    assert counts == sorted(counts, reverse=True)
    assert texts(chromium, "#operators th[aria-sort=descending]") == ["Count"]
    chromium.run("document.querySelector('#operators [data-key=shapes]').click()")
    assert "Input shapes" in texts(chromium, "#operators th")


def test_flame_graph_zooms_by_mouse_and_key_and_has_a_search(chromium, traces, tmp_path):
    chromium.open(of_trace(traces / "h100-bert-small.json.gz", tmp_path))
    show_all = "[...document.querySelectorAll('#flame button')].find(each => each.textContent === 'Show all').click()"
    chromium.run(show_all)
    whole = chromium.run("document.querySelectorAll('#flame .frame').length")
    chromium.run("document.querySelector('#flame .frame:nth-child(4)').click()")
    assert chromium.run("document.querySelectorAll('#flame .frame').length") < whole
    assert texts(chromium, "#flame .crumbs button")[0] == "all"
    chromium.run(show_all)
    chromium.run("document.querySelector('#flame .flame').focus()")
    for key in ("ArrowDown", "Enter", "ArrowDown", "Enter"):
        chromium.press(key)
    assert len(texts(chromium, "#flame .crumbs button")) == 2
    chromium.press("Escape")
    assert texts(chromium, "#flame .crumbs button") == ["all"]
    search(chromium, "flame", "aten::")
    assert chromium.run("document.querySelectorAll('#flame .frame.dim').length") > 0
    assert "of the time" in chromium.run("document.querySelector('#flame .tools').textContent")
    chromium.run("document.querySelector('#flame button[data-key=device]').click()")
    assert chromium.run("document.querySelectorAll('#flame .frame.k-kernel').length") > 0
    assert_quiet(chromium)


def address(chromium):
    """The part of the address after #, and its question."""
    place, _, question = chromium.run("location.hash").partition("?")
    return place, {name: value for name, (value,) in parse_qs(question).items()}


def test_contention_is_a_warning_and_no_finding(chromium, recorded, tmp_path):
    given = msgspec.json.decode((recorded / "report.json").read_bytes())
    details = given["windows"][-1]["details"]["0"]
    finding = {"estimate": "", "advice": "", "code": "", "evidence": []}
    large = {**finding, "rule": "r", "title": "It waits.", "gain_ms": 1000.0, "gain_percent": 90.0}
    busy = {**finding, "rule": "b", "title": "No processor.", "gain_ms": None, "gain_percent": None}
    busy["doubts_others"] = True
    given["summary"] |= {"warning": "No processor.", "is_profiled": False}
    details |= {"problems": [], "checks": {"rows": {}}}  # a busy machine may have caused doubts in the recording
    for rows, warned in (([busy, large], True), ([large], False)):
        details["findings"]["rows"] = rows
        given["summary"]["warning"] = "No processor." if warned else None
        (tmp_path / "report.html").write_bytes(page.render(given))
        chromium.open(tmp_path / "report.html")
        assert [text.startswith("No processor.") for text in texts(chromium, "#overview .doubt")] == [True] * warned
        assert texts(chromium, ".finding h3") == ["It waits."]
        assert any("No processor." in text for text in texts(chromium, "#checks .check")) == warned


def test_measured_fixes_are_beside_their_finding(chromium, tmp_path):
    events = [step_mark(0, 0, 1000_000)]
    shapes = {"Input_Dims": [[64, 64], [64, 64]], "Input_type": ["double", "double"]}
    events += [op("aten::mm", place * 100_000, place * 100_000 + 90_000, **shapes) for place in range(10)]
    tried = {"variant": "float32", "times": 1.83, "saved_ms": 0.4, "saved_percent": 40.0, "operators": 2}
    tried |= {"device": "cpu", "most": {"times": 5, "saved_ms": 0.8, "saved_percent": 80.0}}
    shown = run_data.from_trace(write_trace(tmp_path / "t.json", events))
    shown["tried"] = [{"rule": rule, **tried} for rule in ("float64-products", "other")]
    (tmp_path / "report.html").write_bytes(page.render(shown))
    chromium.open(tmp_path / "report.html")
    (said,) = set(texts(chromium, ".finding .measured"))
    assert said.startswith("Measured here (float32): 1.83 to 5 times as fast, 0.4")
    assert said.endswith("a step, 40% to 80%")
    assert_quiet(chromium)


def test_evidence_links_to_rows_frames_and_steps(chromium, recorded, tmp_path):
    """What evidence names is a link where the page shows it; a word of a sentence that is also a name is none."""
    given = msgspec.json.decode((recorded / "report.json").read_bytes())
    details = given["windows"][-1]["details"]["0"]
    frame = next(name for name in details["flames"]["host"]["names"] if re.match(r".*loop\.py\(\d+\): ", name))
    evidence = [
        "aten::addmm: 3 ms",
        f"{frame}: 2 ms",
        "the longest wait is 3 ms, in step 9",
        "in step 7777, forward is waited for",
        "forward: 2 ms",
        "aten::addmmm: 3 ms",
        HOSTILE,
    ]
    lines = [{"phrase": "source", "text": line} for line in evidence]
    finding = {"rule": "r", "title": "t", "estimate": "", "advice": "", "code": "a < b", "evidence": lines}
    details["findings"]["rows"] = [{**finding, "gain_ms": 1.0, "gain_percent": 1.0}]
    (tmp_path / "report.html").write_bytes(page.render(given))
    chromium.open(tmp_path / "report.html")
    assert texts(chromium, ".evidence li") == evidence
    assert texts(chromium, ".evidence a") == ["aten::addmm", frame, "step 9", "forward"]

    for number, (table, at) in enumerate([("operators", "aten::addmm"), ("flame", frame), ("steps", "9")]):
        chromium.run(f"document.querySelectorAll('.evidence a')[{number}].click()")
        chromium.wait(f"location.hash.startsWith('#{table}')")
        assert address(chromium) == (f"#{table}", {"window": given["windows"][-1]["name"], "at": at})
    chromium.wait("document.querySelector('#operators tr.opened') && document.querySelector('#steps tr.opened')")
    assert texts(chromium, "#operators tr.opened td:first-child") == ["aten::addmm"]
    assert texts(chromium, "#steps tr.opened td:first-child") == ["9"]
    assert chromium.run("document.querySelector('#flame .frame').textContent") == re.sub(
        r"^(?:.*/)?(.+)\((\d+)\): (.+)$", r"\3  \1:\2", frame
    )
    chromium.run("document.querySelector('.finding details').open = true")
    chromium.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    chromium.run("document.querySelector('.finding .copy').click()")
    chromium.wait("window.copied === 'a < b'")
    assert_quiet(chromium)


def test_click_on_an_operator_shows_shapes_lines_and_modules(chromium, recorded):
    """Shapes, lines and modules, each with its part of the operator's time; gone with the next click. On a phone."""
    chromium.open(recorded / "report.html", width=390)
    click = (
        "[...document.querySelectorAll('#operators .opener')].find(each => each.textContent === 'aten::addmm').click()"
    )
    chromium.run(click)
    assert_whole(chromium)
    assert texts(chromium, "#operators .behind caption") == [
        *("Input shapes, self host", "Your lines, self host", "Modules, self host"),
    ]
    shapes, lines, modules = (
        texts(chromium, f"#operators .behind:nth-child({number}) td:first-child") for number in (1, 2, 3)
    )
    assert sorted(shapes) == ["[[64], [16, 64], [64, 64], [], []]", "[[8], [16, 64], [64, 8], [], []]"]
    assert all("loop.py" in line for line in lines)
    assert sorted(modules) == ["0  Linear_0", "2  Linear_1"], "as the model calls them"
    # a module can be too small to be a frame of the flame graph; the line that called it contains all of the loop
    link = "[...document.querySelectorAll('.behind a')].find(each => each.textContent.includes('loop.py'))"
    frame = chromium.run(f"{link}.textContent.split(', in ')[0]")
    chromium.run(f"{link}.click()")
    # the loop was open when recording began, so its line is not known; torch's name of the frame has one nevertheless
    chromium.wait(f"document.querySelector('#flame .frame').textContent.replace(/:\\d+$/, '') === {frame!r}")
    chromium.run(click)
    assert texts(chromium, "#operators .behind") == []
    assert_quiet(chromium)


def test_link_restores_the_view(chromium, recorded):
    """The address says window, table, search, grouping, order and open row, and a fresh page follows it."""
    chromium.open(recorded / "report.html")
    assert "steps 8\N{EN DASH}9" in chromium.run("document.querySelector('.meta').textContent")
    chromium.run(
        "(s => { s.value = '0'; s.dispatchEvent(new Event('change')); })(document.querySelector('#pickers select'))"
    )
    assert "steps 3\N{EN DASH}4" in chromium.run("document.querySelector('.meta').textContent")
    search(chromium, "operators", "addmm")
    chromium.run("document.querySelector('#operators [data-key=shapes]').click()")
    chromium.run("document.querySelector('#operators th [data-key=input_shapes]').click()")
    sent, rows = chromium.run("location.hash"), texts(chromium, "#operators tbody tr")
    assert_quiet(chromium)
    assert address(chromium) == (
        "#operators",
        {"window": "train-000003-000004", "find": "addmm", "by": "shapes", "sort": "input_shapes"},
    )
    chromium.open(recorded / "report.html", fragment=sent)
    assert "steps 3\N{EN DASH}4" in chromium.run("document.querySelector('.meta').textContent")
    assert chromium.run("document.querySelector('#operators input').value") == "addmm"
    assert texts(chromium, "#operators tbody tr") == rows
    assert texts(chromium, "#operators [aria-pressed=true]") == ["By shape"]
    assert chromium.run("location.hash") == sent
    assert chromium.run("scrollY > 0")
    for odd in ("#operators?window=none&rank=7&by=constructor&sort=__proto__&at=x", "#%E0%A4%A", "#flame?by=toString"):
        chromium.open(recorded / "report.html", fragment=odd)
        assert_quiet(chromium)
        assert "operators" in sections(chromium)


def test_copied_rows_are_the_visible_rows_with_all_columns(chromium, recorded, tmp_path):
    """As CSV: the rows that were searched for, in the order that is seen, every column and every digit."""
    chromium.open(recorded / "report.html")
    chromium.save_to(tmp_path)
    search(chromium, "operators", "aten a")
    chromium.run("document.querySelector('#operators th [data-key=count]').click()")
    shown = chromium.run("document.querySelectorAll('#operators tbody tr').length")
    chromium.run("[...document.querySelectorAll('#operators .copy')].find(each => each.textContent === 'CSV').click()")
    made = tmp_path / "r-train-000008-000009-operators.csv"
    chromium.wait_for(made.exists)
    rows = list(csv.DictReader(io.StringIO(made.read_bytes().decode())))
    given = msgspec.json.decode((recorded / "report.json").read_bytes())
    table = given["windows"][-1]["details"]["0"]["operators"]["name"]
    times = dict(zip(table["name"], table["self_cpu_ms"], strict=True))
    assert len(rows) >= shown > 1
    assert all(float(row["self_cpu_ms"]) == times[row["name"]] and "aten" in row["name"] for row in rows)
    assert [int(row["count"]) for row in rows] == sorted((int(row["count"]) for row in rows), reverse=True)

    chromium.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    chromium.run("[...document.querySelectorAll('#operators .copy')].find(each => each.textContent === 'Copy').click()")
    chromium.wait("window.copied")
    copied = [line.split("\t") for line in chromium.run("window.copied").split("\n")]
    assert copied[0] == list(rows[0])
    assert [line[0] for line in copied[1:]] == [row["name"] for row in rows]
    odd = 'rows = [{ a: \'x"y\', b: "1,2\\n3", c: null }]; keys = [{ key: "a" }, { key: "b" }, { key: "c" }]; '
    assert chromium.run(odd + "asCsv(keys, rows)") == 'a,b,c\r\n"x""y","1,2\n3",\r\n'
    assert chromium.run(odd + "asCells(keys, rows)") == 'a\tb\tc\nx"y\t1,2 3\t'
    assert_quiet(chromium)


CUT = """
(() => {
  const cut = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const inside = node.parentElement;
    if (!/\\d/.test(node.data) || inside.closest(".frame, .command, .crumbs, details:not([open])")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width < 2) continue;
    seen += 1;
    for (let up = inside; up; up = up.parentElement) {
      const hides = up.tagName === "svg" || (up instanceof HTMLElement && getComputedStyle(up).overflowX !== "visible");
      const edge = up === document.documentElement ? { left: 0, right: innerWidth } : up.getBoundingClientRect();
      if ((hides || up === document.documentElement) && (box.right > edge.right + 1 || box.left < edge.left - 1))
        cut.push(node.data);
    }
  }
  return [seen, cut];
})()
"""


def assert_whole(chromium, least=50):
    """No text with a number in it leaves what shows it."""
    seen, cut = chromium.run(CUT)
    assert seen > least
    assert cut == []


def test_outlier_steps_are_cut_with_a_break_and_their_value(chromium, tmp_path):
    """Of steps of 10 ms and one of 200 ms the usual ones stay readable, and the bar of the long one ends at the cut."""
    ms = 1_000_000
    ends = [0, 10, 20, 220, 230]
    events = [step_mark(number, ends[number] * ms, ends[number + 1] * ms) for number in range(4)]
    events += [annotation("forward", begin * ms, (end - 1) * ms) for begin, end in itertools.pairwise(ends)]
    chromium.open(of_trace(write_trace(tmp_path / "t.json", events), tmp_path))
    figure = "document.querySelector('.where-time .figure')"
    assert chromium.run(f"{figure}.layout.xaxis.range") == [0, pytest.approx(11.5)]
    assert chromium.run(f"{figure}.layout.annotations.map(each => [each.text, each.y])") == [["// 200 ms", "step 2"]]
    lengths = chromium.run(f"{figure}.data.map(each => each.x)")
    assert [sum(each) for each in zip(*lengths, strict=True)] == [pytest.approx(10)] * 2 + [11.5, pytest.approx(10)]
    assert_whole(chromium, least=20)
    assert_quiet(chromium)


def test_rare_columns_are_behind_all_columns(chromium, tmp_path):
    data = run_data.from_trace(write_trace(tmp_path / "t.json", [step_mark(0, 0, 900), op("aten::mm", 0, 300)]))
    rows = {"step": [9], "wall_ms": [500.0], "switches": [7], "faults": [8]}
    data["slow"] = {"rows": rows, "rows_count": 1, "count": 1, "wall_ms": 500.0, "causes": {"unknown": 1}, "ranks": 1}
    (tmp_path / "report.html").write_bytes(page.render(data))
    chromium.open(tmp_path / "report.html")
    rare = {"Times off the CPU", "Memory page faults"}
    assert not rare & set(texts(chromium, "#slow th"))
    assert "Own host, ms" not in texts(chromium, "#operators th")
    assert not any("ProfilerStep" in text for text in texts(chromium, "td"))
    chromium.run(
        "[...document.querySelectorAll('#slow button')].find(each => each.textContent === 'All columns').click()"
    )
    assert rare <= set(texts(chromium, "#slow th"))


def test_names_from_a_trace_stay_text_everywhere(chromium, tmp_path):
    events = [
        step_mark(0, 0, 10_000_000),
        python_frame(f"{HOSTILE}.py(3): {HOSTILE}", 0, 10_000_000),
        python_frame(f"nn.Module: {HOSTILE}_0", 0, 9_000_000),
        annotation(HOSTILE, 0, 8_000_000),
        op(HOSTILE, 0, 7_000_000, Input_Dims=[[1]]),
        op(TURNED, 7_000_000, 8_000_000),
        op(1_000_000 * "<b>", 8_000_000, 8_500_000),
        memory(1_000_000, 4096, allocated=4096),
    ]
    path = write_trace(tmp_path / "hostile.json", events, deviceProperties=[{"name": HOSTILE}])
    chromium.open(of_trace(path, tmp_path))
    assert_quiet(chromium)
    assert chromium.run("document.querySelectorAll('img').length") == 0
    assert chromium.run("document.body.dataset.taken") is None
    names = texts(chromium, "#operators tbody td.name")
    assert HOSTILE in names
    assert any(name.startswith("\N{REPLACEMENT CHARACTER}gpj") for name in names)
    assert not any("\u202e" in text for text in texts(chromium, "body"))
    assert any(HOSTILE in name for name in texts(chromium, "#flame .frame"))


def test_empty_trace_has_a_report(chromium, tmp_path):
    chromium.open(of_trace(write_trace(tmp_path / "empty.json", [memory(0, 4096)]), tmp_path))
    assert_quiet(chromium)
    assert sections(chromium)[0] == "overview"


def test_many_steps_are_drawn_upright(chromium, tmp_path):
    events = [step_mark(number, number * 1000, number * 1000 + 900) for number in range(60)]
    events += [annotation("forward", number * 1000, number * 1000 + 500) for number in range(60)]
    chromium.open(of_trace(write_trace(tmp_path / "long.json", events), tmp_path))
    assert_quiet(chromium)
    assert chromium.run("document.querySelectorAll('#overview .bars .point').length") == 120


def test_window_without_details_names_its_files(chromium, tmp_path):
    given = run_data.from_trace(write_trace(tmp_path / "t.json", [op("aten::add", 0, 1000)]))
    given["windows"][0]["details"] = {}
    (tmp_path / "report.html").write_bytes(page.render(given))
    chromium.open(tmp_path / "report.html")
    assert_quiet(chromium)
    assert "rank0" in chromium.run("document.querySelector('main').textContent")


@pytest.mark.parametrize(("ranks", "width"), [(3, 1440), (3, 400), (64, 1440)])
def test_ranks_are_shown_together(chromium, tmp_path, ranks, width):
    job = ManyRanks(ranks=ranks, node=1 if ranks == 3 else 8, slow_data={1: 30.0}, clock_ms={2: 5.0})
    folder = job.write(tmp_path / "run")
    for path in folder.glob("train-000010-*/rank2.*"):
        path.unlink()
    chromium.open(report.write(folder), width=width)
    assert_quiet(chromium)
    assert texts(chromium, ".finding h3")[0].startswith(f"Rank 1 on node{1 // job.node} waits longer for its data")
    assert chromium.run("document.querySelectorAll('#ranks .figure .bars .point').length") > 3 * ranks
    slowest = "#ranks .split + h3 + .table tbody tr:first-child td"
    assert texts(chromium, slowest)[0] == "1"
    assert {"data", f"node{1 // job.node}"} <= {*texts(chromium, slowest)}
    assert any("clocks ±" in each for each in texts(chromium, "#ranks th"))
    assert "all_reduce" in texts(chromium, "#ranks td.name")
    assert "Last rank" in texts(chromium, "#ranks th")
    assert texts(chromium, "#missing li") == ["train-000010-000012: rank 2 began to record later"]
    assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
    chromium.run("document.querySelector('#ranks td button').click()")
    assert_quiet(chromium)


def test_report_names_stragglers_and_groups_ranks_by_node(chromium, tmp_path):
    folder = ManyRanks(ranks=8, node=4, windows=1, steps=40, slow_data={6: 15.0}).write(tmp_path / "run")
    for rank in range(8):
        lines = [f"train,{step},wait,60.0,{20.0 if rank == 6 else 5.0},,\n" for step in range(100, 140)]
        (folder / f"rank{rank}.timeline.csv").write_text(f"{HEADER}{''.join(lines)}")
    chromium.open(report.write(folder))
    led = "Rank 6 on node1 is late by 15 ms waiting for data: the other ranks wait 15 ms a step."
    assert texts(chromium, "#leads li") == texts(chromium, ".finding h3") == [led]
    assert texts(chromium, "#leads ~ .table tbody td")[:6] == ["data", "20", "6", "100", "rest", "40"]
    chromium.run("[...document.querySelectorAll('#ranks button')].find(each => each.textContent === 'By node').click()")
    rows = texts(chromium, "#ranks .split ~ .table:nth-of-type(n+2) tbody tr")
    assert [row[:5] for row in rows if row.startswith("node")] == ["node1", "node0"]
    assert any("Longest own work" in each for each in texts(chromium, "#ranks th"))
    assert_quiet(chromium)


def test_first_screen_shows_the_pure_waits_of_a_rank(chromium, tmp_path):
    """Whatever part of its step that falls into: rank 0 waits 30 of 79 ms for rank 1, which waits for nobody."""
    folder = ManyRanks(ranks=2, node=1, windows=1, slow_data={1: 30.0}).write(tmp_path / "run")
    trace = write_trace(tmp_path / "t.json", [step_mark(10, 0, 900), annotation("backward", 5, 800)])
    details = msgspec.json.encode(run_data.from_trace(trace)["windows"][0]["details"]["0"])
    for rank in (0, 1):
        (folder / "train-000010-000012" / f"rank{rank}.page.json").write_bytes(details)
    (folder / "rank0.timeline.csv").write_text(f"{HEADER}train,0,wait,1,\ntrain,11999,wait,1,\n")
    slow = SlowStep("train", 90, 500.0, 50.0, "data", None, HOSTILE, 480.0, 0.0, None, None, None, None)
    rows = [slow, *(slow._replace(step=step, cause="garbage collection", wall_ms=20.0) for step in range(100, 400))]
    slow_steps.append(folder / "rank1.slow.csv", rows)
    chromium.open(report.write(folder))
    assert texts(chromium, ".stat")[-1] == "38%waiting for other ranks"
    said = "301 of 12,000 steps were slow and took 6.5 s together. Causes: garbage collection (300), data (1)."
    assert texts(chromium, ".slow-line") == [f"{said} See each."]
    assert texts(chromium, "#slow .lead") == [f"{said} These are the longest 200 of 301."]
    assert texts(chromium, "#slow tbody tr:first-child td")[:5] == ["90", "500", "50", "data", HOSTILE]
    assert texts(chromium, "#nav a").count("Slow steps") == 1
    chromium.run("document.querySelector('.slow-line a').click()")
    chromium.run("document.querySelector('#ranks td button').click()")
    assert "backward" in texts(chromium, ".shares th")
    assert "waiting for other ranks" not in texts(chromium, ".stat span")
    assert_quiet(chromium)


def test_first_screen_shows_a_device_behind_its_host(chromium, tmp_path):
    """Steps of 2 ms on the host launch 20 ms of work each: what a step takes is not what the marks say."""
    ms = 1_000_000
    events = []
    for number in (0, 1):
        begin = 2 * number * ms
        work = kernel(number + 1, (1 + 20 * number) * ms, (21 + 20 * number) * ms)
        events += [step_mark(number, begin, begin + 2 * ms), launch(number + 1, begin, begin + ms), work]
    chromium.open(of_trace(write_trace(tmp_path / "t.json", events), tmp_path))
    assert "20 msdevice work per step: the host runs ahead of the device" in texts(chromium, ".stat")
    assert_quiet(chromium)


def test_ranks_that_are_not_comparable_are_shown_singly(chromium, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError(HOSTILE)

    monkeypatch.setattr("perfhooks.analysis.ranks.gather", fail)
    chromium.open(report.write(ManyRanks(ranks=2, node=1).write(tmp_path / "run")))
    assert_quiet(chromium)
    assert HOSTILE in texts(chromium, "#ranks .doubt")[0]


def test_run_without_a_window_has_a_report(chromium, tmp_path):
    given = {"format": 1, "title": "r", "run": {}, "windows": [], "lost": ["w of rank 0"], "timeline": {}}
    slow = {"rows": {"step": [90], "wall_ms": [500.0]}, "rows_count": 1, "count": 1, "wall_ms": 500.0, "causes": {}}
    given["slow"] = slow | {"causes": {HOSTILE: 1}, "ranks": 1}
    (tmp_path / "report.html").write_bytes(page.render(given))
    chromium.open(tmp_path / "report.html", ready="document.querySelector('h1')")
    assert_quiet(chromium)
    assert "lost" in chromium.run("document.querySelector('main').textContent")
    assert texts(chromium, "#slow tbody td") == ["90", "500"]
    assert HOSTILE in texts(chromium, ".slow-line")[0]


def test_svg_flame_graph_zooms(chromium, traces, tmp_path):
    found = flames.tree(stacks.summed(read(traces / "h100-bert-small.json.gz")))
    (tmp_path / "flame.svg").write_text(svg.flame(found, title=HOSTILE), encoding="utf-8")
    chromium.open(tmp_path / "flame.svg", ready="document.querySelector('.frame')")
    assert_quiet(chromium)
    assert chromium.run("document.querySelector('.heading').textContent") == HOSTILE
    chromium.run("document.querySelectorAll('.frame')[3].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert chromium.run("document.querySelectorAll('.frame.gone').length") > 0
    chromium.run("document.getElementById('back').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert chromium.run("document.querySelectorAll('.frame.gone').length") == 0
    chromium.run("document.querySelectorAll('.frame')[3].focus()")
    chromium.press("Enter")
    assert chromium.run("document.querySelectorAll('.frame.gone').length") > 0
    chromium.press("Escape")
    assert chromium.run("document.querySelectorAll('.frame.gone').length") == 0
