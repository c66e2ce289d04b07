"""The documentation: its generated parts are whole, and what it shows exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

from perfhooks.analysis.findings import RULES, RUN_RULES
from perfhooks.cli.actions import show
from perfhooks.cli.app import app
from perfhooks.core.options import all_options
from perfhooks.core.schedule import Schedule
from perfhooks.report import handlers
from perfhooks.report.page import definitions
from perfhooks.report.page.definitions import DEFINITIONS
from perfhooks.run.live import slow_causes
from perfhooks.trace.nesting import starts

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
FACES = [path.name for path in (ROOT / "integrations").glob("perfhooks_*")]
VERBS = typer.main.get_command(app).commands


@pytest.fixture(scope="module")
def generated():
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs/generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_options_table_contains_all_options_with_defaults(generated):
    table = generated.options("")
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [option.name for option in all_options()]
    assert "| `exit_timeout` | `2.0` |" in table
    assert all(row.count(" | ") == 2 for row in table.splitlines()[2:]), "a meaning would break its row"


@pytest.mark.slow
def test_rules_have_meaning_and_fix(generated):
    page = generated.rules("")
    assert page.count("### ") == page.count("**Fix.** ") == len((*RULES, *RUN_RULES))
    assert "### The step waits N ms for data, N% of its time\n" in page
    assert "`validation-in-steps`. " in page, "the name in the findings of a run"


def test_numbers_of_the_report_are_explained(generated):
    page = generated.definitions("")
    for section, terms in DEFINITIONS.items():
        assert f"### {section.capitalize()}\n" in page
        assert all(f"| {term} | " in page for term in terms)


def test_definitions_have_unique_terms_and_meanings():
    text = Path(definitions.__file__).with_suffix(".md").read_text(encoding="utf-8")
    paragraphs = [part for part in text.partition("\n## ")[2].split("\n\n") if not part.startswith("## ")]
    assert len(paragraphs) - 1 == sum(len(terms) for terms in DEFINITIONS.values())
    texts = [text for terms in DEFINITIONS.values() for pair in terms.items() for text in pair]
    assert [text for text in texts if not text or set(text) & set("*{}")] == []


def test_causes_of_slow_steps_are_explained():
    named = {value for name, value in vars(slow_causes).items() if name.isupper() and isinstance(value, str)}
    site = (ROOT / "docs/slow.md").read_text(encoding="utf-8")
    assert list(slow_causes.signs()) == list(slow_causes.CAUSES)
    assert sorted(named - slow_causes.signs().keys()) == []
    assert [cause for cause in slow_causes.signs() if f"\n| {cause} | " not in site] == []
    assert [cause for cause in slow_causes.signs() if f" {cause}: " not in DEFINITIONS["slow"]["cause"]] == []


def test_definition_of_a_start_names_its_thresholds():
    said = DEFINITIONS["checks"]["start"]
    assert f"calls of {starts.LOADING_NS // 10**6} ms" in said


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_of_a_page_are_current(page, generated):
    text = page.read_text(encoding="utf-8")
    assert generated.renewed(text) == text, "outdated: run `make pages`"
    assert text.count("<!-- generated") == text.count("<!-- end -->")


def test_an_outdated_part_is_renewed(generated):
    mark, end = "<!-- generated: causes -->", "<!-- end -->"
    assert generated.renewed(f"{mark}\nold\n{end}\n") == f"{mark}\n\n{generated.causes('')}\n\n{end}\n"


def test_document_of_another_folder_links_to_the_site(generated):
    assert "(schedule.md)" in generated.file("integrations/perfhooks_lightning/README.md")


def test_api_page_shows_names_without_roles(generated):
    shown = "<p>A :class:<code>~perfhooks.Schedule</code>, see <code>step</code>.</p>"
    assert generated.on_page_content(shown) == "<p>A <code>perfhooks.Schedule</code>, see <code>step</code>.</p>"


def test_pages_are_in_the_navigation():
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == [page.name for page in PAGES]


def test_schedules_in_the_docs_are_valid():
    for page in PAGES:
        for words in re.findall(r'schedule[= ]"([^"]+)"', page.read_text(encoding="utf-8")):
            assert Schedule.of(words)


# --- what is promised, and the test that holds it ---

NAMED = re.compile(r"`(?:(test_\w+\.py)::)?(test_\w+)`")
"""A test, as pages name it: with its file where several files have one of the name."""


def is_test(file, name):
    files = (ROOT / "tests").glob(file or "test_*.py")
    return any(re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files)


LISTS = [
    path
    for path in (
        *PAGES,
        ROOT / "tests/promises.md",
        ROOT / "tests/features.md",
        *sorted(ROOT.glob("integrations/*/*.md")),
    )
    if "| test |" in path.read_text("utf-8")
]
"""Pages with a table of what is held by which test."""


@pytest.mark.slow
@pytest.mark.parametrize("page", LISTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_named_in_the_docs_exist(page):
    named = set(NAMED.findall(page.read_text(encoding="utf-8")))
    assert named
    assert {each for each in named if not is_test(*each)} == set()


class Promise(NamedTuple):
    said: str
    """Words of the documentation; an ellipsis between spaces stands for some that were left out."""
    place: str
    tests: str


def promises():
    rows = (ROOT / "tests/promises.md").read_text(encoding="utf-8").splitlines()
    cells = [row.strip("|").split(" | ") for row in rows if row.startswith("| ") and "`test_" in row]
    return [Promise(*(cell.strip() for cell in row)) for row in cells]


def plain(text):
    """A text without its breaks, and without the marks of code and bold type."""
    return " ".join(text.replace("`", "").replace("**", "").split())


def page_of(place):
    """What stands in the place that a promise names: a page, or the help of a verb."""
    verb = re.fullmatch(r"`perfhooks (\w+) --help`", place)
    if verb:
        command = VERBS[verb[1]]
        options = (f"{' '.join(each.opts)} {getattr(each, 'help', None) or ''}" for each in command.params)
        return plain(f"{command.help} {' '.join(options)}")
    link = re.fullmatch(r"\[[\w ]+\]\((\S+\.md)\)", place)
    path = ROOT / "docs" / link[1] if link else ROOT / place.strip("`")
    return plain(path.read_text(encoding="utf-8"))


def test_promises_match_the_text_of_the_docs():
    """So one that leaves the documentation, or is put in other words, is looked at with its test."""
    pages = {place: page_of(place) for place in {each.place for each in promises()}}
    missing = []
    for promise in promises():
        rest = pages[promise.place]
        for words in plain(promise.said).split(" … "):
            _, quote, rest = rest.partition(words)
            missing += [] if quote else [f"{promise.place} does not say {words!r}"]
    assert missing == []


def files_of_a_run():
    """What the documentation says that a run leaves, as handlers name it: without the rank."""
    text = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"^perf/latest/\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    yield from (name.removeprefix("rank0.") for name in re.findall(r"^ {2,4}(\S+)", tree, re.MULTILINE))


DOCUMENTED = {
    "option": [f"`{option.name}`" for option in all_options()],
    "verb": [f"perfhooks {verb}" for verb in VERBS],
    "file": sorted(set(files_of_a_run())),
    "handler": [f'"{name}"' for name in handlers.NAMES],
    "face": [f"{face.removeprefix('perfhooks_')}.md" for face in FACES],
}


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_documented_features_have_a_promise(kind):
    text = "\n".join(f"{each.said} {each.place}" for each in promises())
    missing = [name for name in DOCUMENTED[kind] if not re.search(rf"(?<!\w){re.escape(name)}(?![\w.])", text)]
    assert not missing, f"tests/promises.md has no row, with its test, for {missing}"


def test_handlers_are_on_the_api_page():
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert [made.__name__ for made in handlers.NAMES.values() if f"        - {made.__name__}\n" not in page] == []


@pytest.mark.parametrize("face", FACES)
def test_integrations_have_an_extra_and_a_page(face):
    """One whose folder is not among the packages works here, and is missing for all who install perfhooks."""
    name = face.removeprefix("perfhooks_")
    needed = [
        ("pyproject.toml", f'"integrations/{face}",'),
        ("pyproject.toml", f"\n{name} = ["),
        ("mkdocs.yml", f": {name}.md\n"),
        ("docs/api.md", f"::: {face}."),
        ("docs/index.md", f"({name}.md)"),
        (f"docs/{name}.md", f"<!-- generated: file integrations/{face}/README.md -->"),
    ]
    files = {path: (ROOT / path).read_text(encoding="utf-8") for path, _ in needed if (ROOT / path).exists()}
    assert [(path, words) for path, words in needed if words not in files.get(path, "")] == []
    assert (ROOT / "integrations" / face / "py.typed").exists()


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_named_in_the_docs_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in re.findall(r"`make ([\w -]+)`", text):
        assert all(re.search(rf"^{word}:", targets, re.MULTILINE) for word in words.split())
    for room in re.findall(r"`(\w+(?:/\w+)*/(?:\w+\.py)?)`", text):
        assert (ROOT / room).exists() or (ROOT / "perfhooks" / room).exists(), room


def test_names_of_the_map_are_in_their_files():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    places = re.findall(r"((?:`\w+`(?:, | and )?)+) in `([\w/]+\.\w+)`", text)
    assert places
    for names, path in places:
        file = next(root / path for root in (ROOT / "perfhooks", ROOT) if (root / path).exists())
        content = file.read_text(encoding="utf-8")
        assert [name for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", content)] == [], path


def test_feature_page_numbers_its_rows_and_names_real_things():
    """115 rows, as many as the documents have that perfhooks began from; each table, verb and keyword exists."""
    page = (ROOT / "tests/features.md").read_text(encoding="utf-8")
    rows = [re.split(r" \| ", line.strip("| ")) for line in page.splitlines() if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == list(range(1, 116))
    assert all(len(row) == 4 and all(map(str.strip, row)) for row in rows)
    assert {*re.findall(r"--table (\w+)", page)} <= {*show.TABLES}
    assert {*re.findall(r"`perfhooks (\w+)", page)} <= {*VERBS}
