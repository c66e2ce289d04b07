"""Python stacks of another process that runs the same interpreter.

The stacks are read from ``/proc/PID/mem`` while the process runs::

    _PyRuntime ──► interpreter ──► thread ──► thread ──► ...
                                     └──► frame ──► frame ──► ...        innermost first
                                            └──► code ──► file name, function, table of lines

Both processes run the same executable, so they have the same layout. A stack may be torn, because the process keeps
running. An invalid stack is read again.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import operator
import os
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.record.workers.layout import OBJECT, WORD, Layout, runtime, thread_state, untagged, word

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_TEXT: Final = 4096
"""Maximum length of a path on Linux."""
_MAX_TABLE: Final = 1 << 20
MAX_FRAMES: Final = 100


class ProcessMemory:
    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, address: int, size: int) -> bytes:
        """Raises OSError if the process has ended, or the address is not mapped."""
        try:
            content = os.pread(self._file, size, address)
        except OverflowError:
            content = b""
        if len(content) < size:
            raise OSError(f"no memory at {address:#x}")
        return content

    def word(self, address: int) -> int:
        return word(self.read(address, WORD), 0)


class Code(NamedTuple):
    number: int
    fields: bytes
    """Raw pointers of the code object. If the pointers have changed, the address holds another object."""
    file: str
    function: str
    starts: list[int]
    lines: list[int]
    """Line number of each instruction range; `starts` has the start of each range in bytes."""

    def line(self, instruction: int) -> int:
        index = bisect.bisect_right(self.starts, instruction) - 1
        return self.lines[index] if index >= 0 else 0


class WorkerFrame(NamedTuple):
    code: Code
    line: int
    address: int

    def __str__(self) -> str:
        return f"{self.code.file}({self.line}): {self.code.function}"


class _Text:
    SAMPLES: Final = (("ab", 1, "ascii"), ("aé", 1, "latin-1"), ("aΩ", 2, "utf-16"), ("a😀", 4, "utf-32"))

    def __init__(self) -> None:
        order = "le" if sys.byteorder == "little" else "be"
        self._kinds: dict[int, tuple[int, int, str]] = {}
        for self._mask in (0xFF, 0xFFFF):  # other bits of the word vary; without a GIL, the kind is in byte 1
            for text, width, encoding in self.SAMPLES:
                sample = "".join(list(text))  # not a constant: interned strings have another bit
                content = ctypes.string_at(id(sample), sys.getsizeof(sample))
                name = encoding if width == 1 else f"{encoding}-{order}"
                self._kinds[self._state(content)] = (content.rindex(text.encode(name)), width, name)
            if len(self._kinds) == len(self.SAMPLES):
                break
        self._bits = functools.reduce(operator.or_, (one ^ other for one in self._kinds for other in self._kinds))
        self._kinds = {state & self._bits: kind for state, kind in self._kinds.items()}

    def _state(self, content: bytes) -> int:
        return int.from_bytes(content[OBJECT + 16 : OBJECT + 20], sys.byteorder) & self._mask

    def read(self, memory: ProcessMemory, address: int) -> str:
        content = memory.read(address, OBJECT + 20)
        length = word(content, OBJECT)
        data, width, encoding = self._kinds[self._state(content) & self._bits]
        if length > _MAX_TEXT:
            raise ValueError("no text")
        return memory.read(address + data, length * width).decode(encoding)


class Interpreter:
    def __init__(self, layout: Layout, pid: int, memory: ProcessMemory) -> None:
        self._layout, self._memory, self._text = layout, memory, _Text()
        self._codes: dict[int, Code] = {}
        # types are part of the executable, which a process that was not forked maps at another address
        moved = _shift_of(pid, *_mapping(id(types.CodeType)))
        self._code_type, self._int_type = id(types.CodeType) + moved, id(int) + moved
        self._interpreter = memory.word(runtime() + moved + layout.interpreter)
        names = (layout.file, layout.function, layout.table)
        self._fields = slice(min(names), max(names) + WORD)
        self._read = 0
        self._code_size = max(layout.file, layout.function, layout.table, layout.first_line) + WORD
        self._frame_size = max(layout.code, layout.caller, layout.instruction) + WORD

    def threads(self) -> Iterator[int]:
        state = self._memory.word(self._interpreter + self._layout.threads)
        while state:
            yield state
            state = self._memory.word(state + self._layout.next_thread)

    def native_id(self, thread: int) -> int | None:
        return None if self._layout.native is None else self._memory.word(thread + self._layout.native)

    def stack(self, thread: int, outermost: str = "", most: int = MAX_FRAMES) -> list[WorkerFrame]:
        """Return the frames, innermost first, up to the innermost call of ``outermost``.

        Raises OSError if the stack changes too fast.
        """
        for _ in range(3):
            with suppress(OSError, ValueError, KeyError):
                return list(itertools.islice(self._frames(thread, outermost), most))
        raise OSError("no stack")

    def _frames(self, thread: int, outermost: str) -> Iterator[WorkerFrame]:
        layout, memory = self._layout, self._memory
        address = memory.word(thread + layout.running)
        if layout.running_in is not None:
            address = memory.word(address + layout.running_in)
        while address:
            content = memory.read(address, self._frame_size)
            code_address = untagged(word(content, layout.code))
            code = self._code(code_address)
            if code is not None:
                if sys.version_info < (3, 11):
                    instruction = 2 * int.from_bytes(
                        content[layout.instruction : layout.instruction + 4], sys.byteorder
                    )
                else:
                    instruction = word(content, layout.instruction) - code_address - types.CodeType.__basicsize__
                yield WorkerFrame(code, code.line(instruction), address)
                if code.function == outermost:
                    return
            address = word(content, layout.caller)

    def _code(self, address: int) -> Code | None:
        layout, memory = self._layout, self._memory
        content = memory.read(address, self._code_size)
        if word(content, OBJECT - WORD) != self._code_type:
            return None
        fields = content[self._fields]
        code = self._codes.get(address)
        if code is None or code.fields != fields:
            file, function, table = (word(content, offset) for offset in (layout.file, layout.function, layout.table))
            first = int.from_bytes(content[layout.first_line : layout.first_line + 4], sys.byteorder)
            name = self._text.read(memory, function)
            starts, lines = _lines(self._bytes(table), first)
            self._read += 1
            code = Code(self._read, fields, self._text.read(memory, file), name, starts, lines)
            self._codes[address] = code
        return None if code.function == "<interpreter trampoline>" else code

    def _bytes(self, address: int) -> bytes:
        size = self._memory.word(address + OBJECT)
        if size > _MAX_TABLE:
            raise ValueError("no table of lines")
        return self._memory.read(address + bytes.__basicsize__ - 1, size)

    def integer(self, frame: WorkerFrame, variable: int) -> int | None:
        """Return the value of an integer variable below 2**30; None for other values."""
        slot = frame.address + self._layout.variables + WORD * variable
        with suppress(OSError):
            address = untagged(self._memory.word(slot))
            content = self._memory.read(address, int.__basicsize__ + 4) if address else b""
            if content and word(content, OBJECT - WORD) == self._int_type:
                return int.from_bytes(content[int.__basicsize__ :], sys.byteorder)
        return None


def _lines(table: bytes, first: int) -> tuple[list[int], list[int]]:
    code = _lines.__code__.replace(co_linetable=table, co_firstlineno=first, co_code=_lines.__code__.co_code)
    parts = [(start, line or 0) for start, _, line in code.co_lines()]
    return [start for start, _ in parts], [line for _, line in parts]


def _maps(pid: int) -> Iterator[tuple[int, int, str, str]]:
    with Path(f"/proc/{pid}/maps").open() as file:
        for text in file:
            span, _, offset, device, node, *name = text.split(None, 5)
            start, end = (int(part, 16) for part in span.split("-"))
            if name:
                yield start, end, offset, f"{device} {node}"


def _mapping(address: int) -> tuple[int, str, str]:
    mappings = (mapping for mapping in _maps(os.getpid()) if mapping[0] <= address < mapping[1])
    start, _, offset, file = next(mappings, (0, 0, "", ""))
    if not file:
        raise LookupError("/proc/self/maps has no file at the address of the interpreter")
    return start, offset, file


def _shift_of(pid: int, start: int, offset: str, file: str) -> int:
    for other, _, its_offset, its_file in _maps(pid):
        if (its_offset, its_file) == (offset, file):
            return other - start
    raise LookupError(f"process {pid} runs another Python")


def measured_layout() -> Layout:
    """Return the layout of this Python, verified with the stack of a waiting thread."""
    gate, began, states = threading.Lock(), threading.Lock(), []
    began.acquire()

    def wait(number: int) -> int:
        states.append(thread_state())
        for lock in (began.release, gate.acquire):
            lock()  # on one line, because the line number is compared
        return number

    layout, number = Layout.measure(), 1_000_003
    with gate, Path("/proc/self/mem").open("rb", buffering=0) as file:
        thread = threading.Thread(target=wait, args=(number,), daemon=True)
        thread.start()
        began.acquire()
        process = Interpreter(layout, os.getpid(), ProcessMemory(file.fileno()))
        frame: Any = sys._current_frames()[thread.ident or 0]
        while frame.f_code is not wait.__code__:
            frame = frame.f_back
        expected = []
        while frame is not None:
            expected.append(f"{frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}")
            frame = frame.f_back
        try:
            stack = process.stack(states[0])
            is_right = [str(call) for call in stack] == expected and states[0] in process.threads()
            is_right = is_right and process.integer(stack[0], wait.__code__.co_varnames.index("number")) == number
        except OSError:
            is_right = False
    if not is_right:
        raise LookupError(f"the stacks of Python {sys.version} could not be read correctly")
    return layout
