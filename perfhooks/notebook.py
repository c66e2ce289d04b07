"""The cell magic ``%%perfhooks`` of IPython: it profiles a cell and shows the report below it."""

from __future__ import annotations

import ast
import html
import sys
from typing import TYPE_CHECKING, Any, Final

from torch.optim.optimizer import register_optimizer_step_post_hook

from perfhooks.core.errors import OptionError
from perfhooks.core.schedule.unplanned import WHEN_SETTLED
from perfhooks.record.loop.profiler import Profiler
from perfhooks.report import page as report
from perfhooks.report.page.run_summary import read_summary
from perfhooks.run.layout import PAGE
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

_WAIT_S: Final = 120.0
"""Maximum wait for the report, because a notebook shows nothing else meanwhile."""
_REMEDY: Final = (
    "A step ends with the update of the first optimizer. Profile a cell with more updates, or choose earlier steps: "
    '%%perfhooks schedule="wait=1 warmup=1 active=2 repeat=1"'
)


class Report:
    """The report of a run as the output of a cell."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        summary = read_summary(self.path.parent)
        return "\n".join([*([summary.line] if summary else []), *report.headlines(self.path), f"report: {self.path}"])

    def _repr_html_(self) -> str:
        content = html.escape(read_bytes(self.path).decode())
        return (
            f"<pre>{html.escape(repr(self))}</pre>"
            f'<iframe srcdoc="{content}" style="width: 100%; height: 50em; border: 0"></iframe>'
        )


def load_ipython_extension(shell: Any) -> None:
    """Register the magic. ``%load_ext perfhooks`` calls this."""

    def perfhooks(line: str, cell: str) -> Report | None:
        """Profile the cell. The line contains options of `perfhooks.Profiler`, for example ``with_stack=True``."""
        return _profile(shell, _options(line), cell)

    shell.register_magic_function(perfhooks, "cell", "perfhooks")


def _options(line: str) -> dict[str, Any]:
    problem = f"%%perfhooks takes options like with_stack=True, out='perf'; got {line!r}"
    try:
        call = ast.parse(f"options({line})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise OptionError(problem)
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise OptionError(problem) from error


def _profile(shell: Any, options: dict[str, Any], cell: str) -> Report | None:
    optimizers: list[Any] = []
    with Profiler(**{"schedule": WHEN_SETTLED, "out": "perf"} | options) as profiler:

        def end_step(optimizer: Any, *_: Any) -> None:
            if not optimizers:
                optimizers.append(optimizer)
            if optimizer is optimizers[0]:
                profiler.step()

        handle = register_optimizer_step_post_hook(end_step)
        try:
            _run(shell, cell)
        finally:
            handle.remove()
    folder, reason = profiler.folder, profiler.why_nothing()
    is_complete = profiler.wait(_WAIT_S)
    if reason is None and folder is not None and is_complete and (folder / PAGE).exists():
        return Report(folder / PAGE)
    print(f"perfhooks shows no report: {reason or 'its files are not complete'}\n{_REMEDY}")  # noqa: T201 -- a cell's output
    return None


def _run(shell: Any, cell: str) -> None:
    name = shell.compile.cache(cell)
    tree = shell.compile.ast_parse(shell.transform_cell(cell), filename=name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), shell.user_ns)  # noqa: S102 -- the user's own cell
    if last is not None:
        sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns))  # noqa: S307 -- the same
