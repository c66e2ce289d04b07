"""``findings.json`` and ``perfhooks show --format json``."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
from comparing_runs import make_run
from twins import TRACES
from typer.testing import CliRunner

import perfhooks
from perfhooks import testing
from perfhooks.cli.app import app
from perfhooks.report import page as report
from perfhooks.report.page import findings_file
from perfhooks.run.capture import Place

SCHEMA = Path(perfhooks.__file__).with_name("findings.schema.json")
"""The schema in the installed package."""


def shown(*arguments):
    done = CliRunner().invoke(app, ["show", *map(str, arguments), "--format", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def fields_of(schema, content):
    """All objects have exactly the fields of the schema."""
    strict = {"additionalProperties": False}
    definitions = {
        name: of_one | (strict if "properties" in of_one else {}) for name, of_one in schema["$defs"].items()
    }
    jsonschema.validate(content, {**schema, "$defs": definitions}, jsonschema.Draft202012Validator)


def examined(text):
    content = json.loads(text.decode("utf-8"), parse_constant=no_constant)
    schema = json.loads(SCHEMA.read_bytes())
    jsonschema.validate(content, schema, jsonschema.Draft202012Validator)
    fields_of(schema, content)
    for finding in content["findings"]:
        assert (finding["gain"] is None) == (finding["reason"] is not None)
        if finding["gain"] is not None:
            low, high = finding["gain"]["interval_ms"]
            assert 0 <= low <= finding["gain"]["ms"] <= high
    return content


def without_descriptions(schema):
    if isinstance(schema, dict):
        texts = {name for name, value in schema.items() if name == "description" and isinstance(value, str)}
        return {name: without_descriptions(value) for name, value in schema.items() if name not in texts}
    # the order of alternatives depends on the version of msgspec
    return sorted(map(without_descriptions, schema), key=str) if isinstance(schema, list) else schema


def recorded_run(folder, events, **options):
    run = make_run(folder, events, [8.0] * 50, **options)
    (window,) = run.glob("train-*")
    write_page(Place(window))
    report.write(run)
    return run


def write_page(place):
    from perfhooks import trace
    from perfhooks.report import handlers

    for artifact in handlers.build("page").artifacts(place.load(), trace.read(place.artifact("pt.trace.json.gz"))):
        with place.artifact(artifact.name).open("wb") as file:
            artifact.write(file)


def waiting_steps(name="train.py(20): load"):
    """Three steps of 10 ms that wait for data for 6 ms."""
    step = 10_000_000
    events = [testing.step_mark(number, number * step, (number + 1) * step) for number in (10, 11, 12)]
    for begin in (number * step for number in (10, 11, 12)):
        events.append(testing.annotation("data", begin, begin + 6_000_000))
        events.append(testing.python_frame(name, begin, begin + 5_000_000))
        events.append(testing.op("aten::mm", begin + 7_000_000, begin + 9_000_000))
    return events


def test_schema_of_the_package_is_that_of_the_code():
    """After a change, write the result of `findings_file.schema` into the file. Descriptions may differ in words."""
    assert without_descriptions(json.loads(SCHEMA.read_bytes())) == without_descriptions(
        json.loads(findings_file.schema())
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_bytes()))


def test_schema_rejects_a_wrong_file():
    schema = json.loads(SCHEMA.read_bytes())
    for wrong in ({}, {"version": 2}, []):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema, jsonschema.Draft202012Validator)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_every_trace_has_a_valid_file(traces, name):
    path = traces / f"{name}.json.gz"
    text = shown(path)
    content = examined(text)
    assert content["run"] == path.name
    assert content["findings"] or content["reason"]
    assert shown(path) == text, "the order never changes"


def test_file_of_a_run_is_what_show_prints(tmp_path):
    run = recorded_run(tmp_path / "run", waiting_steps(), command=["train.py", "--epochs", "3"])
    text = (run / "findings.json").read_bytes()
    assert shown(run) == shown(next(run.glob("train-*"))) == text
    content = examined(text)
    assert (content["version"], content["run"], content["window"]) == (1, "run", "train-000010-000012")
    assert content["command"] == ["train.py", "--epochs", "3"]
    assert content["step"]["unit"] == "step"
    assert content["step"]["ms"] == 8.0
    assert not content["step"]["is_profiled"]
    data = json.loads((run / "report.json").read_bytes())
    rows = data["windows"][0]["details"]["0"]["findings"]["rows"]
    assert [row["rule"] for row in content["findings"]] == [row["rule"] for row in rows]
    first, row = content["findings"][0], rows[0]
    assert (first["title"], first["fix"], first["evidence"]) == (row["title"], row["advice"], row["evidence"])
    assert first["gain"]["ms"] == row["gain_ms"]
    assert first["title"].startswith("The step waits")
    assert first["values"]["wait_ms"]["unit"] == "ms"


@pytest.mark.parametrize(
    ("frame", "file", "line"),
    [("src/train.py(20): load", "src/train.py", 20), ("C:\\job\\train.py(7): load", "C:\\job\\train.py", 7)],
)
def test_finding_names_function_file_and_line(tmp_path, frame, file, line):
    events = []
    for number in (10, 11):
        begin = number * 10_000_000
        events.append(testing.step_mark(number, begin, begin + 10_000_000))
        events.append(testing.python_frame(frame, begin, begin + 8_000_000))
        events.append(testing.annotation("backward", begin + 8_000_000, begin + 10_000_000))
    (finding,) = examined(shown(testing.write_trace(tmp_path / "t.json", events)))["findings"]
    location = [finding[field] for field in ("function", "file", "line")]
    assert (finding["rule"], location) == ("unnamed-time", ["load", file, line])


def test_without_findings_the_file_has_a_reason(tmp_path):
    events = [testing.step_mark(number, number * 100, number * 100 + 100) for number in (10, 11)]
    events += [testing.op("aten::mm", number * 100, number * 100 + 100) for number in (10, 11)]
    content = examined(shown(testing.write_trace(tmp_path / "t.json", events)))
    assert content["findings"] == []
    assert content["reason"].startswith("No rule found a problem.")


def test_run_without_a_window_has_a_reason(tmp_path):
    run = make_run(tmp_path / "run", waiting_steps(), [8.0] * 50)
    shutil.rmtree(next(run.glob("train-*")))
    content = examined(shown(run))
    assert (content["findings"], content["reason"], content["window"]) == ([], "No window is finished.", None)


def test_measured_fix_has_the_interval_of_the_trial(tmp_path):
    run = recorded_run(tmp_path / "run", waiting_steps())
    trial = {"variant": "x", "times": 2.0, "saved_ms": 1.0, "saved_percent": 5.0, "operators": 3, "device": "CPU"}
    trial |= {"rule": "waiting-for-data", "most": {"times": 3.0, "saved_ms": 2.5, "saved_percent": 9.0}}
    (run / "tried.json").write_text(json.dumps({"format": 1, "measured": [trial]}))
    finding = next(row for row in examined(shown(run))["findings"] if row["rule"] == "waiting-for-data")
    assert finding["measured"] == {"variant": "x", "device": "CPU", "interval_ms": [1.0, 2.5]}
    assert finding["confidence"] == "measured"


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are not UTF-8")
def test_paths_are_text_in_utf8(tmp_path):
    run = recorded_run(tmp_path / "run", waiting_steps("训练/train.py(3): load"))
    renamed = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff"))
    run.rename(renamed)
    report.write(renamed)
    content = examined((renamed / "findings.json").read_bytes())
    assert content["run"] == "r\\udcff"


def test_numbers_that_are_not_finite_are_null():
    part = findings_file.Part(name="x", ratio=math.nan, where=None)
    assert json.loads(findings_file.to_json(part), parse_constant=no_constant) == {
        "name": "x",
        "ratio": None,
        "where": None,
    }


@pytest.mark.parametrize("option", [["--limit", "3"], ["--by", "shapes"]])
def test_options_of_tables_need_a_table(tmp_path, option):
    path = testing.write_trace(tmp_path / "t.json", waiting_steps())
    done = CliRunner().invoke(app, ["show", str(path), "--json", *option])
    assert done.exit_code != 0
    assert "need --table" in str(done.exception) + done.output


def test_folder_without_a_trace_is_an_error(tmp_path):
    done = CliRunner().invoke(app, ["show", str(tmp_path), "--json"])
    assert "is no run, no trace and no folder of traces" in str(done.exception) + done.output


def test_every_field_is_in_the_documentation():
    page = (Path(__file__).parents[1] / "docs/findings_json.md").read_text(encoding="utf-8")
    schema = msgspec.json.decode(SCHEMA.read_bytes())
    names = {name for of_one in schema["$defs"].values() for name in of_one.get("properties", {})}
    assert sorted(name for name in names if f"`{name}`" not in page) == []
