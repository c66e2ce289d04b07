from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perfhooks.run.reading import open_plain
from perfhooks.run.timeline import parsed

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.run.timeline import Row


class Tail:
    """Reads the end of a timeline first, and then only its new rows.

    If more than ``most`` bytes are new, the oldest rows are skipped.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._is_torn = False
        """Whether the next read begins inside a line, because the earlier part of the file was skipped."""

    def read(self) -> list[Row]:
        try:
            # open instead of stat: network file systems refresh the size on open
            with os.fdopen(open_plain(self._path), "rb") as file:
                now = os.fstat(file.fileno())
                if self._file != (now.st_dev, now.st_ino) or now.st_size < self._offset:
                    self._file, self._offset, self._is_torn = (now.st_dev, now.st_ino), 0, False
                begin = max(self._offset, now.st_size - self._most)
                file.seek(begin)
                text = file.read(self._most)
        except OSError:
            return []
        is_torn = self._is_torn or begin > self._offset
        # read an incomplete line again, unless it is longer than any row
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) == self._most else 0)
        if end:
            self._offset, self._is_torn = begin + end, not text[:end].endswith(b"\n")
        return list(parsed(text[:end] if is_torn else b"\n" + text[:end]))
