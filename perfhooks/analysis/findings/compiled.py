from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import starts
from perfhooks.trace.nesting.intervals import NOTABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.analysis.findings.texts import EvidenceLine, FindingText
    from perfhooks.run.compilation import Break, Graph
    from perfhooks.trace.model import Ints

_MAX_LINES: Final = 5


def recompilation(window: Evidence) -> Iterator[Finding]:
    """torch.compile compiles in profiled steps, for 1% of their time or more.

    Threshold: `NOTABLE`. The data are the ranges that TorchDynamo opens around its phases (``... (dynamo_timed)``), and
    its report of each compilation (`perfhooks.run.compilation`). A first compilation alone is one-time work
    (`start.recorded_start`).

    Measured on a CPU: with constant shapes, steps of ``examples/bad/recompilation.py`` fell from 366 and 377 ms to 64
    and 66 ms; the estimate was 231 ms. The gain on a device was not measured and is an upper bound.
    """
    rows = window.matching(ranges.COMPILING, Kind.OP, Kind.ANNOTATION)
    compile_ms = window.per_step(window.spans(rows))
    gain = min(compile_ms, window.host_limit_ms)
    if window.share(gain) < NOTABLE or starts.COMPILING in window.startup:
        return
    outer = window.outermost(rows)
    lines = [(line, compile_ms / len(outer)) for line in window.lines_of(outer) if line]
    guards = [graph for graph in window.capture.compilation.graphs if graph.is_recorded and graph.reason]
    text = window.texts("recompilation", "" if guards else "unknown-guards", compile_ms=compile_ms)
    yield from window.finding(
        text,
        gain,
        is_measured=not window.uses_device,
        evidence=[
            text("count", count=len(outer), steps=window.numbers),
            *_guard_lines(text, guards),
            *top_lines(lines),
        ],
        of=window.spans(rows),
    )


def left_uncompiled(window: Evidence) -> Iterator[Finding]:
    """torch.compile runs a function uncompiled: it cannot compile it, or compiled it too often.

    TorchDynamo's report of a compilation (`perfhooks.run.compilation.Graph.failed`) names the cause: its limit of
    compilations, or a line at which a graph cannot break, for example in a loop. The limit is
    ``torch._dynamo.config.recompile_limit``, by default 8 per function. torch 2.4 does not report it.
    """
    graphs = [graph for graph in window.capture.compilation.graphs if graph.is_own]
    failed = {graph.function: graph for graph in graphs if graph.failed}
    if not failed:
        return
    names = list(failed)
    is_limit = [
        graph for graph in graphs if graph.reason and graph.function in failed and failed[graph.function].is_limit
    ]
    text = window.texts(
        "left-uncompiled",
        "limit" if is_limit else "",
        ("several-limit" if is_limit else "several") if len(names) > 1 else "",
        function=names[0],
        count=len(names),
    )
    evidence = [_failure_text(text, failed[name], graphs) for name in names[:_MAX_LINES]]
    yield from window.finding(text, None, evidence=[*evidence, *_guard_lines(text, is_limit)])


def graph_breaks(window: Evidence) -> Iterator[Finding]:
    """Compiled code in the steps is split into pieces, because torch.compile cannot compile some lines.

    Breaks do not count in torch's own code, for example in an optimizer, and in functions that do not run in the steps.
    There is no finding if compiled code takes less than 1% of the steps.

    Threshold: `evidence.NOTABLE`. The data are TorchDynamo's report of breaks (`perfhooks.run.compilation.Break`), and
    the ranges around compiled code in the trace.

    Measured on one thread of a CPU, with Inductor: without a ``print`` in between, steps with a linear layer and three
    chains of small operators took 37%, 32% and 50% less for 1, 64 and 1,024 rows. The gain on a device was not measured
    and is an upper bound.
    """
    regions = window.with_prefix(ranges.COMPILED_REGION, Kind.OP, Kind.ANNOTATION)
    if not len(regions) or window.share(inside_ms(window)) < NOTABLE:
        return
    breaks = _breaks_in_steps(window, regions)
    if not breaks:
        return
    text = window.texts("graph-breaks", breaks=len(breaks))
    lines = [
        text(
            "nested" if graph_break.within else "break",
            function=graph_break.within,
            line=graph_break.line,
            reason=graph_break.reason,
        )
        for graph_break in breaks[:_MAX_LINES]
    ]
    more = [text("more", more=len(breaks) - _MAX_LINES)] if len(breaks) > _MAX_LINES else []
    evidence = [text("pieces", count=window.count_per_step(regions)), *lines, *more]
    yield from window.finding(text, None, evidence=evidence)


def inside_ms(window: Evidence) -> float:
    return window.per_step(window.spans(inside(window)))


def inside(window: Evidence) -> Ints:
    """Return the trace slices around calls of compiled code; some are nested."""
    return window.matching(ranges.COMPILED, Kind.OP, Kind.ANNOTATION)


def _breaks_in_steps(window: Evidence, regions: Ints) -> list[Break]:
    """Return the graph breaks of functions that run in the steps. torch 2.4 does not name them: return all breaks."""
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


def _guard_lines(text: FindingText, graphs: Sequence[Graph]) -> list[EvidenceLine]:
    counts = Counter((graph.function, graph.reason) for graph in graphs)
    return [
        text("guards" if count > 1 else "guard", function=function, reason=reason, times=count)
        for (function, reason), count in counts.most_common(_MAX_LINES)
    ]


def _failure_text(text: FindingText, failed: Graph, graphs: Sequence[Graph]) -> EvidenceLine:
    if not failed.is_limit:
        return text("failed", function=failed.function, reason=failed.failed)
    compilations = sum(graph.function == failed.function and not graph.failed for graph in graphs)
    return text("limit", function=failed.function, times=compilations)
