from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from perfhooks.core import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self


_enter: Callable[[str], object] = vars(torch.autograd)["_record_function_with_args_enter"]
_exit: Callable[[object], None] = vars(torch.autograd)["_record_function_with_args_exit"]


class LabelledRange(record_function):
    """A label like ``record_function``, but without operator calls, which release the GIL.

    Function and dispatch modes, ``make_fx`` and ``torch.jit.trace`` do not see the label.
    """

    def __init__(self, name: str) -> None:
        super().__init__(labels.escaped(name))

    def __enter__(self) -> Self:
        if getattr(torch.autograd.profiler, "_active_cupti_profiler_observer", None) is not None:
            super().__enter__()  # type: ignore[no-untyped-call]  # torch's new recorder cuspy reads it there
        else:
            self.record: Any = _enter(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        if getattr(self, "_cupti_monitor_external_id", None) is not None:
            super().__exit__(*error)
        elif self.record is not None:
            _exit(self.record)
