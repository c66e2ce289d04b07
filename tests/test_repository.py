"""Files of the repository that other programs read: citation, workflow, templates, hooks and metadata."""

import re
import shlex
from datetime import date
from pathlib import Path

import pytest
import yaml

import perfhooks

ROOT = Path(__file__).parents[1]
CFF_FIELDS = {
    "cff-version", "message", "type", "title", "abstract", "version", "license", "authors", "keywords", "date-released"
}  # fmt: skip
"""Fields of the Citation File Format 1.2 that are used."""
CLASSIFIERS = {"Development Status", "Intended Audience", "Operating System", "Programming Language", "Topic", "Typing"}


def loaded(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def project():
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_citation_has_the_version_and_valid_fields():
    citation = loaded("CITATION.cff")
    assert citation.keys() <= CFF_FIELDS
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), "fields that the format requires"
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["version"] == perfhooks.__version__
    assert citation["license"] == "MIT"
    assert all(author.keys() & {"name", "family-names"} for author in citation["authors"])
    assert isinstance(citation.get("date-released", date(2026, 1, 1)), date)


def test_workflow_calls_the_script_of_ci_with_read_permission():
    workflow = loaded(".github/workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert workflow["permissions"] == {"contents": "read"}
    assert {"push", "pull_request"} <= workflow[True].keys(), "YAML reads the key `on` as true"
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_issue_forms_have_a_name_and_fields_with_labels(form):
    template = loaded(f".github/ISSUE_TEMPLATE/{form}.yml")
    assert {"name", "description", "body"} <= template.keys()
    fields = [field for field in template["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_pull_request_template_names_targets_that_exist():
    text = (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([\w-]+)`", text)) <= set(targets)
    assert all((ROOT / name).exists() for name in re.findall(r"`([\w.]+\.md)`", text))


def test_hooks_call_the_tools_of_the_lint_group():
    hooks = [hook for repository in loaded(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    tools = {Path(shlex.split(hook["entry"])[0]).name for hook in hooks}
    (group,) = re.findall(r"^lint = \[(.*)\]$", project(), re.MULTILINE)
    assert tools == set(re.findall(r'"(\w+)[><=]', group))
    assert all({"id", "name", "entry", "language"} <= hook.keys() for hook in hooks)


def test_security_policy_explains_how_to_report():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert {"## Supported versions", "## Report a vulnerability"} <= set(text.splitlines())
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_metadata_of_the_package_is_complete():
    text = project()
    for field in (
        "name",
        "description",
        "readme",
        "requires-python",
        "license",
        "license-files",
        "authors",
        "keywords",
    ):
        assert re.search(rf"^{field} = ", text, re.MULTILINE), field
    classifiers = re.findall(
        r'^  "([\w ]+) :: ', text.partition("classifiers = [")[2].partition("\n]")[0], re.MULTILINE
    )
    assert set(classifiers) == CLASSIFIERS
    assert '"Private' not in text


def test_source_distribution_includes_the_documents():
    (included,) = re.findall(r"^include = \[(.*)\]$", project().partition("targets.sdist]")[2], re.MULTILINE)
    patterns = re.findall(r'"/([^"]+)"', included)
    assert [pattern for pattern in patterns if not [*ROOT.glob(pattern)]] == []
    assert {"*.md", "CITATION.cff", "LICENSE", "docs"} <= {*patterns}


def test_change_log_has_at_most_60_lines_for_the_first_release():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"^(?=## \[)", text, flags=re.MULTILINE)[1:]
    most = {release: 60 if release.startswith("## [0.1.0]") else 30 for release in releases}
    assert [release for release, lines in most.items() if len(release.splitlines()) > lines] == []


def test_documentation_stays_short():
    """README and site have at most 22,000 words, without code and outputs."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    code = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    texts = {page.name: code.sub("", page.read_text(encoding="utf-8")) for page in pages}
    words = {name: len(re.findall(r"\S*\w\S*", text)) for name, text in texts.items()}
    assert sum(words.values()) <= 22_000, sorted(words.items(), key=lambda item: -item[1])[:10]


def test_questions_are_twelve():
    text = (ROOT / "docs/faq.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^## .*\?$", text, re.MULTILINE)) == 12
