"""Tables of small traces and of the twins of recorded traces are those of tests/data/golden."""

import io

import pytest
import table_cases
from table_cases import FOLDER
from twins import DIALECTS

from perfhooks.report import handlers
from perfhooks.report.page import window_data
from perfhooks.run.capture import Capture
from perfhooks.trace import read


@pytest.fixture(autouse=True)
def _no_measured_peaks(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFHOOKS_PEAKS", str(tmp_path / "none.json"))


@pytest.mark.parametrize("subject", sorted(path.stem for path in (FOLDER / "tables").glob("*.txt")))
def test_tables_of_a_small_trace_are_exact(subject, golden, tmp_path):
    name = f"tables/{subject}.txt"
    golden(name, table_cases.updated((FOLDER / name).read_text(encoding="utf-8"), tmp_path))


@pytest.mark.parametrize("name", DIALECTS)
def test_tables_of_a_twin_are_exact(name, golden, traces):
    trace = read(traces / f"{name}.json.gz")
    tables = [f"> {table}\n{table_cases.output(trace, *table.split())}\n" for table in table_cases.OF_TWINS]
    golden(f"twins/{name}.txt", "\n".join(tables))


HANDLERS = {
    **{name: name for name in ("steps", "operators", "kernels", "categories", "functions", "modules")},
    "kernels-by-launch": {"type": "kernels", "by_launch": True},
    "functions-by-file": {"type": "functions", "sort_by": "file", "row_limit": 1},
    "memory": {"type": "memory", "rows": 1},
}


@pytest.mark.parametrize("case", HANDLERS)
def test_files_of_a_handler_are_exact(case, golden, traces):
    trace = read(traces / "h100-bert-small.json.gz")
    for name, write in handlers.build(HANDLERS[case]).artifacts(Capture(), trace):
        file = io.BytesIO()
        write(file)
        golden(f"handlers/{case}/{name}", file.getvalue().decode())


def test_report_contains_functions_and_categories(traces):
    trace = read(traces / "h100-bert-small.json.gz")
    page, count = window_data.reduce(Capture(), trace), table_cases.show.compute(trace, "functions").height
    assert (page["functions"]["count"], len(page["functions"]["rows"]["function"])) == (count, count)
    assert page["categories"]["category"] == table_cases.show.compute(trace, "categories")["category"].to_list()
    bare = read(traces / "mi210-gpu-only.json.gz")
    assert not window_data.reduce(Capture(), bare).get("functions"), "without frames the report has no such table"
