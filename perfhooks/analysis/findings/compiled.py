"""torch.compile is used, and part of what it could do is lost: it compiles again, or in pieces, or not at all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from perfhooks.analysis.findings.evidence import most
from perfhooks.analysis.findings.finding import NOTABLE
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import starts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.run.compilation import Break, Graph
    from perfhooks.trace.model import Ints

COMPILING: Final = 0.01
"""Of the step; compiling takes seconds, so whatever is there is far above."""

_SHOWN: Final = 5

_WHOLE: Final = "model = torch.compile(model, fullgraph=True)   # raises where the graph would break"
_TOO_OFTEN: Final = (
    "Each compilation is for values that have to stay as they were: shapes, numbers, attributes. Where one of them "
    "changes often, make it a tensor, mark the dimension as dynamic, or keep what needs it out of the compiled "
    "function. If it has few values, torch._dynamo.config.recompile_limit (cache_size_limit before torch 2.6) can be "
    "larger."
)
_NOT_AT_ALL: Final = (
    "A line that torch.compile cannot compile breaks a graph in two where that is possible; in a loop, a context "
    "manager or a comprehension it is not, and the whole function runs as it is. Take the line out of the function, or "
    "only what is around it into one of its own."
)


def recompilation(window: Evidence) -> Iterator[Finding]:
    """torch.compile compiles inside of recorded steps, for 1% of their time or more.

    Source: `COMPILING`; the ranges that TorchDynamo opens around its phases (``... (dynamo_timed)``), and what it says
    of each compilation itself (`perfhooks.run.compilation`). The first compilation alone is a start
    (`start.recorded_start`).

    Measured: on a CPU, where shapes that stay the same took a step of ``examples/bad/recompilation.py`` from 366 and
    377 ms to 64 and 66 ms; 231 ms were estimated. On a device it was not measured, so the gain there is an upper bound.
    """
    rows = window.named(ranges.COMPILING, Kind.OP, Kind.ANNOTATION)
    spent = window.per_step(window.spans(rows))
    gain = min(spent, window.host_limit_ms)
    if window.share(gain) < COMPILING or starts.COMPILING in window.startup:
        return
    outer = window.outermost(rows)
    lines = [(line, spent / len(outer)) for line in window.lines_of(outer) if line]
    reasons = _reasons([graph for graph in window.capture.compilation.graphs if graph.is_recorded and graph.reason])
    known = "The guards that failed are in the evidence." if reasons else "TORCH_LOGS=recompiles names the guard."
    yield from window.finding(
        "recompilation",
        gain,
        is_measured=not window.uses_device,
        title=f"torch.compile compiles again for {words.ms(spent)} in a {window.unit}.",
        estimate="All the time of compiling; gone once shapes no longer change, or the warm-up is longer.",
        evidence=[f"{len(outer)} compilations in {window.numbers}", *reasons, *most(lines)],
        advice=(
            "Something that the compiled code depends on changes from step to step, mostly the shape of a batch: the "
            "last one is smaller, or sequences differ in length. Drop the odd batch, pad to a few lengths, or mark "
            f"the dimension as dynamic. {known} If it is only the first compilation, start recording later."
        ),
        code=window.code_for("equal shapes"),
        of=window.spans(rows),
    )


def left_uncompiled(window: Evidence) -> Iterator[Finding]:
    """torch.compile has left a function alone, which runs as if nobody compiled it: it could not, or did so too often.

    Source: what TorchDynamo says of a compilation (`perfhooks.run.compilation.Graph.failed`): its limit, 8 times for a
    function unless ``torch._dynamo.config.recompile_limit`` is another, or a line where a graph cannot break, as in a
    loop. torch 2.4 says nothing of the limit.

    Measured: never, as what compiled code would gain depends on the function; the gain is an upper bound.
    """
    graphs = [graph for graph in window.capture.compilation.graphs if graph.is_own]
    failed = {graph.function: graph for graph in graphs if graph.failed}
    if not failed:
        return
    names = list(failed)
    what = names[0] if len(names) == 1 else f"{words.count(len(names), 'function')}, {names[0]} among them"
    is_limit = [
        graph for graph in graphs if graph.reason and graph.function in failed and failed[graph.function].is_limit
    ]
    yield from window.finding(
        "left-uncompiled",
        None,
        title=(
            f"torch.compile compiles {what} no more: where no graph of it fits, it runs uncompiled."
            if is_limit
            else f"torch.compile cannot compile {what}: it runs uncompiled."
        ),
        estimate="Not known: of a function that runs uncompiled, nothing tells what compiled it would take.",
        evidence=[*(f"{name}: {_why(failed[name], graphs)}" for name in names[:_SHOWN]), *_reasons(is_limit)],
        advice=_TOO_OFTEN if is_limit else _NOT_AT_ALL,
        code=window.code_for("equal shapes") if is_limit else _WHOLE,
    )


def graph_breaks(window: Evidence) -> Iterator[Finding]:
    """Code that runs compiled in the steps is compiled in pieces, as torch.compile cannot compile some of its lines.

    Breaks in torch's own code, as in the step of an optimizer, are not meant, nor those in functions that do not run in
    the steps, nor any where compiled code takes less than 1% of them.

    Source: what TorchDynamo says of breaks (`perfhooks.run.compilation.Break`), the ranges around compiled code in the
    trace, `evidence.NOTABLE`.

    Measured: on one thread of a CPU, with Inductor, where steps of a linear layer and three chains of small operators
    with a ``print`` between them took 0.78, 1.73 and 11.3 ms for batches of 1, 64 and 1,024 rows, and 0.49, 1.18 and
    5.63 ms without. On a device it was not measured.
    """
    regions = window.starting(ranges.COMPILED_REGION, Kind.OP, Kind.ANNOTATION)
    if not len(regions) or window.share(inside_ms(window)) < NOTABLE:
        return
    breaks = _running(window, regions)
    if not breaks:
        return
    named = [f"{_place(each)}: {each.reason}" for each in breaks]
    rest = [f"and {len(breaks) - _SHOWN} more"] if len(breaks) > _SHOWN else []
    yield from window.finding(
        "graph-breaks",
        None,
        title=f"torch.compile breaks its graph at {words.count(len(breaks), 'line')}, and compiles pieces of it.",
        estimate="Not known: what one graph would take instead of its pieces, no recording tells.",
        evidence=[f"compiled pieces run in a {window.unit}: {window.count_per_step(regions)}", *named[:_SHOWN], *rest],
        advice=(
            "At each of these lines compiled code ends, Python runs, and other compiled code begins: nothing is fused "
            "across it, no CUDA graph spans it, and guards are checked again. Take printing, logging and item() out "
            "of the function, write a condition on a tensor as torch.where, and have the rest compiled as one graph; "
            "with fullgraph=True torch raises at the first line that breaks it."
        ),
        code=_WHOLE,
    )


def inside_ms(window: Evidence) -> float:
    """How long compiled code runs on the host, forward and backward, in milliseconds a step."""
    return window.per_step(window.spans(inside(window)))


def inside(window: Evidence) -> Ints:
    """The ranges around compiled code in the steps; slices, some within others."""
    return window.named(ranges.COMPILED, Kind.OP, Kind.ANNOTATION)


def _running(window: Evidence, regions: Ints) -> list[Break]:
    """The breaks of functions that run in the steps; all where the trace does not number what runs, as of torch 2.4."""
    compilation, trace = window.capture.compilation, window.trace
    names = {trace.names[name] for name in set(trace.name[regions].tolist())}
    numbers = {name.rpartition(": ")[2].partition("/")[0] for name in names if ": " in name}
    running = {_without_line(graph.function) for graph in compilation.graphs if graph.number in numbers}
    return [each for each in compilation.breaks if each.is_own and (not numbers or running & {*each.functions})]


def _without_line(function: str) -> str:
    file, _, name = function.rpartition(": ")
    return f"{file.rpartition('(')[0]}: {name}"


def _place(each: Break) -> str:
    return f"{each.within}, in {each.line}" if each.within else each.line


def _reasons(graphs: Sequence[Graph]) -> list[str]:
    """Which guards of which functions failed, most often first."""
    found = Counter(f"{graph.function}: {graph.reason}" for graph in graphs)
    return [f"{text}{f' ({count} times)' if count > 1 else ''}" for text, count in found.most_common(_SHOWN)]


def _why(failed: Graph, graphs: Sequence[Graph]) -> str:
    """Why a function is left alone, for people."""
    if not failed.is_limit:
        return failed.failed
    made = sum(graph.function == failed.function and not graph.failed for graph in graphs)
    return f"compiled {words.count(made, 'time')}, which is the limit"
