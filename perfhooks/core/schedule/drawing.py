from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.core.schedule.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfhooks.core.schedule.phases import Planned

COLUMNS: Final = 80

DRAWN_IN_FULL: Final = 10
"""Maximum steps of a phase that is drawn with one character per step."""

_SIGNS: Final = {Phase.WAIT: "·", Phase.WARMUP: "▒", Phase.ACTIVE: "█"}


def drawing(windows: Iterable[Planned], *, repeat: int, total: int | None) -> str:
    """Return three lines: step numbers, phases, and a legend. Endless windows have ``repeat`` 0 and ``total`` None."""
    ruler, signs, count = "step", "    ", 0
    position = 0
    for window in windows:
        spans = (
            (position, window.first, Phase.WAIT),
            (window.first, window.active, Phase.WARMUP),
            (window.active, window.last + 1, Phase.ACTIVE),
        )
        above, below = _cells(spans)
        if count and len(ruler) + len(above) > COLUMNS:
            break
        ruler, signs, count, position = ruler + above, signs + below, count + 1, window.last + 1
    return "\n".join((ruler.rstrip(), signs.rstrip(), _legend(repeat - count, total)))


def _cells(spans: tuple[tuple[int, int, Phase], ...]) -> tuple[str, str]:
    above = below = ""
    for begin, end, phase in spans:
        if begin == end:
            continue
        length, sign = end - begin, _SIGNS[phase]
        drawn = sign * length if length <= DRAWN_IN_FULL else f"{length}".center(DRAWN_IN_FULL, sign)
        width = max(len(drawn), len(str(begin)))
        above, below = f"{above} {begin:<{width}}", f"{below} {drawn:<{width}}"
    return above, below


def _legend(more: int, total: int | None) -> str:
    signs = "  ".join(f"{sign} {phase.value}" for phase, sign in _SIGNS.items())
    if total is None:
        return f"{signs}  and so on, without end"
    return f"{signs}  {f'and {more} more, ' if more else ''}nothing after step {total - 1}"
