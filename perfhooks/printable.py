"""Text that somebody else wrote, as a terminal may have it."""

from __future__ import annotations

from typing import Final

# C0 but for the tab and the end of a line, DEL and C1: a terminal takes them for commands. Then what turns around the
# direction of what follows, so that a line reads otherwise than it is: Unicode's embeddings, overrides and isolates.
_COMMANDS: Final = (*(code for code in range(32) if code not in (9, 10)), *range(127, 160))
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS: Final = dict.fromkeys((*_COMMANDS, *_DIRECTIONS), "\N{REPLACEMENT CHARACTER}")


def printable(text: object) -> str:
    """A text that moves no cursor, sets no color and opens no window: what would is shown as a question mark.

    So is half a character, as Python makes of a path that is not UTF-8: no terminal takes it.

    Args:
        text: anything that can be written; names in a trace are whatever was written into the file.
    """
    return str(text).translate(_HARMLESS).encode("utf-8", "replace").decode()
