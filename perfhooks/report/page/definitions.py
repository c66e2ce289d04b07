"""Definitions of the terms and columns of report, tables and site, by section. Their texts are in `definitions.md`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perfhooks.core.statistics import OUTLIER
from perfhooks.run.live.slow_causes import signs
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST


def _read_definitions() -> dict[str, dict[str, str]]:
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    causes = "; ".join(f"{cause}: {sign}" for cause, sign in signs().items())
    text = text.format(OUTLIER=OUTLIER, FEWEST_FIRST=FEWEST_FIRST, MOST_FIRST=MOST_FIRST, CAUSES=causes)
    sections = (section.strip().split("\n\n") for section in text.split("\n## ")[1:])
    return {name: dict(_definition(paragraph) for paragraph in paragraphs) for name, *paragraphs in sections}


def _definition(paragraph: str) -> tuple[str, str]:
    term, _, meaning = " ".join(paragraph.split()).removeprefix("**").partition("**: ")
    return term, meaning


DEFINITIONS: Final = _read_definitions()
