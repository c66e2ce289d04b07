"""How numbers and texts are written for people: a time, a share, a size, a count, each in one way.

A sentence, a table beside it and the page say the same number with the same digits, or a reader takes them for two.
``report/templates/dom.js`` has the same rules for the page, and a test holds both together.
"""

from __future__ import annotations

import re
from typing import Final

_TIMES: Final = (("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("min", 6e4), ("h", 3.6e6))
"""Units of time, in milliseconds."""
_FROM: Final = {"us": 0.0, "ms": 0.1, "s": 1e3, "min": 1.2e5, "h": 7.2e6}
"""From how many milliseconds each is used: two minutes are the first time that is easier to read in minutes."""
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_LEAST_NUMBER: Final = 0.0001
"""Smaller numbers would need an exponent."""
_ABSURD: Final = 1e6
"""Of the largest unit: no file that is true has as many hours, and one that lies must not fill the screen."""


def ms(milliseconds: float) -> str:
    """A time in three digits, in the unit that makes it short: ``35 us``, ``4.12 ms``, ``412 ms``, ``12.3 s``.

    Args:
        milliseconds: The time; one below 0 keeps its sign.
    """
    value = _rounded(abs(milliseconds))
    if not value:
        return "0 ms"
    unit = [name for name, least in _FROM.items() if value >= least][-1]
    return f"{'-' if milliseconds < 0 else ''}{_plain(value / dict(_TIMES)[unit])} {unit}"


def number(value: float) -> str:
    """A number in three significant digits: ``0.0123``, ``4.12``, ``1,230``; ``<0.0001`` below that."""
    size = _rounded(abs(value))
    if 0 < size < _LEAST_NUMBER:
        return f"<{_LEAST_NUMBER}"
    return f"{'-' if value < 0 else ''}{f'{size:,.0f}' if size >= 100 else _plain(size)}"


def share(part: float) -> str:
    """A share of a whole in percent: ``61%``, below ten percent with one digit behind the point, ``0.3%``.

    Args:
        part: From 0 to 1; what is more than the whole is written as it is.
    """
    percent = 100 * part
    if 0 < percent < 0.1:  # the last digit that is written
        return "<0.1%"
    return f"{percent:.0f}%" if abs(percent) >= 9.95 else f"{percent:.1f}".removesuffix(".0") + "%"


def size(count: float) -> str:
    """A number of bytes in three digits: ``512 B``, ``1.5 MiB``."""
    left, unit = float(abs(count)), 0
    while _rounded(left) >= _STEP and unit < len(_SIZES) - 1:
        left, unit = left / _STEP, unit + 1
    return f"{'-' if count < 0 else ''}{_plain(_rounded(left)) if unit else f'{left:.0f}'} {_SIZES[unit]}"


def count(number: int, one: str, many: str | None = None) -> str:
    """A number of things with its noun: ``1 step``, ``1,200 steps``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def steps(first: int, last: int) -> str:
    """Steps that follow each other: ``step 3``, ``steps 3-5``."""
    return f"step {first}" if first == last else f"steps {first}-{last}"


def _rounded(value: float) -> float:
    """A value to three digits, so that its unit is chosen for what is written: 999.6 ms is a second."""
    return float(f"{value:.3g}")


def _plain(value: float) -> str:
    """Three digits without an exponent and without zeros at the end."""
    if value >= 100:  # three digits stand before the point
        return f"{value:,.0f}" if value < _ABSURD else f"{value:.3g}"
    text = f"{value:.{1 if value >= 10 else 2}f}" if value >= 1 else f"{value:.3g}"  # two digits there
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


# C0 but for the tab and the end of a line, DEL and C1: a terminal takes them for commands. Then what turns around the
# direction of what follows, so that a line reads otherwise than it is: Unicode's embeddings, overrides and isolates.
_COMMANDS: Final = (*(code for code in range(32) if code not in (9, 10)), *range(127, 160))
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS: Final = dict.fromkeys((*_COMMANDS, *_DIRECTIONS), "\N{REPLACEMENT CHARACTER}")


_BREAKS: Final = dict.fromkeys((0x09, 0x0A, 0x2028, 0x2029), " ")


def line(text: object) -> str:
    """A text as `printable` has it, in one line."""
    return printable(text).translate(_BREAKS)


# What markdown and the sites that show it make something else of than the text: entities and elements of HTML, links
# and images, what looks like an address, code, a cell of a table, emphasis, and the mention of a person or of everyone.
_MARKDOWN: Final = re.compile(r"[\\`*\[\]|]|(?<=:)//|(?<=www)\.", re.IGNORECASE)
_NOBODY: Final = "@\N{ZERO WIDTH SPACE}"


def markdown(text: object) -> str:
    """A text as `line` has it, of which markdown shows the letters and makes nothing else."""
    shown = line(text).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN.sub(r"\\\g<0>", shown).replace("@", _NOBODY)


def printable(text: object) -> str:
    """A text that moves no cursor, sets no color and opens no window: what would is shown as a question mark.

    So is half a character, as Python makes of a path that is not UTF-8: no terminal takes it.

    Args:
        text: Anything that can be written; names in a trace are whatever was written into the file.
    """
    return str(text).translate(_HARMLESS).encode("utf-8", "replace").decode()
