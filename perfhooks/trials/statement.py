from __future__ import annotations

import textwrap
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_VALUE: Final = "return (\n{stmt}\n)"


def compile_statement(stmt: str, setup: str, names: Mapping[str, Any]) -> Callable[[], Any]:
    """Run the setup, and return a function that runs a statement.

        compile_statement("x @ y", "y = x.T", {"x": x})()  # the value of x @ y

    A statement can use and change the names of the setup. Invalid Python raises an OptionError.
    """
    setup, stmt = textwrap.dedent(setup).strip() or "pass", textwrap.dedent(stmt).strip()
    setup_names = set(_function(setup, "setup").co_varnames)
    try:
        body, assigned = _VALUE.format(stmt=stmt), set(_function(_VALUE.format(stmt=stmt), "stmt").co_varnames)
    except OptionError:
        body, assigned = stmt, set(_function(stmt, "stmt").co_varnames)
    shared = {"nonlocal": assigned & setup_names, "global": assigned & names.keys() - setup_names}
    declared = [f"{word} {', '.join(sorted(shared_names))}" for word, shared_names in shared.items() if shared_names]
    inner = "\n".join(["def call():", *(textwrap.indent(part, " ") for part in (*declared, body))])
    make: Callable[[], Callable[[], Any]] = FunctionType(
        _function(f"{setup}\n{inner}\nreturn call", "stmt"), dict(names)
    )
    return make()


def _function(body: str, option: str) -> CodeType:
    source = f"def made():\n{textwrap.indent(body, ' ')}"
    try:
        code = compile(source, f"<{option}>", "exec")
    except SyntaxError as error:
        raise OptionError(f"{option} must be Python, got {body!r} ({error.msg})") from error
    return next(constant for constant in code.co_consts if isinstance(constant, CodeType))
