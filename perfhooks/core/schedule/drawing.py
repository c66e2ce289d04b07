"""A schedule as text: its first windows, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.core.schedule.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfhooks.core.schedule.phases import Planned

COLUMNS: Final = 80
"""The width of a drawing, in characters."""

DRAWN_IN_FULL: Final = 10
"""A stretch of at most so many steps is drawn with one sign a step; a longer one says its length."""

_SIGNS: Final = {Phase.WAIT: "·", Phase.WARMUP: "▒", Phase.ACTIVE: "█"}


def drawing(windows: Iterable[Planned], *, repeat: int, total: int | None) -> str:
    """Draw the first windows of a schedule.

    Args:
        windows: All of them, in order; they may go on for ever.
        repeat: How many there are.
        total: The number of steps to the end of the last one; None if there is no last.

    Returns:
        A line of step numbers, the phases below, and what follows: at most 80 columns while the
        numbers are small.
    """
    ruler, signs, shown = "step", "    ", 0
    position = 0
    for window in windows:
        stretches = (
            (position, window.first, Phase.WAIT),
            (window.first, window.active, Phase.WARMUP),
            (window.active, window.last + 1, Phase.ACTIVE),
        )
        above, below = _cells(stretches)
        if shown and len(ruler) + len(above) > COLUMNS:
            break
        ruler, signs, shown, position = ruler + above, signs + below, shown + 1, window.last + 1
    return "\n".join((ruler.rstrip(), signs.rstrip(), _legend(repeat - shown, total)))


def _cells(stretches: tuple[tuple[int, int, Phase], ...]) -> tuple[str, str]:
    """The step numbers and the signs of some stretches ``(first step, step after the last, phase)``, aligned."""
    above = below = ""
    for begin, end, phase in stretches:
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
        return f"{signs}  and so on, for ever"
    return f"{signs}  {f'and {more} more, ' if more else ''}nothing after step {total - 1}"
