"""Text forms of numbers and names.

``report/page/templates/dom.js`` has the same rules; a test compares both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MAX_TEXT: Final = 1000
"""Maximum letters of an external text, for example an exception message."""

OF_RUN: Final = " of the run"
"""End of a gain whose percentage is one of the run."""
_TIMES: Final = (("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("min", 6e4), ("h", 3.6e6))
_FROM: Final = {"us": 0.0, "ms": 0.1, "s": 1e3, "min": 1.2e5, "h": 7.2e6}
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def ms(milliseconds: float) -> str:
    """Return a time with three digits and a unit: ``35 us``, ``4.12 ms``, ``412 ms``, ``12.3 s``."""
    value = _rounded(abs(milliseconds))
    if not value:
        return "0 ms"
    unit = [name for name, least in _FROM.items() if value >= least][-1]
    return f"{'-' if milliseconds < 0 else ''}{_plain(value / dict(_TIMES)[unit])} {unit}"


def hundredths(value: float, sign: str = "") -> str:
    """Round to three digits and two decimals: ``0.05``, ``4.12``, ``12.3``, ``1234``. Values below 0.005 become 0."""
    rounded = round(value, 2) + 0.0
    return f"{rounded:{sign}.0f}" if abs(rounded) >= 100 else f"{rounded:{sign}.3g}"


def number(value: float) -> str:
    """Return three significant digits: ``0.0123``, ``4.12``, ``1,230``; ``<0.0001`` for smaller values above 0."""
    size = _rounded(abs(value))
    if 0 < size < 0.0001:
        return "<0.0001"
    return f"{'-' if value < 0 else ''}{f'{size:,.0f}' if size >= 100 else _plain(size)}"


def share(part: float) -> str:
    """Return a ratio as percentage: ``61%``, ``0.3%``."""
    percent = 100 * part
    if 0 < percent < 0.1:
        return "<0.1%"
    return f"{percent:.0f}%" if abs(percent) >= 9.95 else f"{percent:.1f}".removesuffix(".0") + "%"


def size(count: float) -> str:
    """Return bytes with three digits: ``512 B``, ``1.5 MiB``."""
    scaled, unit = float(abs(count)), 0
    while _rounded(scaled) >= 1024 and unit < len(_SIZES) - 1:
        scaled, unit = scaled / 1024, unit + 1
    return f"{'-' if count < 0 else ''}{_plain(_rounded(scaled)) if unit else f'{scaled:.0f}'} {_SIZES[unit]}"


def count(amount: float, noun: str, many: str | None = None) -> str:
    """Return a number with its noun, or with noun and verb: ``1 step``, ``2.5 calls``, ``1,200 launches have``."""
    text = f"{amount:,}" if isinstance(amount, int) else number(float(amount))
    return f"{text} {noun if text == '1' else many or noun + 's'}"


def is_milestone(amount: float) -> bool:
    """Whether a repeated message is logged: at 1, 3, 10, 30 and so on."""
    return str(int(amount)).rstrip("0") in ("1", "3")


def first_names(names: Sequence[str]) -> str:
    """Return three names and the number of the remaining ones: ``a, b, c and 2 more``."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def truncated(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 2]} …"


def steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first}-{last}"


def steps_of_mean(numbers: Collection[int], recorded: Iterable[int]) -> str:
    """Return the steps of a mean: ``steps 10-14 without 12``. For three gaps or more: ``16 of the steps 10-29``."""
    first, last = min(numbers), max(numbers)
    gaps = sorted({number for number in recorded if first < number < last} - {*numbers})
    if len(gaps) > 2:
        return f"{len(numbers)} of the {steps(first, last)}"
    return " ".join([steps(first, last), *(["without"] if gaps else []), " and ".join(map(str, gaps))]).rstrip()


def _rounded(value: float) -> float:
    """Round to three digits before the unit is selected: 999.6 ms is a second."""
    return float(f"{value:.3g}")


def _plain(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}" if value < 1e6 else f"{value:.3g}"
    text = f"{value:.{1 if value >= 10 else 2}f}" if value >= 1 else f"{value:.3g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


# Terminals execute C0 (except tab and newline), DEL and C1. Unicode's embeddings, overrides and isolates change the
# direction of text.
_COMMANDS: Final = (*(code for code in range(32) if code not in (9, 10)), *range(127, 160))
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS: Final = dict.fromkeys((*_COMMANDS, *_DIRECTIONS), "\N{REPLACEMENT CHARACTER}")


_BREAKS: Final = dict.fromkeys((0x09, 0x0A, 0x2028, 0x2029), " ")


def line(text: object) -> str:
    """Return one line without control characters."""
    return printable(text).translate(_BREAKS)


_MARKDOWN: Final = re.compile(r"[\\`*\[\]|]|(?<=:)//|(?<=www)\.", re.IGNORECASE)
_NO_MENTION: Final = "@\N{ZERO WIDTH SPACE}"


def markdown(text: object) -> str:
    """Return one line that Markdown shows literally."""
    shown = line(text).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN.sub(r"\\\g<0>", shown).replace("@", _NO_MENTION)


def printable(text: object) -> str:
    """Return a text for terminals: question marks replace control characters and surrogates.

    Python uses surrogates for paths that are not UTF-8.
    """
    return str(text).translate(_HARMLESS).encode("utf-8", "replace").decode()


def of_step(gain: str) -> str:
    """Add ``of a step`` to a gain, for example ``about 12 ms, 9%``, unless its percentage is one of the run."""
    return gain if not gain or gain.endswith(OF_RUN) else f"{gain} of a step"
