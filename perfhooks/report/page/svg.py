"""Flame graphs as self-contained SVG files."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any, Final, Literal

from perfhooks.analysis.flames import KINDS
from perfhooks.core import words
from perfhooks.report.page.page import filled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MEASURES: Final = {"host": "host time", "device": "device time", "bytes": "bytes allocated"}

_LEGEND: Final = {"code": "your code", "library": "installed code", "runtime": "device runtime"}
_WIDTH: Final = 1200
_ROW: Final = 18
_TOP: Final = 58
_PLACE: Final = re.compile(r"(?:.*/)?([^/]+)\((\d+)\): (.+)")
_UNWRITABLE: Final = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f]|[\ud800-\udfff]|[\ufffe\uffff]")
"""Characters that XML forbids."""


def flame(tree: Mapping[str, Any], *, title: str, unit: Literal["nanoseconds", "bytes"] = "nanoseconds") -> str:
    frames, rows = _frames(tree, unit)
    height = _TOP + 44 + _ROW * rows
    return filled(
        "flame.svg",
        title=html.escape(_writable(title)),
        frames=frames,
        legend=_legend([KINDS[kind] for kind in sorted(set(tree["kinds"]))]),
        width=str(_WIDTH),
        height=str(height),
        back_x=str(_WIDTH - 130),
        find_x=str(_WIDTH - 60),
        legend_y=str(height - 12),
    )


def _frames(tree: Mapping[str, Any], unit: str) -> tuple[str, int]:
    total = tree["value"][0]
    depth: list[int] = []
    start: list[int] = []
    used: list[int] = []
    frames = []
    for place, (parent, frame, value) in enumerate(zip(tree["parent"], tree["frame"], tree["value"], strict=True)):
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
        start.append(start[parent] + used[parent] if parent >= 0 else 0)
        used.append(0)
        if parent >= 0:
            used[parent] += value
        name = _writable(tree["names"][frame])
        title = f"{name}\n{_format(value, unit)}, {words.share(value / total)}"
        label, x, width, top = _label(name), start[place] / total, value / total, _TOP + _ROW * depth[place]
        frames.append(
            f'<g class="frame" data-x="{x:.6f}" data-w="{width:.6f}" data-d="{depth[place]}" '
            f'data-n="{html.escape(label)}"><title>{html.escape(title)}</title>'
            f'<rect class="{KINDS[tree["kinds"][frame]]}" x="{_WIDTH * x:.2f}" y="{top}" width="{_WIDTH * width:.2f}" '
            f'height="{_ROW - 1}" rx="2"/>'
            f'<text x="{_WIDTH * x + 4:.2f}" y="{top + 12.5}">{html.escape(_short(label, _WIDTH * width))}</text></g>\n'
        )
    return "".join(frames), 1 + max(depth)


def _legend(kinds: Sequence[str]) -> str:
    return "".join(
        f'<tspan class="{kind}" dx="{14 if place else 0}">■</tspan><tspan dx="5">{_LEGEND.get(kind, kind)}</tspan>'
        for place, kind in enumerate(kinds)
    )


def _writable(text: str) -> str:
    return _UNWRITABLE.sub("�", text)


def _label(name: str) -> str:
    place = _PLACE.fullmatch(name)
    return f"{place[3]}  {place[1]}:{place[2]}" if place else name


def _short(name: str, width: float) -> str:
    # a character is about 6.7 pixels wide, and the padding 8
    room = int((width - 8) / 6.7)
    if room < 3:  # noqa: PLR2004 -- fewer characters are unreadable
        return ""
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _format(value: int, unit: str) -> str:
    return words.size(value) if unit == "bytes" else words.ms(value / 1e6)
