"""What the source of a function says of its lines: which lie in one loop, and in which no gradients are kept."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import tokenize
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_WITHOUT: Final = frozenset(("no_grad", "inference_mode", "set_grad_enabled"))
"""What torch calls that which switches gradients off."""
_LONGEST: Final = 3000
"""Lines of a script that are read: 30 ms."""


class Region(NamedTuple):
    """Lines of a file, from the first to the last."""

    first: int
    last: int
    is_loop: bool
    """Else no gradients are kept there."""

    def has(self, line: int) -> bool:
        """Whether a line is one of them."""
        return self.first <= line <= self.last


@lru_cache(256)
def of(code: CodeType) -> tuple[Region, ...]:
    """The loops of a function, or of a script, and its lines without gradients, the outermost first.

    There are none where the source cannot be read.
    """
    lines, before = linecache.getlines(code.co_filename), 0
    try:
        if code.co_name != "<module>":
            before = code.co_firstlineno - 1
            lines = inspect.getblock(lines[before:])
        tree = ast.parse(textwrap.dedent("".join(lines[:_LONGEST])))
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):  # another text than the one that runs
        return ()
    return tuple(_regions(tree, before))


def _regions(tree: ast.AST, before: int) -> Iterator[Region]:
    for node in ast.walk(tree):
        is_loop = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        if isinstance(node, ast.stmt) and (is_loop or _keeps_no_gradients(node)):
            yield Region(before + node.lineno, before + (node.end_lineno or node.lineno), is_loop)


def _keeps_no_gradients(node: ast.stmt) -> bool:
    """Whether a statement says that of what is in it: a ``with``, or the decorator of a function."""
    said: list[ast.expr] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        said = node.decorator_list
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        said = [item.context_expr for item in node.items]
    names = (getattr(each, "attr", getattr(each, "id", "")) for one in said for each in ast.walk(one))
    return not _WITHOUT.isdisjoint(names)
