"""Flame graphs as pictures: one SVG file that needs nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

from perfhooks import words
from perfhooks.report.page import filled
from perfhooks.report.tree import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

MEASURES: Final = {"host": "host time", "device": "device time", "bytes": "bytes allocated"}
"""What a flame graph is called by what it sums."""

_WIDTH: Final = 1200
_ROW: Final = 18
_LETTER: Final = 6.7
"""About the width of a letter."""
_PADDING: Final = 8
_TOP: Final = 58
_BOTTOM: Final = 44
_PLACE: Final = re.compile(r"(?:.*/)?([^/]+)\((\d+)\): (.+)")
# what XML has no way to write
_UNWRITABLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def flame(tree: Mapping[str, Any], *, title: str, unit: Literal["nanoseconds", "bytes"] = "nanoseconds") -> str:
    """Draw a flame graph, the outermost frames on top.

    Every frame has its full name, value and share as a title. A click zooms in, where the viewer runs scripts; nothing
    is loaded from anywhere.

    Args:
        tree: What `tree.tree` gives.
        title: What it shows.
        unit: Of its values.

    Returns:
        An SVG document.
    """
    frames = _placed(tree, unit)
    return filled(
        "flame.svg.j2",
        title=_writable(title),
        frames=frames,
        kinds=[KINDS[kind] for kind in sorted(set(tree["kinds"]))],
        width=_WIDTH,
        row=_ROW,
        top=_TOP,
        height=_TOP + _BOTTOM + _ROW * (1 + max(frame["depth"] for frame in frames)),
    )


def _placed(tree: Mapping[str, Any], unit: str) -> list[dict[str, Any]]:
    """The frames with their places, as parts of the whole width."""
    whole = tree["value"][0]
    depth: list[int] = []
    left: list[int] = []
    used: list[int] = []  # by the children that were placed
    frames = []
    for place, (parent, frame, value) in enumerate(zip(tree["parent"], tree["frame"], tree["value"], strict=True)):
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
        left.append(left[parent] + used[parent] if parent >= 0 else 0)
        used.append(0)
        if parent >= 0:
            used[parent] += value
        name = _writable(tree["names"][frame])
        frames.append(
            {
                "name": name,
                "label": (label := _label(name)),
                "short": _short(label, _WIDTH * value / whole),
                "kind": KINDS[tree["kinds"][frame]],
                "value": _shown(value, unit),
                "share": words.share(value / whole),
                "x": f"{left[place] / whole:.6f}",
                "width": f"{value / whole:.6f}",
                "depth": depth[place],
            }
        )
    return frames


def _writable(text: str) -> str:
    return _UNWRITABLE.sub("�", text)


def _label(name: str) -> str:
    """A frame with what one looks for first: the function, then its file."""
    place = _PLACE.fullmatch(name)
    return f"{place[3]}  {place[1]}:{place[2]}" if place else name


def _short(name: str, width: float) -> str:
    """As much of a name as fits."""
    room = int((width - _PADDING) / _LETTER)
    if room < 3:  # noqa: PLR2004 -- fewer letters say nothing
        return ""
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _shown(value: int, unit: str) -> str:
    return words.size(value) if unit == "bytes" else words.ms(value / 1e6)
