"""Calls of any operator of torch with any arguments, as a hostile recording has them, run as by `perfhooks try`."""

from __future__ import annotations

import math
import resource
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.run.circumstances import Circumstances
from perfhooks.trying import bench, cut, trial
from perfhooks.trying.recorded import Argument, Signature

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

MEMORY_GIB: Final = 0.05
SECONDS: Final = 10.0
CALLS: Final = 20
"""In one case: a child is made for all of them, and another after each death."""
_LATE_S: Final = 10.0
"""Beyond that: a child begins, and the machine is busy."""
_GROWTH: Final = (int(MEMORY_GIB * (1 << 30)) + 200_000_000) >> 10
_SIZES: Final = (0, 1, 1, 2, 3, 3, 7, 64, 1000, 100_000, 2**31, 2**62)
_NUMBERS: Final = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "0.5",
    "True",
    "False",
    "nan",
    "inf",
    "1e300",
    "1000000",
    "-9223372036854775808",
)
_VARIANTS: Final = ("threads", "contiguous", "bf16")
_TYPES: Final = ("float", "double", "long int", "int", "bool", "c10::Half", "c10::BFloat16", "unsigned char")


class BoundError(Exception):
    """A call took more than it may."""


class Cases:
    """Twenty calls each, tried in child processes.

    Args:
        folder: Holds what a failing case leaves.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "calls.txt"
        self._calls: list[Any] = []

    def make(self, dice: random.Random, damage: Callable[[bytes], bytes]) -> None:
        """Make calls."""
        del damage  # there are no bytes of them
        self._calls = [signature(dice) for _ in range(CALLS)]
        self.path.write_text("\n".join(map(str, self._calls)))

    def examine(self, dice: random.Random) -> str:
        """Try them; say whether one of them ended its process.

        Raises:
            BoundError: They took more memory or time than they may; any other exception is a fault as well.
        """
        offered = cut.Cut(tuple(cut.Group(call, 1, 1.0, 1.0) for call in self._calls), (), 1.0)
        options = bench.TrialOptions(
            device=torch.device("cpu"),
            memory=MEMORY_GIB,
            seconds=SECONDS,
            limit=CALLS,
            variants=(dice.choice(_VARIANTS),),
        )
        began = time.monotonic()
        done = trial.run(offered, 1.0, options, Circumstances())
        if time.monotonic() - began > SECONDS + _LATE_S:
            raise BoundError(f"{time.monotonic() - began:.0f} s")
        children, own = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
        if children - own > _GROWTH:
            raise BoundError(f"{(children - own) >> 10} MiB")
        problems = [each.problem for row in done.rows for each in (row, *row.tried)]
        return "died" if any("it ended the process" in problem for problem in problems) else "tried"


def signature(dice: random.Random) -> Any:
    """A call of any operator."""
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001 -- there is no public list
    name = dice.choice(sorted({name.partition(".")[0] for name in names if name.startswith("aten::")}))
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    schema = getattr(packet, dice.choice(packet.overloads()))._schema  # noqa: SLF001 -- as above
    return Signature(name, tuple(argument(str(each.type), dice) for each in schema.arguments))


def argument(kind: str, dice: random.Random) -> Any:
    """Something for an argument of a schema, mostly of its type."""
    if "Tensor" in kind and "List" in kind:
        some = tuple(sizes(dice) for _ in range(dice.randrange(4)))
        return Argument("TensorList", some, tuple(map(dense, some)), "")
    if kind.startswith("Optional") and dice.random() < 0.6:
        return Argument("", (), (), "")
    if "Tensor" in kind:
        dims = sizes(dice)
        strides = dense(dims) if dice.random() < 0.7 else tuple(dice.choice((0, 1, 2, 7, 2**40)) for _ in dims)
        return Argument(dice.choice(_TYPES), dims, strides, "")
    if "List" in kind:
        return Argument("ScalarList", (), (), str([dice.choice(_SIZES[:10]) for _ in range(dice.randrange(5))]))
    return Argument(
        "Scalar", (), (), dice.choice(("mean", "/etc/passwd", "")) if "str" in kind else dice.choice(_NUMBERS)
    )


def sizes(dice: random.Random) -> tuple[int, ...]:
    """Mostly small."""
    large = len(_SIZES) if dice.random() < 0.1 else 9
    return tuple(dice.choice(_SIZES[:large]) for _ in range(dice.randrange(5)))


def dense(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without holes."""
    return tuple(math.prod(dims[place + 1 :]) for place in range(len(dims)))
