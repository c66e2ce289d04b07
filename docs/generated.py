"""Parts of pages that are generated: options, columns, findings, and documents outside of this folder.

mkdocs calls `on_page_markdown` for every page. It replaces a line ``<!-- generated: options -->``, so that the site,
the report and ``help()`` have the same texts.
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
from perfhooks.trace.names import devices
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import TypeGuard

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"^<!-- generated: (\w+)(?: (\w[\w ./']*))? -->$", re.MULTILINE)
_ROLE = re.compile(r":(?:class|data|func|meth):`~?([^`]+)`")
_SHOWN_ROLE = re.compile(r":(?:class|data|func|meth):<code>~?")
"""HTML of a docstring role on the API page. Its Markdown does not support roles."""
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page."""
    return _MARK.sub(lambda match: MAKERS[match[1]](match[2] or ""), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Replace docstring roles by their names."""
    return _SHOWN_ROLE.sub("<code>", html)


def options(_: str) -> str:
    """Return the table of all options with defaults and meanings."""
    from perfhooks.core.options import all_options

    rows = [f"| `{option.name}` | `{option.default!r}` | {_cell(option.meaning)} |" for option in all_options()]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])


def successors(whose: str) -> str:
    """Return the table of another profiler's options and their names here."""
    from perfhooks.core.successors import SUCCESSORS

    named = next(options for owner, options in SUCCESSORS.items() if owner.endswith(whose))
    rows = [f"| `{name}` | `{answer}` |" for name, answer in named.items()]
    return "\n".join(["| there | here |", "|---|---|", *rows])


def definitions(section: str) -> str:
    """Return the definitions of all figures in report and tables, or of one section without its title."""
    from perfhooks.report.page.definitions import DEFINITIONS

    if section:
        return _terms(DEFINITIONS[section])
    return "\n\n".join(f"### {section.capitalize()}\n\n{_terms(terms)}" for section, terms in DEFINITIONS.items())


def rules(_: str) -> str:
    """Return all rules with meaning, fix and detection."""
    from perfhooks.analysis.findings import RULES, RUN_RULES

    return "\n\n".join(_rule(rule) for rule in (*RULES, *RUN_RULES))


def causes(_: str) -> str:
    """Return the table of causes of slow steps and their detection, in the order of the checks."""
    from perfhooks.run.live.slow_causes import SEEN_BY

    return "\n".join(
        ["| cause | detected by |", "|---|---|", *(f"| {cause} | {sign} |" for cause, sign in SEEN_BY.items())]
    )


def file(path: str) -> str:
    """Return a document outside of this folder without its title; links lead to pages of the site if it has them."""
    text = (ROOT / path).read_text(encoding="utf-8").partition("\n")[2]

    def link(match: re.Match[str]) -> str:
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({_shown().get(aim, match[1])})"

    return _LINK.sub(link, text)


@cache
def _shown() -> dict[str, str]:
    """Return the page of each document outside of this folder."""
    pages = {page.name: _MARK.findall(page.read_text(encoding="utf-8")) for page in (ROOT / "docs").glob("*.md")}
    return {path: page for page, marks in pages.items() for maker, path in marks if maker == "file"}


def _terms(terms: dict[str, str]) -> str:
    rows = [f"| {term} | {_cell(text)} |" for term, text in terms.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


# --- findings: the title, fix and code of a rule come from its call of `finding`, its thresholds from its docstring ---

_MEASURED = {
    r"\bshare\(": "N%",
    r"\bms\(": "N ms",
    "unit": "step",
    "^library$": "oneDNN",
    "^backend$": "mkldnn",
    "^name$": "Adam",
}
"""Replacements of measured values in titles and fixes; N for all other values."""

_FILLED_IN = {"optimizer": "Adam", "device": "cuda"}
"""Values of the names in braces in the code of fixes."""

_SOURCE = re.compile(r"^Source:((,| and)? `[\w.]+`)*[.;]? ?(the (?=time |kernels ))?")
"""Start of the paragraph about detection, with the names of its thresholds."""

_MEASUREMENT = re.compile("Measured: |Not measured")
"""Start of the paragraph about measurements of the fix."""

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
    "exposed-communication": (
        "Overlap communication with computation, and send fewer bytes. The finding adapts its fix to the operation "
        "with the longest exposed time. Check the other ranks too: if one rank arrives late, the others wait in the "
        "collective."
    ),
    "recompilation": (
        "Keep shapes constant: drop the last, smaller batch, pad sequences to a few lengths, or mark the dimension as "
        "dynamic. The evidence lists the failed guards. If it is only the first compilation, start recording later."
    ),
}
"""Fixes of the rules that adapt their fix to the window."""


def _rule(rule: Callable[..., Any]) -> str:
    module = importlib.import_module(rule.__module__)
    call = _call_of_finding(rule)
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    summary, *paragraphs = (inspect.getdoc(rule) or "").split("\n\n")
    detection, measured = _detection(paragraphs), _measurement(paragraphs)
    constants = [name for paragraph in paragraphs for name in re.findall(r"`(?:\w+\.)*([A-Z_]+)`", paragraph)]
    thresholds = [line for name in dict.fromkeys(constants) for line in _threshold(module, name)]
    name = _text(call.args[0], module)
    advice, code = _ADVICE.get(name) or _text(arguments["advice"], module), _text(arguments["code"], module)
    rows = [row for node in ast.walk(arguments["code"]) if _is_code_of_framework(node) for row in _framework_rows(node)]
    details = [_indented(text) for text in (detection, "\n".join(thresholds)) if text]
    return "\n\n".join(
        filter(
            None,
            [
                f"### {_text(arguments['title'], module).rstrip('.')}",
                f"`{name}`: {_plain(summary)}",
                f"**Fix.** {_plain(advice)}" if advice else "",
                f"```python\n{code}\n```" if code else "",
                "\n".join(["| framework | code |", "|---|---|", *rows]) if rows else "",
                measured,
                *(['??? note "Detection"', *details] if details else []),
            ],
        )
    )


def _call_of_finding(rule: Callable[..., Any]) -> ast.Call:
    body = ast.walk(ast.parse(inspect.getsource(rule)))
    calls = [node for node in body if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".finding")]
    (call,) = calls
    return call


