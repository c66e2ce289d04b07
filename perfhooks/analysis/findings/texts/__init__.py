"""Texts of findings. Each rule has a file in this folder; rules supply the values in braces.

Format specifications are those of Python, and ``ms``, ``share`` and ``size`` of `perfhooks.core.words`.
``{lines:count line}`` is a number with its noun: ``1 line``, ``2 lines``.
"""

from __future__ import annotations

import functools
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER: Final = Path(__file__).parent
SHARED: Final = "shared"
"""File of the texts that several rules use."""
TORCH: Final = "torch"
_FORMATS: Final = {"ms": words.ms, "share": words.share, "size": words.size}


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Alternative texts of a rule for some windows. A field such as ``{fix}`` inserts the rule's usual text."""

    title: str = "{title}"
    estimate: str = "{estimate}"
    fix: str = "{fix}"
    code: str | dict[str, str] = "{code}"
    """One text, or texts by package of the framework."""
    code_of: str = ""
    """Other rule whose code is shown."""


class RuleTexts(Version, frozen=True):
    evidence: dict[str, str] = {}
    versions: dict[str, Version] = {}
    general_fix: str = ""
    """Fix in the documentation, if the fix depends on the window."""


class Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if format_spec in _FORMATS:
            return _FORMATS[format_spec](value)
        kind, *nouns = format_spec.split(" ")
        return words.count(value, *nouns) if kind == "count" else super().format_field(value, format_spec)


class FindingText:
    formatter: ClassVar[string.Formatter] = Formatter()

    def __init__(
        self,
        rule: str,
        values: Mapping[str, object],
        versions: Iterable[str] = (),
        package: str = TORCH,
        own: RuleTexts | None = None,
    ) -> None:
        texts = of_rule(rule) if own is None else own
        self.rule = rule
        self._texts = texts
        self._values = values
        self._versions = [texts, *(texts.versions[name] for name in versions if name)]
        self._package = package

    @property
    def title(self) -> str:
        return self._last("title")

    @property
    def estimate(self) -> str:
        return self._last("estimate")

    @property
    def fix(self) -> str:
        return self._last("fix")

    @property
    def code(self) -> str:
        text = ""
        for version in self._versions:
            code = of_rule(version.code_of).code if version.code_of else version.code
            template = code if isinstance(code, str) else code.get(self._package, code[TORCH])
            text = self._filled(template.strip("\n"), {"code": text})
        return text

    def __call__(self, name: str, /, **values: object) -> str:
        return self._filled(_phrase(self._texts, name), values)

    def _last(self, kind: str) -> str:
        text = ""
        for version in self._versions:
            text = self._filled(one_line(getattr(version, kind)), {kind: text})
        return text

    def _filled(self, template: str, values: Mapping[str, object]) -> str:
        return self.formatter.vformat(template, (), {**self._values, **values})


@functools.cache
def of_rule(rule: str) -> RuleTexts:
    return msgspec.toml.decode((FOLDER / f"{rule}.toml").read_bytes(), type=RuleTexts)


def phrase(rule: str, name: str) -> str:
    return _phrase(of_rule(rule), name)


def _phrase(texts: RuleTexts, name: str) -> str:
    return one_line((of_rule(SHARED).evidence | texts.evidence)[name])


def shared(name: str, /, **values: object) -> str:
    return FindingText(SHARED, {})(name, **values)


def literals(template: str) -> list[str]:
    """Return the parts of a template between its fields."""
    return [literal for literal, *_ in string.Formatter().parse(template) if literal]


def one_line(text: str) -> str:
    return " ".join(text.split())
