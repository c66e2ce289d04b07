"""The documentation: its generated parts are whole, and what it shows exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from perfhooks.findings import RULES
from perfhooks.options import described
from perfhooks.report.definitions import DEFINITIONS
from perfhooks.schedule import Schedule
from perfhooks.trace.nesting import starts

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def generated():
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs/generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_option_is_in_one_table_with_its_default(generated):
    table = generated.options("")
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [option.name for option in described()]
    assert "| `exit_timeout` | `60.0` |" in table
    assert all(row.count(" | ") == 2 for row in table.splitlines()[2:]), "a meaning would break its row"


def test_every_rule_is_there_with_what_it_sees_and_its_thresholds(generated):
    page = generated.rules("")
    assert page.count("### ") == len(RULES)
    assert "### waiting-for-data" in page
    assert re.search(r"- `WAITING = 0\.\d+`: \w+", page)


def test_every_number_of_the_page_is_explained(generated):
    page = generated.definitions("")
    for section, terms in DEFINITIONS.items():
        assert f"### {section}\n" in page
        assert all(f"| {term} | " in page for term in terms)


def test_a_start_is_defined_by_the_thresholds_that_find_it():
    said = DEFINITIONS["Checks"]["start"]
    assert f"launches of {starts.LOADING_NS // 10**6} ms" in said
    assert f"calls of {starts.CONTEXT_NS // 10**6} ms" in said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_mark_gives_way_to_what_it_stands_for(page, generated):
    assert "<!-- generated" not in generated.on_page_markdown(page.read_text(encoding="utf-8"))


def test_every_page_is_in_the_navigation():
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == [page.name for page in PAGES]


def test_the_schedules_it_names_are_schedules():
    for page in PAGES:
        for words in re.findall(r'schedule[= ]"([^"]+)"', page.read_text(encoding="utf-8")):
            assert Schedule.of(words)


def test_every_fault_it_lists_has_its_test():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/faults.md").read_text(encoding="utf-8")))
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in tests} == set()


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_what_they_name_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in re.findall(r"`make ([\w -]+)`", text):
        assert all(re.search(rf"^{word}:", targets, re.MULTILINE) for word in words.split())
    for room in re.findall(r"`(\w+(?:/\w+)*/(?:\w+\.py)?)`", text):
        assert (ROOT / room).exists() or (ROOT / "perfhooks" / room).exists(), room
