"""The memory layout of CPython's stacks by version, measured by a search for known addresses."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import types

WORD: Final = struct.calcsize("P")
OBJECT: Final = object.__basicsize__


def word(content: bytes, offset: int) -> int:
    return int.from_bytes(content[offset : offset + WORD], sys.byteorder)


def untagged(pointer: int) -> int:
    # Python 3.14 sets the lowest three bits of a pointer to an object.
    return pointer & ~7


def _offsets(content: bytes, value: int) -> list[int]:
    offsets = range(0, len(content) - WORD + 1, WORD)
    return [offset for offset in offsets if untagged(word(content, offset)) == untagged(value)]


@dataclass(frozen=True, kw_only=True)
class Layout:
    interpreter: int
    threads: int
    next_thread: int
    native: int | None
    """Offset of the system's thread ID; None before Python 3.11."""
    running: int
    running_in: int | None
    """Offset from the object that `running` points to, to the frame; None if `running` points to the frame itself."""
    caller: int
    code: int
    instruction: int
    variables: int
    file: int
    function: int
    table: int
    first_line: int

    @classmethod
    def measure(cls) -> Layout:
        try:
            with Path("/proc/self/mem").open("rb", buffering=0) as file:
                return cls(**_thread_fields(file.fileno()), **_frame_fields(file.fileno()), **_code_fields())
        except (IndexError, ValueError, OSError, AttributeError) as error:
            raise LookupError(f"the memory layout of the interpreter of Python {sys.version} is unknown") from error


def thread_state() -> int:
    function = ctypes.pythonapi.PyThreadState_Get
    function.restype = ctypes.c_void_p
    return int(function())


def _main_interpreter() -> int:
    function = ctypes.pythonapi.PyInterpreterState_Main
    function.restype = ctypes.c_void_p
    return int(function())


def runtime() -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))


def _read(file: int, address: int, size: int) -> bytes:
    return os.pread(file, size, address)


def _thread_fields(file: int) -> dict[str, Any]:
    gate, began = threading.Lock(), threading.Semaphore(0)
    gate.acquire()
    states: list[tuple[int, int]] = []

    def wait() -> None:
        states.append((thread_state(), threading.get_native_id()))
        began.release()
        with gate:
            pass

    interpreter = _main_interpreter()
    offsets: list[set[int]] = []
    for _ in range(2):
        threading.Thread(target=wait, daemon=True).start()
        began.acquire()
        offsets.append(set(_offsets(_read(file, interpreter, 1 << 16), states[-1][0])))
    (older, older_native), (newer, newer_native) = states
    contents = [_read(file, state, 1 << 9) for state in (older, newer)]
    gate.release()
    natives = [
        offset
        for offset in range(0, len(contents[0]) - WORD + 1, WORD)
        if [word(content, offset) for content in contents] == [older_native, newer_native]
    ]
    return {
        "interpreter": _offsets(_read(file, runtime(), 1 << 16), interpreter)[0],
        "threads": min(offsets[0] & offsets[1]),
        "next_thread": _offsets(contents[1], older)[0],
        "native": natives[0] if natives else None,
    }


def _address(file: int, frame: types.FrameType) -> int:
    """Return the address of the interpreter frame: from Python 3.11 on, not the frame object."""
    if sys.version_info < (3, 11):
        return id(frame)
    return word(os.pread(file, WORD, id(frame) + OBJECT + WORD), 0)


def _running(file: int, depth: int) -> set[tuple[int, int]]:
    """Return pairs of offsets that may lead from the thread state to the running frame; -1 if one offset is enough.

    The search calls no Python function, which would become the running frame.
    """
    address, state = _address(file, sys._getframe()), thread_state()
    offsets = set()
    content = os.pread(file, 512, state)
    for offset in range(0, len(content), WORD):
        pointer = int.from_bytes(content[offset : offset + WORD], sys.byteorder)
        if pointer == address:
            offsets.add((offset, -1))
        elif 0 < pointer < 1 << 62:
            try:
                inner = os.pread(file, 64, pointer)
            except OSError:
                continue
            for inner_offset in range(0, len(inner), WORD):
                if int.from_bytes(inner[inner_offset : inner_offset + WORD], sys.byteorder) == address:
                    offsets.add((offset, inner_offset))
    return offsets & _running(file, depth - 1) if depth else offsets


def _frame_fields(file: int) -> dict[str, Any]:
    marker = object()
    frame = sys._getframe()
    content = os.pread(file, 512, _address(file, frame))
    code = frame.f_code
    running, running_in = min(_running(file, 3), key=lambda offsets: (offsets[1] >= 0, offsets))
    if sys.version_info < (3, 11):
        instruction = 96  # f_lasti, an instruction index: not a pointer, so it cannot be searched
    else:
        start = id(code) + type(code).__basicsize__
        instruction = next(
            offset
            for offset in range(0, len(content), WORD)
            if start <= word(content, offset) < start + len(code.co_code)
        )
    return {
        "running": running,
        "running_in": None if running_in < 0 else running_in,
        "caller": _offsets(content, _address(file, frame.f_back))[0] if frame.f_back else -1,
        "code": _offsets(content, id(code))[0],
        "instruction": instruction,
        "variables": _offsets(content, id(marker))[0] - WORD * code.co_varnames.index("marker"),
    }


def _code_fields() -> dict[str, Any]:
    line = 123_456_789
    code = _code_fields.__code__.replace(co_firstlineno=line, co_filename=f"{line} file", co_name=f"{line} name")
    content = ctypes.string_at(id(code), type(code).__basicsize__)
    return {
        "file": _offsets(content, id(code.co_filename))[0],
        "function": _offsets(content, id(code.co_name))[0],
        "table": _offsets(content, id(code.co_linetable))[0],
        "first_line": content.index(line.to_bytes(4, sys.byteorder)),
    }
