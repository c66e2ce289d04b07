"""A statement as ``timeit`` takes it, as a function that gives its value."""

from __future__ import annotations

import textwrap
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_VALUE: Final = "return (\n{stmt}\n)"


def function_of(stmt: str, setup: str, names: Mapping[str, Any]) -> Callable[[], Any]:
    """Make a function of a statement, once its setup has run.

        function_of("x @ y", "y = x.T", {"x": x})()  # the value of x @ y

    Args:
        stmt: One expression, whose value the function returns, or any lines, of which it returns nothing.
        setup: Lines that run now; the names that they make can be used, and changed, by the statement.
        names: What else it can use.

    Raises:
        OptionError: One of the two is no Python.
    """
    setup, stmt = textwrap.dedent(setup).strip() or "pass", textwrap.dedent(stmt).strip()
    made = set(_function(setup, "setup").co_varnames)
    try:
        body, assigned = _VALUE.format(stmt=stmt), set(_function(_VALUE.format(stmt=stmt), "stmt").co_varnames)
    except OptionError:
        body, assigned = stmt, set(_function(stmt, "stmt").co_varnames)
    # timeit writes both into one function, where a statement may change what there was before
    shared = {"nonlocal": assigned & made, "global": assigned & names.keys() - made}
    declared = [f"{word} {', '.join(sorted(those))}" for word, those in shared.items() if those]
    inner = "\n".join(["def call():", *(textwrap.indent(part, " ") for part in (*declared, body))])
    made_of: Callable[[], Callable[[], Any]] = FunctionType(
        _function(f"{setup}\n{inner}\nreturn call", "stmt"), dict(names)
    )
    return made_of()


def _function(body: str, what: str) -> CodeType:
    """The code of a function of these lines."""
    source = f"def made():\n{textwrap.indent(body, ' ')}"
    try:
        code = compile(source, f"<{what}>", "exec")
    except SyntaxError as error:
        raise OptionError(f"{what} must be Python, got {body!r} ({error.msg})") from error
    return next(each for each in code.co_consts if isinstance(each, CodeType))
