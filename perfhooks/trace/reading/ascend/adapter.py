from __future__ import annotations

from typing import TYPE_CHECKING

from perfhooks.trace.reading.ascend.arguments import split_inputs
from perfhooks.trace.reading.ascend.labels import relabel
from perfhooks.trace.reading.ascend.links import link
from perfhooks.trace.reading.ascend.processes import Processes
from perfhooks.trace.reading.ascend.work import classify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Column, Doubt, Ints
    from perfhooks.trace.reading.ascend.flows import FlowEnds
    from perfhooks.trace.reading.ascend.work import Numbers
    from perfhooks.trace.reading.processes import ProcessNames


class AscendTranslator:
    """Converts the slices of one file. Call `classify` before the slices are sorted, and `link` afterwards."""

    def __init__(self, names: ProcessNames, numbers: Numbers, flows: FlowEnds) -> None:
        self._processes = Processes(names)
        self._numbers = numbers
        self._flows = flows

    def classify(self, columns: Mapping[str, Column], arguments: dict[str, tuple[Ints, Column]]) -> list[Doubt]:
        split_inputs(arguments, self._numbers)
        return [*classify(self._processes, self._numbers, columns, arguments)]

    def link(self, columns: Mapping[str, Column], arguments: dict[str, tuple[Ints, Column]]) -> None:
        relabel(columns, list(self._numbers.names))
        link(self._processes, self._numbers, columns, arguments, self._flows)

    def device(self, pid: int | str) -> int:
        return self._processes.device(pid)
