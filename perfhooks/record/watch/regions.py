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

_GRADIENT_SWITCHES: Final = frozenset(("no_grad", "inference_mode", "set_grad_enabled"))


class Region(NamedTuple):
    first: int
    last: int
    is_loop: bool
    """Whether the region is a loop. Otherwise it is a block that disables gradients."""

    def has(self, line: int) -> bool:
        return self.first <= line <= self.last


@lru_cache(256)
def of(code: CodeType) -> tuple[Region, ...]:
    """Return the loops and the regions without gradients, outermost first."""
    lines, offset = linecache.getlines(code.co_filename), 0
    try:
        if code.co_name != "<module>":
            offset = code.co_firstlineno - 1
            lines = inspect.getblock(lines[offset:])
        tree = ast.parse(textwrap.dedent("".join(lines[:3000])))
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return ()
    return tuple(_regions(tree, offset))


def _regions(tree: ast.AST, offset: int) -> Iterator[Region]:
    for node in ast.walk(tree):
        is_loop = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        if isinstance(node, ast.stmt) and (is_loop or _disables_gradients(node)):
            yield Region(offset + node.lineno, offset + (node.end_lineno or node.lineno), is_loop)


def _disables_gradients(node: ast.stmt) -> bool:
    trees: list[ast.expr] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        trees = node.decorator_list
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        trees = [item.context_expr for item in node.items]
    names = (getattr(child, "attr", getattr(child, "id", "")) for tree in trees for child in ast.walk(tree))
    return not _GRADIENT_SWITCHES.isdisjoint(names)
