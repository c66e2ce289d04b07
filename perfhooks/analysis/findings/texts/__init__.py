"""Texts of findings. Each rule has a file in this folder; rules supply the values in braces.

Format specifications are those of Python, and ``ms``, ``share`` and ``size`` of `perfhooks.core.words`. ``{lines:count
line/lines}`` is a number with its noun: ``1 line``, ``2 lines``. ``{rate:.3g GB/s}`` is a number with its unit. A list
of lines is joined by commas.
"""

from __future__ import annotations

import functools
import numbers
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FOLDER: Final = Path(__file__).parent
SHARED: Final = "shared"
TORCH: Final = "torch"
_FORMATS: Final[dict[str, Callable[[float], str]]] = {
    "ms": words.ms,
    "share": words.share,
    "size": words.size,
    "hundredths": words.hundredths,
    "signed": functools.partial(words.hundredths, sign="+"),
}
_UNITS: Final = {"ms": "ms", "share": "ratio", "size": "bytes", "hundredths": "ms", "signed": "ms"}


class Value(msgspec.Struct, frozen=True):
    """A value inserted into a text. The unit is ``ms``, ``bytes``, ``ratio``, ``GB/s``, ``number`` or ``name``."""

    value: float | int | str | None
    unit: str

    @classmethod
    def of(cls, value: object, format_spec: str) -> Value:
        if not isinstance(value, numbers.Real):
            return cls(_joined(value), "name")
        kind, *nouns = format_spec.split(" ")
        unit = nouns[0] if nouns and kind != "count" else "number"
        return cls(int(value) if isinstance(value, numbers.Integral) else float(value), _UNITS.get(kind, unit))


class EvidenceLine(msgspec.Struct, frozen=True, omit_defaults=True):
    phrase: str
    """Key of the line in the ``[evidence]`` table of the rule's texts."""
    text: str
    values: dict[str, Value] = {}
    parts: tuple[EvidenceLine, ...] = ()
    """Evidence lines that ``text`` contains, for example one for each category."""

    def __str__(self) -> str:
        return self.text


def _joined(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Alternative texts of a rule, for some of its findings. A field such as ``{fix}`` inserts the main text."""

    title: str = "{title}"
    estimate: str = "{estimate}"
    fix: str = "{fix}"
    code: str | dict[str, str] = "{code}"
    """Example code: one text, or a mapping of integrations (``perfhooks_lightning``) to texts."""
    code_of: str = ""
    """Name of another rule whose example code is shown."""


class RuleTexts(Version, frozen=True):
    evidence: dict[str, str] = {}
    versions: dict[str, Version] = {}
    general_fix: str = ""
    """Fix that the documentation shows instead of ``fix``, if ``fix`` contains values of a window."""


class Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if isinstance(value, (list, tuple)):
            return _joined(value)
        kind, *nouns = format_spec.split(" ")
        if kind == "count":
            return words.count(value, *" ".join(nouns).split("/"))
        text = _FORMATS[kind](value) if kind in _FORMATS else super().format_field(value, kind)
        return " ".join([text, *nouns])


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
        self._versions: list[tuple[str, Version]] = [("", texts)]
        self._versions += [(name, texts.versions[name]) for name in versions if name]
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
        for _, version in self._versions:
            code = of_rule(version.code_of).code if version.code_of else version.code
            template = code if isinstance(code, str) else code.get(self._package, code[TORCH])
            text = self._filled(template.strip("\n"), {"code": text})
        return text

    @property
    def version(self) -> str:
        return next((name for name, version in reversed(self._versions) if version.title != "{title}"), "")

    @property
    def values(self) -> dict[str, Value]:
        titles = {name: one_line(version.title) for name, version in self._versions}
        return self._values_of(self._fields(titles[self.version], {}))

    def __call__(self, name: str, /, **values: object) -> EvidenceLine:
        template = _phrase(self._texts, name)
        fields = self._fields(template, values)
        parts = [item for _, value, _ in fields for item in (value if isinstance(value, (list, tuple)) else [value])]
        return EvidenceLine(
            name,
            self._filled(template, values),
            self._values_of(fields),
            tuple(part for part in parts if isinstance(part, EvidenceLine)),
        )

    @staticmethod
    def _values_of(fields: Iterable[tuple[str, object, str]]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for name, value, spec in fields:
            values |= value.values if isinstance(value, EvidenceLine) else {name: Value.of(value, spec)}
        return values

    def _fields(self, template: str, values: Mapping[str, object]) -> list[tuple[str, object, str]]:
        parsed = self.formatter.parse(template)
        given = {**self._values, **values}
        return [(name, self.formatter.get_field(name, (), given)[0], spec or "") for _, name, spec, _ in parsed if name]

    def _last(self, kind: str) -> str:
        templates = [one_line(getattr(version, kind)) for _, version in self._versions]
        first = max(index for index, template in enumerate(templates) if not index or f"{{{kind}}}" not in template)
        text = ""
        for template in templates[first:]:
            text = self._filled(template, {kind: text})
        return text

    def _filled(self, template: str, values: Mapping[str, object]) -> str:
        return self.formatter.vformat(template, (), {**self._values, **values})


@functools.cache
def of_rule(rule: str) -> RuleTexts:
    return msgspec.toml.decode((FOLDER / f"{rule}.toml").read_bytes(), type=RuleTexts)


def _phrase(texts: RuleTexts, name: str) -> str:
    return one_line((of_rule(SHARED).evidence | texts.evidence)[name])


def shared(name: str, /, **values: object) -> EvidenceLine:
    return FindingText(SHARED, {})(name, **values)


def one_line(text: str) -> str:
    return " ".join(text.split())
