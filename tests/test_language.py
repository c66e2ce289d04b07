"""The language of everything that people read: words and constructions that cost a second reading."""

import ast
import inspect
import re
import types
from pathlib import Path

import pytest

import perfhooks

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
