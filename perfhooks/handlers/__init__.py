"""What one finished window becomes: each handler turns a capture and its trace into files.

A handler is a small frozen dataclass that needs only files, so it can run in another process, or later, on any Kineto
trace. Importing this package, or making a handler, imports nothing heavy.
"""

from __future__ import annotations

from perfhooks.handlers.artifact import Artifact, Handler
from perfhooks.handlers.chrome import ChromeTrace
from perfhooks.handlers.collectives import CollectiveTable
from perfhooks.handlers.flame import Flame
from perfhooks.handlers.kernels import KernelTable
from perfhooks.handlers.memory import Memory
from perfhooks.handlers.modules import Modules
from perfhooks.handlers.page import PageData
from perfhooks.handlers.recipes import ENTRY_POINTS, NAMES, build, by_default, rebuild, spec
from perfhooks.handlers.stacks import Stacks
from perfhooks.handlers.tables import CategoryTable, OperatorTable, StepTable
from perfhooks.handlers.tensorboard import TensorBoard

__all__ = [
    "ENTRY_POINTS",
    "NAMES",
    "Artifact",
    "CategoryTable",
    "ChromeTrace",
    "CollectiveTable",
    "Flame",
    "Handler",
    "KernelTable",
    "Memory",
    "Modules",
    "OperatorTable",
    "PageData",
    "Stacks",
    "StepTable",
    "TensorBoard",
    "build",
    "by_default",
    "rebuild",
    "spec",
]
