"""Findings: performance problems of a window."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from perfhooks.analysis.findings import (
    attention,
    communication,
    compiled,
    copies,
    data,
    host,
    kernels,
    machine,
    optimizer,
    products,
    python_code,
    rare_work,
    start,
    texts,
)
from perfhooks.analysis.findings.evidence import Evidence
from perfhooks.analysis.findings.finding import (
    OVERHEAD,
    Finding,
    SourceLocation,
    add_source_lines,
    first_rank_findings,
    gain,
    location_of,
    ordered,
    sort_key,
    source_location,
)
from perfhooks.analysis.findings.texts import RuleTexts
from perfhooks.core import plugins
from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

__all__ = [
    "OVERHEAD",
    "RULES",
    "RUN_RULES",
    "Evidence",
    "Finding",
    "RuleTexts",
    "SourceLocation",
    "add_source_lines",
    "find",
    "first_rank_findings",
    "gain",
    "location_of",
    "ordered",
    "run_rules",
    "source_location",
]

_logger: Final = logging.getLogger("perfhooks")

RULES: Final[tuple[Callable[[Evidence], Iterator[Finding]], ...]] = (
    machine.busy_machine,
    machine.held_clocks,
    machine.lowered_clock,
    machine.shared_device,
    data.waiting_for_data,
    copies.only_copies,
    copies.blocking_copies,
    copies.held_by_copies,
    host.launch_preparation,
    host.host_bound,
    host.device_pauses,
    host.synchronisation,
    compiled.recompilation,
    compiled.left_uncompiled,
    compiled.graph_breaks,
    products.float32_products,
    products.float64_products,
    kernels.slow_convolution,
    kernels.layout_conversions,
    products.unaligned_products,
    products.weight_bound_products,
    attention.written_out_attention,
    kernels.kernels_below_limit,
    products.own_products,
    kernels.fusable_chains,
    python_code.operator_loop,
    optimizer.optimizer_loop,
    optimizer.zeroed_gradients,
    host.allocator_churn,
    communication.exposed_communication,
    communication.small_collectives,
    communication.data_parallel,
    machine.profiler_overhead,
    start.recorded_start,
    python_code.unnamed_time,
)
"""Rules for one window. The order of rules matters only for findings of equal gain."""
RUN_RULES: Final = tuple(rule for rule, _ in rare_work.RUN_RULES)


def find(capture: Capture, trace: Trace) -> list[Finding]:
    """Return the findings of a window, largest gain first. Failing rules are logged and skipped."""
    return run_rules(Evidence(capture, trace))


def run_rules(window: Evidence) -> list[Finding]:
    results: list[Finding] = []
    for rule in RULES:
        try:
            results += rule(window)
        except Exception:
            _logger.debug("rule %s failed", getattr(rule, "__name__", rule), exc_info=True)
    for name, plugin in _plugin_rules():
        try:
            results += [_checked(finding, name) for finding in plugin(window)]
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- a plugin may raise anything
            _warn_once(name, cause_of(error))
    return sorted(results, key=lambda finding: sort_key(vars(finding)))


@functools.cache
def _plugin_rules() -> list[tuple[str, Callable[[Evidence], Iterable[Finding]]]]:
    own_names = {path.stem for path in texts.FOLDER.glob("*.toml")}
    rules = []
    for point in plugins.entry_points(plugins.RULES):
        if point.name in own_names:
            _warn_once(point.name, "perfhooks has a rule with this name")
            continue
        try:
            rules.append((point.name, plugins.load(point)))
        except OptionError as error:
            _warn_once(point.name, str(error))
    return rules


def _checked(finding: object, name: str) -> Finding:
    if not isinstance(finding, Finding) or finding.rule != name:
        raise OptionError(f"the rule must yield findings whose rule is {name!r}, got {finding!r}")
    finding.check()
    return finding


@functools.cache
def _warn_once(name: str, problem: str) -> None:
    _logger.warning("The rule %r of a plugin is skipped: %s", name, texts.one_line(problem))
