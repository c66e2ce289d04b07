"""Names of Python frames with non-ASCII characters, which Kineto writes as ``unknown``."""

from __future__ import annotations

import json
import mmap
import os
from typing import IO, Any, Final

from perfhooks.core.guard import logger
from perfhooks.core.labels import FRAME_NAMES

_UNKNOWN: Final = b'"unknown"'


def add(file: IO[bytes], recorder: Any) -> None:
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            if text.find(_UNKNOWN) < 0:
                return
        distinct: dict[str, int] = {}
        frames = [
            distinct.setdefault(name, len(distinct))
            for event in recorder.kineto_results.events()
            if not (name := event.name()).isascii()
        ]
        _append(file, json.dumps({FRAME_NAMES: {"names": list(distinct), "frames": frames}}))
    except Exception:
        logger.debug("the names of frames are not available", exc_info=True)


def _append(file: IO[bytes], keys: str) -> None:
    size = file.seek(0, os.SEEK_END)
    begin = file.seek(max(size - 100, 0))
    file.seek(begin + file.read().rindex(b"}"))
    file.write(b"," + keys[1:].encode() + b"\n")
    file.truncate()
