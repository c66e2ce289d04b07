from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import starts
from perfhooks.trace.nesting.intervals import NOTABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.run.compilation import Break, Graph
    from perfhooks.trace.model import Ints

_MAX_LINES: Final = 5
"""Maximum lines of evidence."""

_WHOLE: Final = "model = torch.compile(model, fullgraph=True)   # raises if the graph breaks"
_LIMIT_REACHED: Final = (
    "Find the value that changes often. Make it a tensor, mark the dimension as dynamic, or move its use out of the "
    "compiled function. If it has few values, increase torch._dynamo.config.recompile_limit (cache_size_limit "
    "before torch 2.6). Compiled code is valid only for certain shapes, numbers and attributes."
)
_CANNOT_COMPILE: Final = (
    "Move the line out of the function, or move the code around it into its own function. torch.compile splits the "
    "graph at a line that it cannot compile. In a loop, a context manager or a comprehension it cannot split, so the "
    "whole function runs uncompiled."
)


def recompilation(window: Evidence) -> Iterator[Finding]:
    """torch.compile compiles in profiled steps, for 1% of their time or more.

    Source: `NOTABLE`; the ranges that TorchDynamo opens around its phases (``... (dynamo_timed)``), and its report of
    each compilation (`perfhooks.run.compilation`). A first compilation alone is one-time work (`start.recorded_start`).

    Measured: on a CPU. With constant shapes, steps of ``examples/bad/recompilation.py`` fell from 366 and 377 ms to 64
    and 66 ms; the estimate was 231 ms. On a device it was not measured, so the gain there is an upper bound.
    """
    rows = window.matching(ranges.COMPILING, Kind.OP, Kind.ANNOTATION)
    compile_ms = window.per_step(window.spans(rows))
    gain = min(compile_ms, window.host_limit_ms)
    if window.share(gain) < NOTABLE or starts.COMPILING in window.startup:
        return
    outer = window.outermost(rows)
    lines = [(line, compile_ms / len(outer)) for line in window.lines_of(outer) if line]
    reasons = _guard_lines([graph for graph in window.capture.compilation.graphs if graph.is_recorded and graph.reason])
    hint = "The evidence lists the failed guards." if reasons else "TORCH_LOGS=recompiles shows the failed guard."
    yield from window.finding(
        "recompilation",
        gain,
        is_measured=not window.uses_device,
        title=f"Repeated compilation by torch.compile takes {words.ms(compile_ms)} of a {window.unit}.",
        estimate="All the time of compiling, if shapes do not change or the warm-up is longer.",
        evidence=[f"{len(outer)} compilations in {window.numbers}", *reasons, *top_lines(lines)],
        advice=(
            "Keep shapes constant: drop the last, smaller batch, pad sequences to a few lengths, or mark the dimension "
            f"as dynamic. Compiled code depends on a value that changes from step to step. {hint} If it is only the "
            "first compilation, start recording later."
        ),
        code=window.code_for("equal shapes"),
        of=window.spans(rows),
    )


def left_uncompiled(window: Evidence) -> Iterator[Finding]:
    """torch.compile runs a function uncompiled: it cannot compile it, or compiled it too often.

    Source: TorchDynamo's report of a compilation (`perfhooks.run.compilation.Graph.failed`): either its limit of
    compilations, or a line at which a graph cannot break, for example in a loop. The limit is
    ``torch._dynamo.config.recompile_limit``, by default 8 per function. torch 2.4 does not report it.

    Not measured, because the gain depends on the function.
    """
    graphs = [graph for graph in window.capture.compilation.graphs if graph.is_own]
    failed = {graph.function: graph for graph in graphs if graph.failed}
    if not failed:
        return
    names = list(failed)
    functions = names[0] if len(names) == 1 else f"{words.count(len(names), 'function')}, for example {names[0]}"
    is_limit = [
        graph for graph in graphs if graph.reason and graph.function in failed and failed[graph.function].is_limit
    ]
    yield from window.finding(
        "left-uncompiled",
        None,
        title=(
            f"torch.compile stopped compiling {functions}: new inputs run uncompiled."
            if is_limit
            else f"torch.compile cannot compile {functions}: it runs uncompiled."
        ),
        estimate="Unknown: the trace does not show the time of the compiled function.",
        evidence=[
            *(f"{name}: {_failure_text(failed[name], graphs)}" for name in names[:_MAX_LINES]),
            *_guard_lines(is_limit),
        ],
        advice=_LIMIT_REACHED if is_limit else _CANNOT_COMPILE,
        code=window.code_for("equal shapes") if is_limit else _WHOLE,
    )