def _detection(paragraphs: list[str]) -> str:
    """Return the paragraphs about detection, without the names of thresholds at their start."""
    texts = [_SOURCE.sub("", " ".join(text.split())) for text in paragraphs if not _MEASUREMENT.match(text)]
    return "\n\n".join(_plain(text[0].upper() + text[1:]) for text in texts if text)


def _measurement(paragraphs: list[str]) -> str:
    """Return the paragraph about measurements of the fix; empty without one."""
    for paragraph in filter(_MEASUREMENT.match, paragraphs):
        text = _plain(" ".join(paragraph.split()))
        if text == "Not measured.":
            return "Not measured: the gain is an upper bound."
        head, _, measured = text.partition("Measured: ")
        return head or f"**Measured.** {measured[0].upper()}{measured[1:]}"
    return ""


def _text(node: ast.expr, module: ModuleType) -> str:
    """Return the text of an expression of a rule, with replacements of measured values; both texts of a condition."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, module) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        if isinstance(constant := _named(node.value, module), str):
            return constant
        return next((word for code, word in _MEASURED.items() if re.search(code, ast.unparse(node.value))), "N")
    if isinstance(node, ast.IfExp):
        text, alternative = _text(node.body, module), _text(node.orelse, module)
        return alternative if text in alternative else f"{text}\n\n{alternative}"
    code = frameworks.code_for(ast.literal_eval(node.args[0]), **_FILLED_IN) if _is_code_of_framework(node) else ""
    return code or str(_named(node, module) or "")


def _named(node: ast.expr, module: ModuleType) -> object:
    """Return the value of a name of the module, or of NVIDIA's devices; None for all other expressions."""
    owner, _, name = (text := ast.unparse(node)).rpartition(".")
    return getattr(devices.NVIDIA, name) if owner == "window.device" else getattr(module, text, None)


def _is_code_of_framework(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether an expression takes code from the table of frameworks."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".code_for")


def _framework_rows(node: ast.Call) -> Iterator[str]:
    """Yield the table rows with the code of each framework that has its own."""
    fix = ast.literal_eval(node.args[0])
    for framework in frameworks.CODE[fix]:
        if framework:
            lines = frameworks.code_for(fix, framework, **_FILLED_IN).splitlines()
            yield f"| {framework} | {'<br>'.join(f'`{line}`' for line in lines)} |"


def _threshold(module: ModuleType, name: str) -> Iterator[str]:
    """Yield the line of a threshold with its value and its docstring."""
    sources = {owner: inspect.getsource(owner) for owner in (module, finding, intervals)}
    module = next((owner for owner, source in sources.items() if f"\n{name}: " in source), module)
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
