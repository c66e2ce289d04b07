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
    """Report compilations by torch.compile that take at least 1% of the profiled steps (`NOTABLE`).

    The data are ranges of TorchDynamo (``... (dynamo_timed)``) and TorchDynamo's report of each compilation
    (`perfhooks.run.compilation`). `start.recorded_start` reports a single first compilation.

    Measured twice on a CPU: constant shapes reduced a step of ``examples/bad/recompilation.py`` from 366 and 377 ms to
    64 and 66 ms; the estimated gain was 231 ms. The gain on a device is an unmeasured upper bound.
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
    """Report functions that torch.compile runs uncompiled: it cannot compile them, or has compiled them too often.

    TorchDynamo's report of a compilation (`perfhooks.run.compilation.Graph.failed`) names the cause. The limit of
    compilations is ``torch._dynamo.config.recompile_limit``, by default 8 per function. torch 2.4 does not report
    whether a function reached this limit.
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
    """Report lines that torch.compile cannot compile, so that it splits the compiled code of the steps into pieces.

    Graph breaks in torch's own code (for example in an optimizer) do not count, nor in functions that the steps do not
    call. There is no finding if compiled code takes less than 1% of the steps (`evidence.NOTABLE`).

    The data are TorchDynamo's report of graph breaks (`perfhooks.run.compilation.Break`), and the ranges around
    compiled code in the trace.

    Measured on one CPU thread with Inductor: without a ``print``, steps of a linear layer and three chains of small
    operators were 37%, 32% and 50% shorter for 1, 64 and 1,024 rows.
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
    """Return the slices of the trace around calls of compiled code. Slices may be nested."""
    return window.matching(ranges.COMPILED, Kind.OP, Kind.ANNOTATION)


def _breaks_in_steps(window: Evidence, regions: Ints) -> list[Break]:
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
