from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.perfhooks_frames import OURS, PROGRAM, STAND_IN
from perfhooks.trace.nesting import host
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace
    from perfhooks.trace.nesting.intervals import Flags


@cached_per_trace
def is_perfhooks(trace: Trace) -> Flags:
    """Return which entries of `host.tree` are frames of perfhooks, or calls that perfhooks makes in these frames."""
    tree = host.tree(trace)
    parent = tree.nesting.parent
    is_frame: Flags = trace.kind[tree.row] == Kind.PYTHON
    is_own, is_stand_in, is_program = (is_frame.copy() for _ in range(3))
    for flags, pattern in ((is_own, OURS), (is_stand_in, STAND_IN), (is_program, PROGRAM)):
        flags[is_frame] = trace.matching(pattern, tree.row[is_frame])
    if not is_own.any():
        return np.zeros(len(is_own), np.bool_)
    # a label is between the wrapper (`STAND_IN`) and the user's function
    frame = inherited(parent, np.where(is_frame, np.arange(len(is_frame)), -1))
    parent_frame = np.append(frame, -1)[parent]
    is_user_call = ~is_own & np.append(is_stand_in, False)[parent_frame] & (is_program | ~is_frame)
    flagged: Flags = inherited(parent, np.where(is_own, 1, np.where(is_user_call, 0, -1))) == 1
    return flagged
