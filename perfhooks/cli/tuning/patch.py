from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core.errors import PerfhooksError
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.core.changes import Site, TrainingChange

_MAX_BYTES: Final = 16 << 20
_KEPT: Final = ("item", "float")
_REPEATED: Final = (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)
_OPTION: Final = "(['\"])(--[A-Za-z0-9_-]+)\\1"


class _Edit(NamedTuple):
    begin: int
    end: int
    text: str


class _ByHandError(Exception):
    pass


@dataclass(kw_only=True)
class Patch:
    folder: Path
    words: list[str]
    new_options: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    unpatched: list[TrainingChange] = field(default_factory=list)
    _sources: dict[Path, _Source] = field(default_factory=dict)

    @property
    def after(self) -> dict[Path, str]:
        return {path: source.text for path, source in self._sources.items() if source.edits}

    def add(self, change: TrainingChange, sites: Sequence[Site]) -> None:
        for site in sites:
            words, options = list(self.words), list(self.new_options)
            try:
                self._add(change, site)
            except _ByHandError as error:
                self.words, self.new_options = words, options
                file, line = site.lines[0] if site.lines else ("the model", 0)
                self.by_hand.append(f"{self._named(file)}{f':{line}' if line else ''}: {_code(change, site)} ({error})")
                self.unpatched.append(change)

    def _add(self, change: TrainingChange, site: Site) -> None:
        problem = _ByHandError("no line of the program makes this call")
        for file, line in site.lines:
            try:
                return self._edit(change, site, Path(file), line)
            except _ByHandError as error:
                problem = error
        raise problem

    def _edit(self, change: TrainingChange, site: Site, path: Path, line: int) -> None:
        if not path.is_relative_to(self.folder):
            raise _ByHandError(f"the file is outside of {self.folder}")
        source = self._source(path)
        edits = list(source.edits)
        try:
            if change.is_proposed:
                source.keep_on_device(line, site.callees)
            elif change.calls:
                self._set_arguments(source, line, change, site)
            elif change.setting:
                source.insert_after_imports(change.setting)
            else:
                source.insert_after_assignment(line, change.model, str(site.before.get("device", "cpu")))
            source.check()
        except _ByHandError:
            source.edits = edits
            raise

    def _set_arguments(self, source: _Source, line: int, change: TrainingChange, site: Site) -> None:
        call = source.call(line, site.callees)
        for name, value in change.arguments.items():
            keyword = next((keyword for keyword in call.keywords if keyword.arg == name), None)
            if keyword is None:
                source.add_argument(call, f"{name}={value!r}")
            elif isinstance(keyword.value, ast.Constant):
                source.replace(keyword.value, repr(value))
            elif site.before.get(name) != value:
                self._set_option(ast.unparse(keyword.value), name, value)

    def _set_option(self, expression: str, name: str, value: object) -> None:
        suggestions = {name, expression.rpartition(".")[2]}
        files = [self.folder / word for word in self.words if word.endswith(".py")]
        texts = [self._source(file).before for file in files]
        options = [option for text in texts for _, option in re.findall(_OPTION, text)]
        option = next((o for o in options if o.lstrip("-").replace("-", "_") in suggestions), None)
        if option is None or isinstance(value, bool):
            raise _ByHandError(f"its value comes from {expression}")
        words = [word for word in self.words if not word.startswith(f"{option}=")]
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
        self.words = [*words, option, str(value)]
        self.new_options.append(f"{option} {value}")

    def _source(self, path: Path) -> _Source:
        if path not in self._sources:
            try:
                self._sources[path] = _Source(read_bytes(path, _MAX_BYTES).decode())
            except (OSError, ValueError, SyntaxError) as error:
                raise _ByHandError(f"the file cannot be read: {error}") from error
        return self._sources[path]

    def _named(self, file: str) -> str:
        path = Path(file)
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else file

    @property
    def diff(self) -> str:
        lines = [line for path in self.after for line in self._sources[path].diff(self._named(str(path)))]
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self, folder: Path) -> None:
        for path in self.after:
            if read_bytes(path, _MAX_BYTES) != self._sources[path].before.encode():
                raise PerfhooksError(f"{path} was changed during the trials; apply the patch yourself")
        self._write(folder)

    def _write(self, folder: Path) -> None:
        for path, text in self.after.items():
            (folder / path.relative_to(self.folder)).write_text(text, encoding="utf-8", newline="")

    def shadow(self, folder: Path) -> Path:
        folder.mkdir()
        parents = {parent for path in self.after for parent in path.relative_to(self.folder).parents}
        for parent in sorted(parents, key=lambda path: len(path.parts)):
            (folder / parent).mkdir(exist_ok=True)
            for entry in (self.folder / parent).iterdir():
                name = entry.relative_to(self.folder)
                if entry not in self.after and name not in parents:
                    (folder / name).symlink_to(entry)
        self._write(folder)
        return folder


