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
import string
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfhooks.analysis.findings import finding, frameworks, texts
from perfhooks.trace.names import devices
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

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


# --- findings: the texts of a rule come from its file, its thresholds from its docstring ---

_SAMPLES = {
    "unit": "step",
    "device": devices.NVIDIA,
    "device_type": '"cuda"',
    "library": "oneDNN",
    "backend": "mkldnn",
    "optimizer": "Adam",
    "loader": "DataLoader(..., num_workers=N, persistent_workers=True)",
    "recording": 'Profiler(..., schedule="wait=N warmup=2 active=3 repeat=1")',
    "off": "with_stack=False",
    "flags": "--with-stack",
}
"""Values in texts of findings; N for all other values."""


class _Formatter(string.Formatter):
    """Fills in the samples."""

    def get_value(self, key: int | str, _: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return {**_SAMPLES, **kwargs}.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> Any:
        if value is not None:
            return str(value)
        kind, *nouns = format_spec.split(" ")
        unit = f" {nouns[-1]}s" if kind == "count" else {"ms": " ms", "share": "%"}.get(kind, " ".join(["", *nouns]))
        return f"N{unit}"


class _SampleText(texts.FindingText):
    formatter = _Formatter()


_SOURCE = re.compile(r"^Source:((,| and)? `[\w.]+`)*[.;]? ?(the (?=time |kernels ))?")
"""Start of the paragraph about detection, with the names of its thresholds."""

_MEASUREMENT = re.compile("Measured: |Not measured")
"""Start of the paragraph about measurements of the fix."""


def _rule(rule: Callable[..., Any]) -> str:
    module = importlib.import_module(rule.__module__)
    name = rule.__name__.replace("_", "-")
    text, rule_texts = _SampleText(name, {}), texts.of_rule(name)
    summary, *paragraphs = (inspect.getdoc(rule) or "").split("\n\n")
    detection, measured = _detection(paragraphs), _measurement(paragraphs)
    constants = [name for paragraph in paragraphs for name in re.findall(r"`(?:\w+\.)*([A-Z_]+)`", paragraph)]
    thresholds = [line for name in dict.fromkeys(constants) for line in _threshold(module, name)]
    alternatives = [_SampleText(name, {}, [version]) for version in rule_texts.versions]
    fix = texts.one_line(rule_texts.general_fix) or _joined([text.fix, *(version.fix for version in alternatives)])
    code = _joined([text.code, *(version.code for version in alternatives)])
    rows = [row for version in (rule_texts, *rule_texts.versions.values()) for row in _framework_rows(version)]
    details = [_indented(text) for text in (detection, "\n".join(thresholds)) if text]
    return "\n\n".join(
        filter(
            None,
            [
                f"### {text.title.rstrip('.')}",
                f"`{name}`: {_plain(summary)}",
                f"**Fix.** {fix}",
                f"```python\n{code}\n```" if code else "",
                "\n".join(["| framework | code |", "|---|---|", *rows]) if rows else "",
                measured,
                *(['??? note "Detection"', *details] if details else []),
            ],
        )
    )


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


def _joined(alternatives: Iterable[str]) -> str:
    """Return the first text, and the others that do not contain it or belong to it."""
    parts = list(dict.fromkeys(filter(None, map(str.strip, alternatives))))
    additions = [text for text in parts[1:] if parts[0] not in text and text not in parts[0]]
    return "\n\n".join([*parts[:1], *additions])


def _framework_rows(version: texts.Version) -> Iterator[str]:
    """Yield the table rows with the code of each framework that has its own."""
    names = {package: name for name, package in frameworks.PACKAGES.items()}
    for package, code in version.code.items() if isinstance(version.code, dict) else ():
        if package != texts.TORCH:
            lines = _Formatter().format(code.strip("\n")).splitlines()
            yield f"| {names[package]} | {'<br>'.join(f'`{line}`' for line in lines)} |"


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
