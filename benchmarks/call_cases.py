"""Calls of any operator of torch with any arguments, as a hostile recording has them, run as by `perfhooks try`."""

from __future__ import annotations

import math
import resource
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.run.circumstances import Circumstances
from perfhooks.trace.names import operators
from perfhooks.trials import bench, cut, schemas, timing, trial
from perfhooks.trials.recorded import Argument, Signature

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

MEMORY_GIB: Final = 0.05
SECONDS: Final = 30.0
CALLS: Final = 100
"""In one case: a child is made for all of them, and another after each death."""
OTHERS: Final = 0.02
"""The share of operators that are not run again, which is to be said."""
TAME: Final = 0.8
"""The share of calls in which sizes and types mostly fit together, so that it comes to computing."""
_LATE_S: Final = 10.0
"""Of a processor beyond that: children begin."""
_ALL: Final = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
_GROWTH: Final = (int(MEMORY_GIB * (1 << 30)) + 200_000_000) >> 10
_SIZES: Final = (0, 1, 1, 2, 3, 3, 7, 64, 1000, 100_000, 2**31, 2**62)
_FEW: Final = ("0", "1", "1", "2", "3", "-1", "0.5", "True", "False")
_NUMBERS: Final = (*_FEW, "nan", "inf", "1e300", "1000000", "-9223372036854775808")
_VARIANTS: Final = ("threads", "contiguous", "bf16")
_TYPES: Final = ("float", "double", "long int", "int", "bool", "c10::Half", "c10::BFloat16", "unsigned char")
_WORDS: Final = ("mean", "sum", "constant", "none", "fro", "ij", "bilinear", "/etc/passwd", "")
_DTYPES: Final = ("6", "4", "15")
"""Numbers of float32, int64 and bfloat16."""


class BoundError(Exception):
    """A call took more than it may."""


class Cases:
    """A hundred calls each, tried in child processes.

    Args:
        folder: Holds what a failing case leaves.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "calls.txt"
        self.made: Counter[str] = Counter()
        """How many calls ran, and of how many operators."""
        self._calls: list[Any] = []
        names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001 -- there is no public list
        every = sorted({name.partition(".")[0] for name in names if name.startswith(operators.NAMESPACE)})
        self._pure = [name for name in every if any(schemas.is_pure(*each) for each in schemas.overloads(name))]
        self._others = sorted(set(every) - set(self._pure))
        self._ran: set[str] = set()
        self._most = 0

    def make(self, dice: random.Random, damage: Callable[[bytes], bytes]) -> None:
        """Make calls."""
        del damage  # there are no bytes of them
        self._calls = [
            signature(dice.choice(self._others if dice.random() < OTHERS else self._pure), dice) for _ in range(CALLS)
        ]
        self.path.write_text("\n".join(map(str, self._calls)))

    def examine(self, dice: random.Random) -> str:
        """Try them; say whether one of them ended its process.

        Raises:
            BoundError: They took more memory or time than they may; any other exception is a fault as well.
        """
        offered = cut.OperatorSelection(tuple(cut.Group(call, 1, 1.0, 1.0) for call in self._calls), (), 1.0)
        options = bench.TrialOptions(
            device=torch.device("cpu"),
            memory=MEMORY_GIB,
            seconds=SECONDS,
            limit=CALLS,
            variants=(dice.choice(_VARIANTS),),
            clock=Hurried(),
        )
        before = _seconds()
        done = trial.run(offered, 1.0, options, Circumstances())
        if _seconds() - before > SECONDS + _LATE_S:
            raise BoundError(f"{_seconds() - before:.0f} s of a processor")
        children, own = (resource.getrusage(who).ru_maxrss for who in _ALL[::-1])
        most, self._most = self._most, max(self._most, children)
        if children > most and children - own > _GROWTH:
            raise BoundError(f"{(children - own) >> 10} MiB")
        ran = [row.group.signature.name for row in done.rows if row.alone_ms is not None]
        problems = [each.problem for row in done.rows for each in (row, *row.tried)]
        deaths = sum("crashed the child process" in problem for problem in problems)
        self._ran |= set(ran)
        self.made.update(asked=len(done.rows), ran=len(ran), deaths=deaths)
        self.made["late"] += sum("exceeded its time limit" in problem for problem in problems)
        self.made["operators that ran"] = len(self._ran)
        return "died" if deaths else "tried"


def _seconds() -> float:
    """Of a processor, by this process and its children that have ended; the machine may be busy."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, _ALL))


class Hurried:
    """A clock that says of every block that it is long enough: how fast something is does not matter here."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """The next time."""
        self._now += 2 * timing.BLOCK_S
        return self._now


def signature(name: str, dice: random.Random) -> Any:
    """A call of an operator."""
    formal = schemas.schema_arguments(dice.choice(schemas.overloads(name))[0])
    if dice.random() < TAME:
        some = Tame(dice)
        return Signature(name, tuple(some.argument(each.name, str(each.type)) for each in formal))
    return Signature(name, tuple(argument(str(each.type), dice) for each in formal))


class Tame:
    """Arguments that mostly fit together: every size is the same, and so is the type."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._size, self._rank = dice.choice((1, 2, 3, 8)), dice.choice((0, 1, 2, 2, 3, 4, 4, 5))
        self._type = dice.choice(("float", "float", "float", *_TYPES))

    def argument(self, name: str, kind: str) -> Any:
        """One of a name and a type in the schema."""
        dice = self._dice
        if dice.random() < 0.03:
            return argument(kind, dice)
        if kind.startswith("Optional") and dice.random() < 0.7:
            return Argument("", (), (), "")
        if "Tensor" in kind and "List" in kind:
            some = (self._dims(),) * dice.choice((1, 2, 2, 3))
            return Argument("TensorList", some, tuple(map(dense, some)), "")
        if "Tensor" in kind:
            is_place = any(word in name for word in ("ind", "offsets", "target", "length", "batch_sizes"))
            return self._tensor("long int" if is_place else self._type)
        if "List" in kind:
            return Argument("ScalarList", (), (), str(self._list(name, kind)))
        known = {"str": _WORDS, "bool": ("True", "False")}.get(kind.removeprefix("Optional[").rstrip("]"), _FEW)
        return Argument("Scalar", (), (), dice.choice(_DTYPES if name == "dtype" else known))

    def _list(self, name: str, kind: str) -> list[Any]:
        dice = self._dice
        if "bool" in kind:
            return [dice.random() < 0.5 for _ in range(3)]
        of = (self._size,) if "size" in name else (0, 1, 1, 1, 2, -1)
        length = max(dice.choice((self._rank, self._rank, self._rank - 2, 1)), 0)
        return [dice.choice(of) for _ in range(length)]

    def _tensor(self, dtype: str) -> Argument:
        dims = self._dims()
        strides = dense(dims) if self._dice.random() < 0.9 else tuple(reversed(dense(dims)))
        return Argument(dtype, dims, strides, "")

    def _dims(self) -> tuple[int, ...]:
        ranks = (self._rank,) * 5 + (1, 2, max(self._rank - 1, 0))
        return (self._size,) * self._dice.choice(ranks)


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
    return Argument("Scalar", (), (), dice.choice(_WORDS if "str" in kind else _NUMBERS))


def sizes(dice: random.Random) -> tuple[int, ...]:
    """Mostly small."""
    large = len(_SIZES) if dice.random() < 0.1 else 9
    return tuple(dice.choice(_SIZES[:large]) for _ in range(dice.randrange(5)))


def dense(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without holes."""
    return tuple(math.prod(dims[place + 1 :]) for place in range(len(dims)))
