"""Pages that are made from what stands elsewhere: options, columns, findings, and documents outside of this folder.

mkdocs calls `on_page_markdown` for every page; a line ``<!-- generated: options -->`` gives way to what stands here, so
that the site, the page of a run and ``help()`` say the same.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import posixpath
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfhooks.analysis.findings import finding, frameworks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import TypeGuard

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"^<!-- generated: (\w+)(?: (\w[\w ./']*))? -->$", re.MULTILINE)
_ROLE = re.compile(r":(?:class|data|func|meth):`~?([^`]+)`")
_SHOWN_ROLE = re.compile(r":(?:class|data|func|meth):<code>~?")
"""How a role of a docstring comes out on the page of the API, whose Markdown knows none."""
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page."""
    return _MARK.sub(lambda match: MAKERS[match[1]](match[2] or ""), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show the name that a role of a docstring has, without the role."""
    return _SHOWN_ROLE.sub("<code>", html)


def options(_: str) -> str:
    """Every option, with its default and what it means."""
    from perfhooks.core.options import described

    rows = [f"| `{each.name}` | `{each.default!r}` | {_cell(each.meaning)} |" for each in described()]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])


def successors(whose: str) -> str:
    """What the options of another profiler are called here."""
    from perfhooks.core.successors import SUCCESSORS

    named = next(options for owner, options in SUCCESSORS.items() if owner.endswith(whose))
    rows = [f"| `{name}` | `{answer}` |" for name, answer in named.items()]
    return "\n".join(["| there | here |", "|---|---|", *rows])


def definitions(section: str) -> str:
    """What every number of the page and the tables means, or those of one section, without its title."""
    from perfhooks.report.page.definitions import DEFINITIONS

    if section:
        return _terms(DEFINITIONS[section])
    return "\n\n".join(f"### {section.capitalize()}\n\n{_terms(terms)}" for section, terms in DEFINITIONS.items())


def rules(_: str) -> str:
    """Every rule: what it means, what to do about it, and how it is told."""
    from perfhooks.analysis.findings import RULES, RUN_RULES

    return "\n\n".join(_rule(rule) for rule in (*RULES, *RUN_RULES))


def causes(_: str) -> str:
    """Every cause of a slow step, in the order in which they are tried, and what tells it."""
    from perfhooks.record.watch.causes import SEEN_BY

    return "\n".join(
        ["| cause | seen by |", "|---|---|", *(f"| {cause} | {seen} |" for cause, seen in SEEN_BY.items())]
    )


def file(path: str) -> str:
    """A document outside of this folder, without its title; links to others that the site has lead to their pages."""
    text = (ROOT / path).read_text(encoding="utf-8").partition("\n")[2]

    def link(match: re.Match[str]) -> str:
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({_shown().get(aim, match[1])})"

    return _LINK.sub(link, text)


@cache
def _shown() -> dict[str, str]:
    """For each document outside of this folder the page that shows it."""
    pages = {page.name: _MARK.findall(page.read_text(encoding="utf-8")) for page in (ROOT / "docs").glob("*.md")}
    return {path: page for page, marks in pages.items() for maker, path in marks if maker == "file"}


def _terms(terms: dict[str, str]) -> str:
    rows = [f"| {term} | {_cell(text)} |" for term, text in terms.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


# --- findings: a rule's call of `finding` says what the page of a run shows, its docstring how that is told ---

_MEASURED = {
    r"\bshare\(": "N%",
    r"\bms\(": "N ms",
    "unit": "step",
    "^library$": "oneDNN",
    "^backend$": "mkldnn",
    "^name$": "Adam",
}
"""What stands in a title or an advice where a rule puts what it has measured or met; N for all else."""

_FILLED_IN = {"optimizer": "Adam"}
"""What stands in braces in the words of a face."""

_SOURCE = re.compile(r"^Source:((,| and)? `[\w.]+`)*[.;]? ?(the (?=time |kernels ))?")
"""The beginning of a paragraph that says how a rule tells, and the names of its thresholds."""

_ADVICE = {
    "waiting-for-data": (
        "Use enough worker processes (`num_workers`), within the free CPUs and memory. If single slow batches delay a "
        "step, prefetch more (`prefetch_factor`). If the disk is slow, read less. If the transfer of batches is slow, "
        "transfer less. The report names the bottleneck, based on the counts of the workers."
    ),
    "host-bound": (
        "Make fewer and larger launches: use `torch.compile` (in mode `reduce-overhead` if shapes do not change), a "
        "fused optimizer or a larger batch. If graphs are replayed already, prepare the next inputs while the device "
        "works."
    ),
    "unnamed-time": (
        "If this code prepares data, move it into a Dataset and let the workers of a DataLoader run it during the "
        "step. Otherwise, run it less often or in a thread."
    ),
}
"""Where a rule puts its advice together from what it saw."""


def _rule(rule: Callable[..., Any]) -> str:
    module = importlib.import_module(rule.__module__)
    call = _call_of_finding(rule)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    seen, *paragraphs = (inspect.getdoc(rule) or "").split("\n\n")
    told = dict(_told(paragraphs))
    how = told.get("How it is told", "")
    constants = [each for paragraph in paragraphs for each in re.findall(r"`([A-Z_]+)`", paragraph)]
    thresholds = [line for each in dict.fromkeys(constants) for line in _threshold(module, each)]
    name = _text(call.args[0], module)
    advice, code = _text(given["advice"], module) or _ADVICE[name], _text(given["code"], module)
    frameworks = [line for node in ast.walk(given["code"]) if _is_said(node) for line in _of_frameworks(node)]
    details = ['??? note "How it is told"', *(_indented(each) for each in (how, "\n".join(thresholds)) if each)]
    return "\n\n".join(
        filter(
            None,
            [
                f"### {_text(given['title'], module).rstrip('.')}",
                f"`{name}`: {_plain(seen)}",
                f"**What to do.** {_plain(advice)}" if advice else "",
                f"```python\n{code}\n```" if code else "",
                "\n".join(["| framework | its words |", "|---|---|", *frameworks]) if frameworks else "",
                *([f"**Measured.** {told['Measured']}"] if "Measured" in told else []),
                *(details if len(details) > 1 else []),
            ],
        )
    )


def _call_of_finding(rule: Callable[..., Any]) -> ast.Call:
    """Where a rule says what the page shows."""
    body = ast.walk(ast.parse(inspect.getsource(rule)))
    calls = [node for node in body if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".finding")]
    (call,) = calls
    return call


def _told(paragraphs: list[str]) -> Iterator[tuple[str, str]]:
    """The paragraphs of a docstring by what they are for, without the names of thresholds, which are listed."""
    how = [_SOURCE.sub("", " ".join(each.split())) for each in paragraphs if not each.startswith("Measured: ")]
    yield "How it is told", "\n\n".join(_plain(each[0].upper() + each[1:]) for each in how if each)
    for each in paragraphs:
        if each.startswith("Measured: "):
            text = _plain(" ".join(each.split()).removeprefix("Measured: "))
            yield "Measured", text[0].upper() + text[1:]


def _text(node: ast.expr, module: ModuleType) -> str:
    """What an expression of a rule says, with a word for what it measures; of two cases both."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, module) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        if isinstance(kept := getattr(module, ast.unparse(node.value), None), str):
            return kept
        return next((word for code, word in _MEASURED.items() if re.search(code, ast.unparse(node.value))), "N")
    if isinstance(node, ast.IfExp):
        one, other = _text(node.body, module), _text(node.orelse, module)
        return other if one in other else f"{one}\n\n{other}"
    said = frameworks.code_for(ast.literal_eval(node.args[0]), **_FILLED_IN) if _is_said(node) else None
    return said or str(getattr(module, ast.unparse(node), ""))


def _is_said(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a rule has lines of the table of faces there."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".code_for")


def _of_frameworks(node: ast.Call) -> Iterator[str]:
    """Rows of a table: what these lines are in the words of each framework that has its own."""
    advised = ast.literal_eval(node.args[0])
    for framework in frameworks.CODE[advised]:
        if framework:
            lines = frameworks.code_for(advised, framework, **_FILLED_IN).splitlines()
            yield f"| {framework} | {'<br>'.join(f'`{line}`' for line in lines)} |"


def _threshold(module: ModuleType, name: str) -> Iterator[str]:
    """A threshold with its value and its reason, as the module says it."""
    if not hasattr(module, name):
        return
    if f"\n{name}: " not in inspect.getsource(module):
        module = finding  # a threshold of several modules
    body = ast.parse(inspect.getsource(module)).body
    for node, following in itertools.pairwise(body):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == name and isinstance(following, ast.Expr):
            reason = _plain(" ".join(str(ast.literal_eval(following.value)).split()))
            yield f"- `{name} = {getattr(module, name)}`: {reason}"


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _plain(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


MAKERS: dict[str, Callable[[str], str]] = {
    "options": options,
    "successors": successors,
    "definitions": definitions,
    "rules": rules,
    "causes": causes,
    "file": file,
}
