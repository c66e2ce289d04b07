"""Tables of small traces and of the twins of recorded traces are those of tests/data/golden."""

import pytest
import table_cases
from table_cases import FOLDER
from twins import DIALECTS

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