def graph_breaks(window: Evidence) -> Iterator[Finding]:
    """Compiled code in the steps is split into pieces, because torch.compile cannot compile some lines.

    Breaks in torch's own code, for example in an optimizer, do not count. Breaks in functions that do not run in the
    steps do not count either. There is no finding if compiled code takes less than 1% of the steps.

    Source: TorchDynamo's report of breaks (`perfhooks.run.compilation.Break`), the ranges around compiled code in the
    trace, `evidence.NOTABLE`.

    Measured: on one thread of a CPU, with Inductor. The step had a linear layer and three chains of small operators
    with a ``print`` between them. It took 0.78, 1.73 and 11.3 ms for batches of 1, 64 and 1,024 rows, and 0.49, 1.18
    and 5.63 ms without the ``print``. On a device it was not measured.
    """
    regions = window.with_prefix(ranges.COMPILED_REGION, Kind.OP, Kind.ANNOTATION)
    if not len(regions) or window.share(inside_ms(window)) < NOTABLE:
        return
    breaks = _breaks_in_steps(window, regions)
    if not breaks:
        return
    lines = [f"{_location(graph_break)}: {graph_break.reason}" for graph_break in breaks]
    more = [f"and {len(breaks) - _MAX_LINES} more"] if len(breaks) > _MAX_LINES else []
    yield from window.finding(
        "graph-breaks",
        None,
        title=f"torch.compile breaks its graph at {words.count(len(breaks), 'line')}, so it runs in pieces.",
        estimate="Unknown: the trace does not show the time of one whole graph.",
        evidence=[
            f"compiled pieces run in a {window.unit}: {window.count_per_step(regions)}",
            *lines[:_MAX_LINES],
            *more,
        ],
        advice=(
            "Move printing, logging and item() out of the function, and replace conditions on tensors by torch.where. "
            "With fullgraph=True, torch raises at the first line that breaks the graph. At each of these lines, "
            "compiled code ends and Python runs. Kernels are not fused across the line, replayed graphs do not span "
            "it, and guards are checked again."
        ),
        code=_WHOLE,
    )


def inside_ms(window: Evidence) -> float:
    return window.per_step(window.spans(inside(window)))


def inside(window: Evidence) -> Ints:
    """Return the slices around compiled code; some are nested."""
    return window.matching(ranges.COMPILED, Kind.OP, Kind.ANNOTATION)


def _breaks_in_steps(window: Evidence, regions: Ints) -> list[Break]:
    """Return the breaks of functions that run in the steps; all breaks in torch 2.4."""
    compilation, trace = window.capture.compilation, window.trace
    names = {trace.names[name] for name in set(trace.name[regions].tolist())}
    numbers = {name.rpartition(": ")[2].partition("/")[0] for name in names if ": " in name}
    running = {_without_line(graph.function) for graph in compilation.graphs if graph.number in numbers}
    return [
        graph_break
        for graph_break in compilation.breaks
        if graph_break.is_own and (not numbers or running & {*graph_break.functions})
    ]


def _without_line(function: str) -> str:
    file, _, name = function.rpartition(": ")
    return f"{file.rpartition('(')[0]}: {name}"


def _location(graph_break: Break) -> str:
    return f"{graph_break.within}, in {graph_break.line}" if graph_break.within else graph_break.line


def _guard_lines(graphs: Sequence[Graph]) -> list[str]:
    counts = Counter(f"{graph.function}: {graph.reason}" for graph in graphs)
    return [f"{text}{f' ({count} times)' if count > 1 else ''}" for text, count in counts.most_common(_MAX_LINES)]


def _failure_text(failed: Graph, graphs: Sequence[Graph]) -> str:
    if not failed.is_limit:
        return failed.failed
    compilations = sum(graph.function == failed.function and not graph.failed for graph in graphs)
    return f"compiled {words.count(compilations, 'time')}, which is the limit"
