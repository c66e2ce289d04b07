"""What comes into a timeline, as it grows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perfhooks.run.reading import open_plain
from perfhooks.run.timeline import parsed

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.run.timeline import Row


class Tail:
    """The end of a timeline at first, then what is new in it; what was read is never read again.

    Args:
        path: The file; it need not be there yet.
        most: Bytes that are read at once at most. Where more has come, the oldest of it is left out.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._file: tuple[int, int] | None = None
        self._at = 0
        self._is_torn = False
        """Whether a line goes on at the place that was come to."""

    def read(self) -> list[Row]:
        """The rows that are new; none where there is no such file, or none of its own."""
        try:
            # to open it, rather than to ask for its size, has a network disk say what is new
            with os.fdopen(open_plain(self._path), "rb") as file:
                now = os.fstat(file.fileno())
                if self._file != (now.st_dev, now.st_ino) or now.st_size < self._at:
                    self._file, self._at, self._is_torn = (now.st_dev, now.st_ino), 0, False
                begin = max(self._at, now.st_size - self._most)
                file.seek(begin)
                text = file.read(self._most)
        except OSError:
            return []
        is_torn = self._is_torn or begin > self._at
        # a line that is not whole is read again, unless it is longer than any row
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) == self._most else 0)
        if end:
            self._at, self._is_torn = begin + end, not text[:end].endswith(b"\n")
        return list(parsed(text[:end] if is_torn else b"\n" + text[:end]))
