"""The language of everything that people read: words and constructions that cost a second reading."""

import ast
import inspect
import itertools
import re
import string
import types
from pathlib import Path

import pytest

import perfhooks
from perfhooks.analysis.findings import texts

ROOT = Path(__file__).parents[1]

BANNED = {
    r"\b[Nn]obody\b|\b[Ss]omebody\b": "name the actor: the user, the training, the worker",
    r"\bprocessors? time\b|\b[Bb]usy processor\b": "CPU time, CPU contention",
    r"\b(?:of|in|for|by|with|than) what\b(?! if)": "a noun instead of a what-clause",
    r"\b(?:that which|those that|one that|all that)\b": "a noun instead of a relative clause",
    r"\b(?:is|are|was|were|be|been) (?:told|said|asked|heard)\b": "report, request, receive",
    r"^(?:Of|Those|Whoever|What(?!.*\?)|Than) ": "a sentence begins with its subject",
    r"\b(?:stand down|give way|gives way|hand(?:s|ed)? over)\b": "disable, yield, transfer",
    r"\bfor ever\b|\bas such\b": "say how long, or what",
}
"""Patterns with the remedy. Readers of other languages stumble over these first."""
NAMES = {"found", "each", "told", "said", "known", "kept", "given", "taken", "made", "whole", "wanted", "looked"}
"""Variables that do not name their content."""
MOST_SENTENCES = 0.02
MOST_NAMES = 0.005
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("integrations/*.md"), *ROOT.glob("integrations/*/*.md")]
)
MODULES = sorted([*ROOT.glob("perfhooks/**/*.py"), *ROOT.glob("integrations/**/*.py")])


def sentences(text):
    words = re.sub(r"\s+", " ", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`\"'(])", words) if len(part.split()) > 2]


def faults(text):
    return [sentence for sentence in sentences(text) if any(re.search(pattern, sentence) for pattern in BANNED)]


def docstrings(tree):
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else []:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                yield str(child.value.value)


def paragraphs(path):
    text = path.read_text(encoding="utf-8")
    return re.split(r"\n\s*\n|\n(?=[|*#-])", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize(("wrong", "count"), [("Nobody asks for it. The worker reads it.", 1), ("It returns rows.", 0)])
def test_faults_are_found(wrong, count):
    assert len(faults(wrong)) == count


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_plain_sentences(path):
    texts = paragraphs(path)
    wrong = [sentence for text in texts for sentence in faults(text)]
    assert len(wrong) <= max(1, MOST_SENTENCES * sum(len(sentences(text)) for text in texts)), "\n".join(wrong)


@pytest.mark.slow
def test_docstrings_use_plain_sentences():
    texts = [text for path in MODULES for text in docstrings(ast.parse(path.read_text(encoding="utf-8")))]
    wrong = [sentence for text in texts for sentence in faults(text)]
    assert len(wrong) <= MOST_SENTENCES * sum(len(sentences(text)) for text in texts), "\n".join(wrong)


@pytest.mark.slow
def test_variables_name_their_content():
    names = [
        node.id if isinstance(node, ast.Name) else node.arg
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    assert sum(name.lstrip("_") in NAMES for name in names) <= MOST_NAMES * len(names)


@pytest.mark.process  # torch starts one when it is imported
@pytest.mark.parametrize("name", perfhooks.__all__)
def test_public_names_are_documented(name):
    public = getattr(perfhooks, name)
    own = [value for key, value in vars(public).items() if not key.startswith("_")] if isinstance(public, type) else []
    methods = [value for value in own if isinstance(value, types.FunctionType | property | classmethod | staticmethod)]
    assert inspect.getdoc(public)
    assert [method for method in methods if not method.__doc__] == []


PLURAL = re.compile(r" (?:(?!(?:times|million|has|without|before|for|with) )[a-z-]+ )?([a-z-]*[^\Wsu]s)\b(?!/s)")
"""A noun after a value, with at most one adjective."""
NO_COUNT = {"times", "bytes", "does", "has", "this", "is", "was", "its", "as", "activities", "multiprocessors"}
"""Words that also follow one thing: factors, sizes, verbs and names of Python."""
VERBS = {"arrives", "belongs", "contains", "disables", "lacks", "names", "needs", "reads", "runs", "sets", "supplies"}
VERBS |= {"ends", "records", "takes", "works"}
TEXTS = {"device.graph", "unit", "link", "subject", "place", "line"}
"""Fields of findings that are no numbers."""


def uncounted(pairs):
    """Values, as source code, with a plural noun that `words.count` does not write."""
    nouns = [(value, PLURAL.match(text)) for value, text in pairs]
    return [f"{value}{noun[0]}" for value, noun in nouns if noun and noun[1] not in NO_COUNT]


def is_number(value):
    """Whether the value may be 1: no text of `words`, and no constant."""
    code = ast.unparse(value)
    is_text = isinstance(value, ast.Call) and not code.startswith(("len(", "sum(", "max(", "min("))
    return not (is_text or code.isupper() or isinstance(value, ast.IfExp | ast.Subscript))


@pytest.mark.slow
def test_numbers_in_messages_agree_with_their_nouns():
    wrong = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", None) for part in node.values]
                pairs = [(value, text) for value, text in itertools.pairwise(parts) if isinstance(text, str)]
                wrong += uncounted((ast.unparse(value), text) for value, text in pairs if is_number(value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                wrong += uncounted(("%d", text) for text in node.value.split("%d")[1:])
    assert [text for text in wrong if text.rpartition(" ")[2] not in VERBS] == []


def templates(rule):
    own = texts.of_rule(rule)
    versions = [own, *own.versions.values()]
    sentences = [text for version in versions for text in (version.title, version.estimate, version.fix)]
    return map(texts.one_line, [*sentences, *own.evidence.values()])


def test_numbers_in_findings_agree_with_their_nouns():
    wrong, specs = [], []
    for path in sorted(texts.FOLDER.glob("*.toml")):
        for template in templates(path.stem):
            parsed = [*string.Formatter().parse(template), ("", None, None, None)]
            pairs = itertools.pairwise(parsed)
            fields = [(name, spec or "", after) for (_, name, spec, _), (after, *_) in pairs if name]
            numbers = [(name, after) for name, spec, after in fields if spec[-1:] in ",dfg"]
            wrong += uncounted(number for number in numbers if number[0] not in TEXTS)
            specs += [spec.removeprefix("count ").split("/") for _, spec, _ in fields if spec.startswith("count")]
    assert wrong == []
    assert [nouns for nouns in specs if len(set(nouns)) != 2 and re.search("[^aeou]y$|[sxh]$", nouns[0])] == []
    assert specs


@pytest.mark.parametrize("number", [0, 1, 2, 1.0, 1.004, 0.5])
def test_formatted_number_agrees_with_its_noun(number):
    text = texts.Formatter().format("{calls:count late call is/late calls are} in a step", calls=number)
    assert ("late call is" in text) == text.startswith("1 ") == (number in {1, 1.004})
