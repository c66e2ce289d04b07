"""Traces of torch_npu for Ascend NPUs, converted to the columns of a `Trace`.

Sources: ``torch_npu/profiler/analysis`` of https://gitcode.com/Ascend/pytorch, ``analysis/csrc`` of
https://gitcode.com/Ascend/msprof, and recorded traces of January 2024 and January 2025.
"""

from perfhooks.trace.reading.ascend.adapter import AscendTranslator
from perfhooks.trace.reading.ascend.arguments import TASKS
from perfhooks.trace.reading.ascend.flows import CATEGORIES as FLOWS
from perfhooks.trace.reading.ascend.flows import FlowEnds
from perfhooks.trace.reading.ascend.folder import (
    PATTERNS,
    base_of,
    is_part,
    process_of,
    rank_of,
    traces_below,
    with_rank,
)
from perfhooks.trace.reading.ascend.processes import is_ascend
from perfhooks.trace.reading.ascend.work import Numbers

__all__ = [
    "FLOWS",
    "PATTERNS",
    "TASKS",
    "AscendTranslator",
    "FlowEnds",
    "Numbers",
    "base_of",
    "is_ascend",
    "is_part",
    "process_of",
    "rank_of",
    "traces_below",
    "with_rank",
]
