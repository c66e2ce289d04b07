"""Generated parts of pages: options, columns, findings, causes of slow steps, and documents outside of this folder.

`make pages` writes them between the lines ``<!-- generated: options -->`` and ``<!-- end -->``, so that the site, the
report and ``help()`` have the same texts. A test fails if a page is outdated.
"""

from __future__ import annotations

import json
import posixpath
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfhooks.analysis.findings import texts
from perfhooks.trace.names import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"^<!-- generated: (\w+)(?: (\w[\w ./']*))? -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":(?:class|data|func|meth):`~?([^`]+)`")
_SHOWN_ROLE = re.compile(r":(?:class|data|func|meth):<code>~?")
"""HTML of a docstring role on the API page. Its Markdown does not support roles."""
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def renewed(markdown: str) -> str:
    """Return a page with its generated parts renewed."""

    def part(match: re.Match[str]) -> str:
        return f"{match[0].partition(chr(10))[0]}\n\n{MAKERS[match[1]](match[2] or '').strip()}\n\n<!-- end -->"

    return _MARK.sub(part, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Replace docstring roles by their names."""
    return _SHOWN_ROLE.sub("<code>", html)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the reports of the gallery to the site."""
    from mkdocs.structure.files import File

    from perfhooks.report.page import page

    for path in sorted((ROOT / "docs/gallery").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))["report"]
        files.append(File.generated(config, f"gallery/{path.stem}.html", content=page.render(data)))
        files.remove(files.src_uris[f"gallery/{path.name}"])


def options(_: str) -> str:
    """Return the table of all options with defaults and meanings."""
    from perfhooks.core.options import all_options

    rows = [f"| `{option.name}` | `{option.default!r}` | {_cell(option.meaning)} |" for option in all_options()]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])


def successors(whose: str) -> str:
    """Return the table of another profiler's options and their names here."""
    from perfhooks.core import successors

    named = next(options for owner, options in successors.successors().items() if owner.endswith(whose))
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
    from perfhooks.run.live.slow_causes import signs

    return "\n".join(
        ["| cause | detected by |", "|---|---|", *(f"| {cause} | {sign} |" for cause, sign in signs().items())]
    )


def file(path: str) -> str:
    """Return a document outside of this folder without its title; links lead to pages of the site."""
    text = (ROOT / path).read_text(encoding="utf-8").partition("\n")[2]

    def link(match: re.Match[str]) -> str:
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({aim.removeprefix('docs/')})"

    return _LINK.sub(link, text)


def gallery(name: str) -> str:
    """Return the summary, the fix and the measured gain of a slow training, as `benchmarks/gallery.py` stored them."""
    result = json.loads((ROOT / f"docs/gallery/{name}.json").read_text(encoding="utf-8"))
    patch = (ROOT / f"examples/slow/{name}.patch").read_text(encoding="utf-8")
    return f"""```text
$ perfhooks run {name}.py
{result["printed"].strip()}
```

[The whole report](gallery/{name}.html)

```diff
{patch.strip()}
```

```text
$ perfhooks compare --run {name}.py -- fixed/{name}.py
{result["verdict"]}
```"""


def _terms(terms: dict[str, str]) -> str:
    rows = [f"| {term} | {_cell(_short(text, 8))} |" for term, text in terms.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


# --- findings: their texts come from the files of the rules ---

_SAMPLES = {
    "unit": "step",
    "device": devices.NVIDIA,
    "device_type": '"cuda"',
    "library": "oneDNN",
    "backend": "mkldnn",
    "optimizer": "Adam",
    "loader": "DataLoader(..., num_workers=N, persistent_workers=True)",
    "recording": 'Profiler(..., schedule="wait=10 warmup=2 active=3 repeat=1")',
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


def _rule(rule: Callable[..., Any]) -> str:
    name = rule.__name__.replace("_", "-")
    text, rule_texts = _SampleText(name, {}), texts.of_rule(name)
    alternatives = [text, *(_SampleText(name, {}, [version]) for version in rule_texts.versions)]
    fix = texts.one_line(rule_texts.general_fix) or next(version.fix for version in alternatives if version.fix)
    code = next((version.code for version in alternatives if version.code), "")
    parts = [
        f"### {text.title.rstrip('.')}",
        f"`{name}`. **Fix.** {_short(fix, 12)}",
        f"```python\n{code}\n```" if code else "",
    ]
    return "\n\n".join(filter(None, parts))


def _plain(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _short(text: str, words: int) -> str:
    """Return the first sentences, until they have this many words. The report has the whole text."""
    sentences: list[str] = []
    for sentence in re.split(r"(?<=[.)])\s+(?=[A-Z'(])", " ".join(text.split())):
        if sum(len(part.split()) for part in sentences) < words:
            sentences.append(sentence)
    return " ".join(sentences)


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


MAKERS: dict[str, Callable[[str], str]] = {
    "options": options,
    "successors": successors,
    "definitions": definitions,
    "rules": rules,
    "causes": causes,
    "file": file,
    "gallery": gallery,
}


def main() -> None:
    """Renew the generated parts of all pages."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
