"""Damaged baselines, and what a comparison makes of them: for those who look for what breaks it."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING

import msgspec
import run_folders

from perfhooks.analysis.comparison import baseline, comparison, costs, sources
from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.report.comparison import written
from perfhooks.report.comparison.page import render

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

ODD = (
    *("\x1b]0;x\x07", "\u202eabc", "a\r\nb", "\x9b2J", "@everyone", "<img src=x>", "![i](http://x.y)", "&#64;all"),
    *("www.x.y", "|`*", "\ud800", "x" * 20_000, "\u2028", ""),
    *(3, 2**53, 49.0, -49.0, 1e12, 5e-324, 1.0),
)
"""Texts that somebody would like a terminal or a site to make something of, and numbers at the edge of what may be."""
FORBIDDEN = re.compile(r"@everyone|<img|(?<!\\)\]\(|http://|&#64;|www\.x")
FORMATS = ({}, {"indent": 4}, {"sort_keys": True}, {"indent": 1, "sort_keys": True}, {"ensure_ascii": False})
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")
PAGE = 0.005
"""The share of comparisons of which the page is made, which takes ten times as long as all else."""


class WrongError(Exception):
    """A comparison says what it should not."""


class Cases:
    """One baseline, damaged, beside one that is not.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._good = folder / "case.json", folder / "good.json"
        (side,) = sources.read([[run_folders.template(folder / "run")]])
        side.costs.host = {place: costs.KeyCost(3, *[10**6 * number] * 2) for number, place in enumerate(_places(), 1)}
        side.costs.counts = {place.operator: 3 for place in side.costs.host}
        self._good.write_bytes(baseline.encode(side))
        self._told = json.loads(self._good.read_bytes())

    def make(self, dice: random.Random, damage: Callable[[bytes], bytes]) -> None:
        """Write the next one."""
        told = self._told
        for _ in range(dice.choice((0, 1, 1, 2, 4))):
            told = run_folders.mutated(told, dice, odd=ODD)
        text = json.dumps(told, **dice.choice(FORMATS))
        content = text.encode(dice.choice(ENCODINGS), "surrogatepass" if text.isascii() else "replace")
        self.path.write_bytes(damage(content) if dice.random() < 0.3 else content)

    def examine(self, dice: random.Random) -> str:
        """Compare it; say what became of it."""
        paths = [self.path, self._good]
        dice.shuffle(paths)
        try:
            made = comparison.compare(*sources.read([[path] for path in paths]), shares=dice.random() < 0.2)
        except PerfhooksError as error:
            if "\n" in words.line(error) or len(str(error)) > 40_000:
                raise WrongError(f"an error of several lines: {error}") from error
            return "refused"
        for text in (written.text(made), shown := written.markdown(made)):
            if any(letter != "\n" and moves(letter) for letter in text):
                raise WrongError(f"commands reach the terminal: {text!r}")
        if FORBIDDEN.search(shown):
            raise WrongError(f"markdown makes more of a text than a text: {shown!r}")
        msgspec.json.encode(comparison.data(made))
        if dice.random() < PAGE:
            render(made)
        return "compared"


def moves(letter: str) -> bool:
    """Whether a letter is a command, half of one, the end of a line, or turns the direction of reading."""
    turns = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(letter) in turns


def _places() -> list[costs.CostKey]:
    names = ("aten::mm", "aten::add", "aten::copy_", "Optimizer.step#SGD.step")
    return [costs.CostKey(part, operator=name) for part in ("forward", "backward", "optimizer") for name in names]