class _Source:
    def __init__(self, text: str) -> None:
        self.before = text
        self.edits: list[_Edit] = []
        self._tree = ast.parse(text)
        self._lines = text.encode().splitlines(keepends=True)

    def call(self, line: int, callees: Sequence[str]) -> ast.Call:
        calls = [node for node in self._around(line) if isinstance(node, ast.Call) and _name(node) in callees]
        nearest = max((call.lineno for call in calls), default=0)
        calls = [call for call in calls if call.lineno == nearest]
        if len(calls) != 1:
            raise _ByHandError("the line contains no call of this name" if not calls else "the line has several calls")
        if any(keyword.arg is None for keyword in calls[0].keywords):
            raise _ByHandError("the call gets its arguments from a dictionary")
        return calls[0]

    def add_argument(self, call: ast.Call, argument: str) -> None:
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if arguments:
            end = max(self._position(node.end_lineno, node.end_col_offset) for node in arguments)
        else:
            end = self._position(call.end_lineno, call.end_col_offset) - 1
        has_others = bool(arguments) or any(edit.begin == end for edit in self.edits)
        self._insert(end, f", {argument}" if has_others else argument)

    def replace(self, node: ast.expr, text: str) -> None:
        begin = self._position(node.lineno, node.col_offset)
        self.edits.append(_Edit(begin, self._position(node.end_lineno, node.end_col_offset), text))

    def keep_on_device(self, line: int, readers: Sequence[str]) -> None:
        nodes = self._around(line)
        tests = [node.test for node in nodes if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert))]
        is_rare = any(isinstance(part, ast.Mod) for test in tests if test not in nodes for part in ast.walk(test))
        if is_rare or not any(isinstance(node, _REPEATED) for node in nodes):
            return
        reads = [node for node in nodes if isinstance(node, ast.Call) and _is_read(node, readers)]
        suffixes = {term: suffix for node in nodes for term, suffix in _terms(node)}
        if reads and all(read in suffixes and _name(read) in _KEPT for read in reads):
            for read in reads:
                self.replace(read, f"{_on_device(read)}{suffixes[read]}")
            return
        if (reads or "__bool__" in readers) and any(test in nodes for test in tests):
            raise _ByHandError("a condition depends on the value")
        if any(isinstance(node, ast.JoinedStr) or _name(node) in ("print", "format") for node in nodes):
            raise _ByHandError("the value is printed or formatted as text")
        if reads:
            raise _ByHandError("the code may need a number")

    def insert_after_imports(self, statement: str) -> None:
        imports = [node for node in self._tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        self._require_torch()
        self._insert_line(imports[-1], statement)

    def insert_after_assignment(self, line: int, statement: str, device: str) -> None:
        assignments = [node for node in self._around(line) if isinstance(node, ast.Assign)]
        for node in assignments:
            model = node.targets[0] if len(node.targets) == 1 and isinstance(node.value, ast.Call) else None
            if isinstance(model, (ast.Name, ast.Attribute)):
                if "torch." in statement:
                    self._require_torch()
                return self._insert_line(node, statement.format(model=ast.unparse(model), device=device))
        raise _ByHandError("the model is not assigned to a name in this line")

    def _around(self, line: int) -> list[ast.AST]:
        return [
            node
            for node in ast.walk(self._tree)
            if getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0)
        ]

    def diff(self, name: str) -> Iterator[str]:
        before, after = (side.splitlines(keepends=True) for side in (self.before, self.text))
        return difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")

    @property
    def text(self) -> str:
        content = b"".join(self._lines)
        parts, end = list[bytes](), 0
        for edit in sorted(self.edits, key=lambda edit: (edit.begin, edit.end)):
            parts += [content[end : edit.begin], edit.text.encode()]
            end = edit.end
        return (b"".join(parts) + content[end:]).decode()

    def check(self) -> None:
        try:
            ast.parse(self.text)
        except SyntaxError as error:
            raise _ByHandError("the call has an unusual form") from error

    def _require_torch(self) -> None:
        for node in self._tree.body:
            names = [alias for alias in getattr(node, "names", ()) if isinstance(node, ast.Import)]
            if any(alias.name.partition(".")[0] == "torch" and alias.asname in (None, "torch") for alias in names):
                return
        raise _ByHandError("the file does not import torch")

    def _insert_line(self, node: ast.stmt, statement: str) -> None:
        line = self._lines[(node.end_lineno or 1) - 1]
        end = self._position(node.end_lineno, node.end_col_offset)
        behind = line[node.end_col_offset :].strip()
        if behind and not behind.startswith(b"#"):
            raise _ByHandError("another statement follows in the same line")
        indent = " " * node.col_offset
        end += len(line) - (node.end_col_offset or 0) - (len(line) - len(line.rstrip(b"\r\n")))
        self._insert(end, f"\n{indent}{statement}")

    def _insert(self, place: int, text: str) -> None:
        edit = _Edit(place, place, text)
        if edit not in self.edits:
            self.edits.append(edit)

    def _position(self, line: int | None, column: int | None) -> int:
        return sum(map(len, self._lines[: (line or 1) - 1])) + (column or 0)


def _name(node: ast.AST) -> str:
    function = getattr(node, "func", None)
    return getattr(function, "attr", None) or getattr(function, "id", None) or ""


def _is_read(call: ast.Call, readers: Sequence[str]) -> bool:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in readers and not call.args
    return f"__{_name(call)}__" in readers and len(call.args) == 1


def _terms(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    terms, suffix = list[ast.expr](), ""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        terms = [node.value] if isinstance(node.target, (ast.Name, ast.Attribute)) else []
    elif isinstance(node, ast.Call) and _name(node) == "append":
        terms, suffix = node.args[:1], ".clone()"  # the tensor may be changed in place later
    while terms:
        term = terms.pop()
        if isinstance(term, ast.BinOp) and isinstance(term.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            terms += [term.left, term.right]
        yield term, suffix


def _on_device(read: ast.Call) -> str:
    tensor = read.func.value if isinstance(read.func, ast.Attribute) else read.args[0]
    text = ast.unparse(tensor)
    is_primary = isinstance(tensor, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return (text if is_primary else f"({text})").removesuffix(".detach()") + ".detach()"


def _code(change: TrainingChange, site: Site) -> str:
    if change.is_proposed:
        return "keep the value on the device, and read it once every many steps"
    if change.calls:
        name = next((callee for callee in site.callees if callee != "__init__"), "")
        return f"{name}(..., {', '.join(f'{key}={value!r}' for key, value in change.arguments.items())})"
    return change.setting or change.model.format(model="model", device=site.before.get("device", "cpu"))
