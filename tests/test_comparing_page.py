"""The page of a comparison: it draws itself, needs nothing else, and shows both runs."""

import json
import re
from pathlib import Path

import pytest
from comparing_runs import make_run, training
from test_comparing import steps
from typer.main import get_command

from perfhooks.analysis.comparison import comparison, sources
from perfhooks.cli.app import app
from perfhooks.report.comparison import page


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    base = make_run(folder / "base", training(), steps(), schedule={"wait": 1})
    facts = {"machine": "</script>", "schedule": {"wait": 2}}
    new = make_run(folder / "new", training(data=4000, doubled=True), steps(9.0, seed=1), **facts)
    return comparison.compare(*sources.read([[base], [new]]))


def test_report_contains_all_results_and_no_markup_of_a_trace(made):
    html = page.render(made)
    (text,) = re.findall(r'id="data">(.*?)</script>', html, re.DOTALL)
    data = json.loads(text)
    assert data["reasons"][0]["name"] == "data"
    assert sum(row["difference"] for row in data["reasons"]) == pytest.approx(3_700_000)
    assert len(html) < 300_000
    assert 'id="plotly"' not in html


def test_report_without_javascript_names_commands_that_print_its_data(made):
    (text,) = re.findall("<noscript>(.*?)</noscript>", page.render(made), re.DOTALL)
    names = set(re.findall(r"<code>perfhooks (\w+)", text))
    assert {"show", "compare", "history"} == names < set(get_command(app).commands)


def test_two_flame_graphs_are_merged_frame_by_frame():
    def graph(*nodes):
        parent, names, value = zip(*nodes, strict=True)
        return {
            "names": list(names),
            "kinds": [0] * len(nodes),
            "parent": list(parent),
            "frame": list(range(len(nodes))),
            "value": list(value),
        }

    a = {"host": graph((-1, "all", 100), (0, "t.py(3): f", 60), (0, "g", 40))}
    b = {"host": graph((-1, "all", 200), (0, "t.py(9): f", 200))}
    found = page.merge_flames(a, b, 1, 2)
    assert set(found) == {"host, A", "host, B"}
    shown = {name: rows(graph_) for name, graph_ in found.items()}
    assert shown["host, B"] == {"all": (100, 100), "t.py(3): f": (100, 60)}
    assert shown["host, A"] == {"all": (100, 100), "t.py(3): f": (60, 100), "g": (40, 0)}


def test_flame_graphs_show_one_step_and_limited_nodes():
    """Windows of 2 and of 5 steps; the nodes that are left out are the smallest."""
    count = 3000
    names = ["all", *(f"f{place}" for place in range(count))]
    values = [10 * place for place in range(count)]
    graph = {
        "names": names,
        "kinds": [0] * len(names),
        "parent": [-1] + [0] * count,
        "frame": list(range(count + 1)),
        "value": [sum(values), *values],
    }
    found = page.merge_flames({"host": graph}, {"host": graph}, 2, 5)["host, B"]
    assert len(found["value"]) == 2500
    assert rows(found)["f2999"] == (5998, 14995)
    assert "f400" not in rows(found)


def rows(graph):
    names = [graph["names"][frame] for frame in graph["frame"]]
    return dict(zip(names, zip(graph["value"], graph["before"], strict=True), strict=True))


@pytest.mark.browser
def test_report_renders_offline_and_can_be_searched(made, tmp_path, chromium):
    path = Path(tmp_path / "page.html")
    path.write_text(page.render(made), encoding="utf-8")
    chromium.open(path)
    assert chromium.complaints == []
    assert {each.partition(":")[0] for each in chromium.requests} <= {"file", "data", "blob"}
    assert chromium.run("[...document.querySelectorAll('main > section')].map((each) => each.id).join()") == (
        "overview,waterfall,rows,flame,besides"
    )
    assert chromium.run("document.querySelectorAll('.waterfall .more').length") > 1
    overview = chromium.run("document.getElementById('overview').innerText")
    assert overview.index("Slower: a step takes") < overview.index("A: base: 1 run") < overview.index("Reasons")
    assert chromium.run("document.querySelectorAll('.stat').length") == 2
    assert chromium.run("document.querySelectorAll('.overview > .doubts > li').length") <= 2
    assert chromium.run("document.getElementById('notes').open") is False
    assert chromium.run("document.querySelectorAll('.frame[style*=d-more]').length") > 0
    chromium.run(
        "const box = document.querySelector('#rows input'); box.value = 'linear_2';"
        "box.dispatchEvent(new Event('input')); 0"
    )
    assert chromium.run("document.querySelectorAll('#rows tbody tr').length") == 1


@pytest.mark.browser
@pytest.mark.parametrize(("data", "is_cut"), [(4000, False), (1200, True)])
def test_bars_begin_at_zero_or_mark_the_cut(tmp_path, chromium, data, is_cut):
    """A step of 6.15 ms instead of 3.15 needs no cut; one of 3.35 would show nothing without."""
    sides = [make_run(tmp_path / f"{each}", training(data=each), steps()) for each in (1000, data)]
    path = tmp_path / "page.html"
    path.write_text(page.render(comparison.compare(*sources.read([[side] for side in sides]))), encoding="utf-8")
    chromium.open(path)
    assert chromium.run("document.querySelectorAll('.waterfall .cut').length") == (2 if is_cut else 0)
    assert ("the chart starts at" in chromium.run("document.getElementById('waterfall').innerText")) == is_cut
    widths = chromium.run(
        "[...document.querySelectorAll('.waterfall .step')].map((each) => parseFloat(each.style.width))"
    )
    assert (widths[0] / widths[1] == pytest.approx(3.15 / 6.15)) == (not is_cut)
