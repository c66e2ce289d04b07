"""Definitions of the terms and columns of report, tables and site. The texts are in `definitions.md`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perfhooks.core.statistics import OUTLIER
from perfhooks.run.live.slow_causes import signs
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST


def read(path: Path, **values: object) -> dict[str, dict[str, str]]:
    """Return the definitions in a file, keyed by section and term. ``values`` replace the names in braces."""
    text = path.read_text(encoding="utf-8").format(**values)
    sections = (section.strip().split("\n\n") for section in text.split("\n## ")[1:])
    return {name: dict(_definition(paragraph) for paragraph in paragraphs) for name, *paragraphs in sections}


def _definition(paragraph: str) -> tuple[str, str]:
    term, _, meaning = " ".join(paragraph.split()).removeprefix("**").partition("**: ")
    return term, meaning


DEFINITIONS: Final = read(
    Path(__file__).with_suffix(".md"),
    OUTLIER=OUTLIER,
    FEWEST_FIRST=FEWEST_FIRST,
    MOST_FIRST=MOST_FIRST,
    CAUSES="; ".join(f"{cause}: {sign}" for cause, sign in signs().items()),
)
