"""Pages that are made from the code: options, columns, findings and the READMEs of the integrations.

mkdocs calls `on_page_markdown` for every page; a line ``<!-- generated: options -->`` gives way to what stands here, so
that the site, the page of a run and ``help()`` say the same.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"^<!-- generated: (\w+)(?: (\w[\w ]*))? -->$", re.MULTILINE)
_ROLE = re.compile(r":(?:class|data|func|meth):`~?([^`]+)`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page."""
    return _MARK.sub(lambda match: MAKERS[match[1]](match[2] or ""), markdown)


def options(_: str) -> str:
    """Every option, with its default and what it means."""
    from perfhooks.options import described

    rows = [f"| `{each.name}` | `{each.default!r}` | {_cell(each.meaning)} |" for each in described()]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])


def definitions(section: str) -> str:
    """What every number of the page and the tables means, or those of one section, without its title."""
    from perfhooks.report.definitions import DEFINITIONS

    if section:
        return _terms(DEFINITIONS[section])
    return "\n\n".join(f"### {title}\n\n{_terms(terms)}" for title, terms in DEFINITIONS.items())


def rules(_: str) -> str:
    """Every rule: what it sees, and from where its thresholds are."""
    from perfhooks.findings import RULES

    return "\n\n".join(_rule(rule) for rule in RULES)


def readme(package: str) -> str:
    """The README of an integration, or of all of them, one heading deeper and without its title."""
    folder = ROOT / "integrations" / package if package else ROOT / "integrations"
    text = (folder / "README.md").read_text(encoding="utf-8")
    return text.partition("\n")[2]


def _terms(terms: dict[str, str]) -> str:
    rows = [f"| {term} | {_cell(text)} |" for term, text in terms.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _rule(rule: Callable[..., Any]) -> str:
    said = inspect.getdoc(rule) or ""
    title, _, rest = said.partition("\n\n")
    name = (rule.__name__).replace("_", "-")
    constants = [line for constant in re.findall(r"`([A-Z_]+)`", rest) for line in _constant(rule, constant)]
    return "\n\n".join(filter(None, [f"### {name}", _plain(title), _plain(rest), "\n".join(constants)]))


def _constant(rule: Callable[..., Any], name: str) -> Iterator[str]:
    """A threshold with its value and its reason, as the module says it."""
    module = importlib.import_module(rule.__module__)
    if not hasattr(module, name):
        return
    body = ast.parse(inspect.getsource(module)).body
    for node, following in itertools.pairwise(body):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == name and isinstance(following, ast.Expr):
            reason = _plain(" ".join(str(ast.literal_eval(following.value)).split()))
            yield f"- `{name} = {getattr(module, name)}`: {reason}"


def _plain(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


MAKERS: dict[str, Callable[[str], str]] = {
    "options": options,
    "definitions": definitions,
    "rules": rules,
    "readme": readme,
}
