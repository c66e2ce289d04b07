"""Graphs of torch.compile in this process, and their breaks.

TorchDynamo records the last 64 compilations (``torch._dynamo.utils.get_compilation_metrics``) and all graph breaks
(``graph_break_reasons``). Both interfaces of torch are private; missing values are empty.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from perfhooks.trace.names.origins import Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfhooks.run.installation import Installation

_LONGEST: Final = 300
"""Maximum characters of the reason for a graph break, to which torch appends hints and links."""

_TORCH: Final = {Origin.TORCH, Origin.STANDARD, Origin.PERFHOOKS}
_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")
"""Names of the functions that TorchDynamo creates for the code after a graph break."""
_LIMIT: Final = re.compile(r"(?:recompile|cache[ _]?size)[ _]?limit", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One compilation of a function, forward and backward."""

    id: str = ""
    """Identifier of the graph in the trace: number of the function, number of earlier compilations."""
    function: str = ""
    """Compiled function, for example ``train.py(11): forward``, or the line after a graph break."""
    is_own: bool = False
    operators: int | None = None
    seconds: float = 0.0
    backend_s: float = 0.0
    inductor_s: float = 0.0
    """Time of inductor in s, included in the time of the backend."""
    is_recorded: bool = False
    reason: str = ""
    """Failed guard that caused a recompilation."""
    failed: str = ""

    @property
    def number(self) -> str:
        return self.id.partition("/")[0]

    @property
    def is_limit(self) -> bool:
        """Whether the function now runs uncompiled, because it reached the limit of compilations."""
        return _LIMIT.search(self.failed) is not None


@dataclass(frozen=True, kw_only=True)
class Break:
    reason: str
    line: str
    """Innermost line that was being compiled: ``train.py(11): forward``."""
    within: str = ""
    functions: tuple[str, ...] = ()
    """Functions that were being compiled, from caller to callee."""
    is_own: bool = False
    """Whether the graph break is in code outside of torch."""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Compilation:
    graphs: tuple[Graph, ...] = ()
    breaks: tuple[Break, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.graphs or self.breaks)

    @classmethod
    def current(cls, installation: Installation, began: float) -> Compilation:
        """Return the compilations since ``began`` (s since 1970), without an import of torch's compiler."""
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        with contextlib.suppress(Exception):
            metrics = [*getattr(dynamo, "get_compilation_metrics", tuple)()]
            # Converting one compilation takes 5 us of the training thread.
            reasons = [*getattr(dynamo, "graph_break_reasons", ())][-2000:]
            return cls(graphs=_graphs(metrics, installation, began), breaks=_breaks(reasons, installation))
        return cls()


def _graphs(metrics: Iterable[Any], installation: Installation, began: float) -> tuple[Graph, ...]:
    graphs: dict[str, Graph] = {}
    for metric in metrics:
        if getattr(metric, "is_runtime", False):
            continue
        graph = _graph(metric, installation, began)
        graph_of_same = graphs.get(graph.id)
        if graph_of_same is not None and graph.function:  # ``torch.compiler.reset()`` restarts the numbers
            graphs.clear()
            graph_of_same = None
        graphs[graph.id] = graph if graph_of_same is None else _together(graph_of_same, graph)
    return tuple(_named(graph, graphs) for graph in graphs.values())


def _graph(metric: Any, installation: Installation, began: float) -> Graph:
    seconds = [_number(metric, f"{part}_compile_time_s") for part in ("entire_frame", "backend", "inductor")]
    file, line = _text(metric, "co_filename"), getattr(metric, "co_firstlineno", None)
    start, total = _number(metric, "start_time"), max(*seconds, _number(metric, "duration_us") / 1e6)
    return Graph(
        id=_text(metric, "compile_id"),
        function=f"{installation.named(file)}({line}): {_name(_text(metric, 'co_name'))}" if file else "",
        is_own=bool(file) and installation.origin_of(file) not in _TORCH,
        operators=getattr(metric, "graph_op_count", None),
        seconds=total,
        backend_s=max(seconds[1:]),
        inductor_s=seconds[2],
        is_recorded=0 < began <= start,
        reason=_guard(_text(metric, "recompile_reason")),
        failed="" if "Skip" in _text(metric, "fail_type") else _said(_text(metric, "fail_reason")),
    )


def _together(first: Graph, later: Graph) -> Graph:
    return replace(
        first,
        seconds=first.seconds + later.seconds,
        # the backward pass has no tracing, only backend time
        backend_s=first.backend_s + later.seconds,
        inductor_s=first.inductor_s + later.inductor_s,
        is_recorded=later.is_recorded,
    )


def _named(graph: Graph, graphs: dict[str, Graph]) -> Graph:
    """If torch omitted the function name, copy the name from another graph of the function."""
    graph_of_same = next((item for item in graphs.values() if item.number == graph.number and item.function), graph)
    return graph if graph.function else replace(graph, function=graph_of_same.function, is_own=graph_of_same.is_own)


def _breaks(reasons: Sequence[Any], installation: Installation) -> tuple[Break, ...]:
    breaks: dict[tuple[str, str], Break] = {}
    for item in reversed(reasons):
        graph_break = _break(item, installation)
        if graph_break is None:
            continue
        key = graph_break.reason, graph_break.line
        graph_of_same = breaks.get(key, replace(graph_break, functions=(), count=0))
        functions = dict.fromkeys(graph_of_same.functions + graph_break.functions)
        breaks[key] = replace(graph_of_same, functions=tuple(functions), count=graph_of_same.count + 1)
    return tuple(itertools.islice(breaks.values(), 50))


def _break(reason: Any, installation: Installation) -> Break | None:
    frames = getattr(reason, "user_stack", None) or ()
    if not frames:
        return None
    lines = [f"{installation.named(item.filename)}({item.lineno}): {_name(item.name)}" for item in frames]
    origins = [installation.origin_of(item.filename) for item in frames]
    within = next((line for line, origin in zip(lines[::-1], origins[::-1], strict=True) if origin is Origin.USER), "")
    return Break(
        reason=_said(str(getattr(reason, "reason", ""))),
        line=lines[-1],
        within=within if within != lines[-1] else "",
        functions=(f"{installation.named(frames[0].filename)}: {_name(frames[0].name)}",),
        is_own=not set(origins) <= _TORCH,
    )


def _name(function: str) -> str:
    resumed = _RESUMED.fullmatch(function)
    return resumed[1] if resumed else function


def _guard(reason: str) -> str:
    first = reason.strip().partition("\n")[0]
    return re.sub(r"^\d+/\d+: ", "", re.split(r"\s{2,}# ", first)[0]).strip()[:_LONGEST]


def _said(reason: str) -> str:
    first, _, details = reason.strip("'\"\n ").partition("\n")
    explanation = re.search(r"Explanation: (.+?(?:\.(?= )|$))", details, re.MULTILINE)
    return (f"{first.rstrip('.')}: {explanation[1]}" if explanation else first)[:_LONGEST]


def _text(metric: Any, name: str) -> str:
    value = getattr(metric, name, None)
    return "" if value is None else str(value)


def _number(metric: Any, name: str) -> float:
    value = getattr(metric, name, None)
    return float(value) if isinstance(value, int | float) else 0.0
