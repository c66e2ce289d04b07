"""Which overload of an operator a recorded call was: the one whose schema accepts all of its arguments."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.trace.names import communication, operators, tensor_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trials.recorded import Argument, Signature

_UNUSUAL: Final = ("uint16", "uint32", "uint64", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
"""Types that hardly any operator takes, so that no tensor of them is made."""
DTYPES: Final[dict[str, torch.dtype]] = {
    spelled: getattr(torch, name) for spelled, name in tensor_types.SPELLINGS.items() if name not in _UNUSUAL
}
"""Types of tensors as the recorder writes them."""

_WORDS: Final = re.compile(r"[a-z_]{1,24}")
_MODES: Final = {
    *("approximate", "driver", "indexing", "interpolation", "mode", "norm", "ord", "p", "pad_mode", "padding"),
    *("padding_side", "reduce", "rounding_mode", "side", "UPLO"),
}
"""Arguments that are texts and say how to compute: names of modes, and no paths."""
_TENSORS: Final = ("Tensor", "List[Tensor]")
_REFUSED: Final = (
    (communication.OPERATORS, "a collective needs the other ranks"),
    (operators.AUTOGRAD, "autograd's own work between operators"),
    (operators.FOREIGN, "an operator of {namespace}, which is not torch's own"),
)
"""How names begin of what is not run again, and why."""


class UnmatchedError(Exception):
    """A call that cannot be run again: says why, in words that stand behind a name."""


def overload(signature: Signature) -> tuple[Any, dict[str, Any]]:
    """The overload and its arguments: what is no tensor as a value, tensors as they were recorded.

    Args:
        signature: Of a call.

    Returns:
        An operator of ``torch.ops``, and by the name of each argument of its schema an `Argument` or a value.

    Raises:
        UnmatchedError: There is none.
    """
    name, arguments = signature.name, signature.arguments
    for beginning, reason in _REFUSED:
        if refused := re.match(beginning, name):
            raise UnmatchedError(reason.format(**refused.groupdict()))
    if arguments is None:
        raise UnmatchedError("its arguments were not recorded")
    if not (candidates := overloads(name)):
        raise UnmatchedError("this torch has no such operator")
    if not (pure := [each for each in candidates if is_pure(*each)]):
        raise UnmatchedError("its schema does not say that all it does is to compute tensors")
    for operator, wanted in pure:
        if len(wanted) == len(arguments):
            with contextlib.suppress(KeyError, ValueError):  # another overload may take what this one does not
                values = map(_value, wanted, arguments)
                return operator, dict(zip([argument.name for argument in wanted], values, strict=True))
    if any(given.type == tensor_types.TENSORS and not given.dims for given in arguments):
        raise UnmatchedError("the shapes of a list of more than 30 tensors are not recorded")
    raise UnmatchedError("no overload of this torch takes what was recorded of its arguments")


@functools.cache
def overloads(name: str) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """The overloads of an operator, each with the arguments of its schema."""
    packet = getattr(torch.ops.aten, name.removeprefix(operators.NAMESPACE), None)
    if packet is None or not hasattr(packet, "overloads"):
        return ()
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return tuple((operator, formal(operator)) for operator in overloads)


def is_pure(operator: Any, wanted: tuple[Any, ...]) -> bool:
    """Whether torch says that all it does is to compute tensors, of tensors, numbers and modes: a trace is data.

    Its schema has every tensor that it writes into, and returns nothing else. What it does to its process, as to draw
    random numbers, ends with the child that runs it. What its inputs are later is tagged, as by ``resize_``. Arguments
    of other types, as streams and generators, are never given.
    """
    gives = any(str(result.type) in _TENSORS for result in _schema(operator).returns)
    texts = {argument.name for argument in wanted if "str" in str(argument.type)}
    is_computed = gives or any(map(is_written, wanted))
    return is_computed and texts <= _MODES and torch.Tag.inplace_view not in operator.tags


def formal(operator: Any) -> tuple[Any, ...]:
    """The arguments of an overload's schema."""
    return tuple(_schema(operator).arguments)


def _schema(operator: Any) -> Any:
    return operator._schema  # noqa: SLF001 -- there is no public name for it


def is_written(argument: Any) -> bool:
    """Whether an operator writes into an argument of its schema."""
    return argument.alias_info is not None and argument.alias_info.is_write


def _value(wanted: Any, given: Argument) -> Any:
    """What an argument of a schema is given.

    Raises:
        KeyError: It is of a type that cannot be read.
        ValueError: It cannot be given what was recorded.
    """
    kind = str(wanted.type)
    if kind.startswith("Optional["):
        return _of_kind(kind[len("Optional[") : -1], given) if given.type else None
    if kind == "str" and not given.type and wanted.has_default_value():  # texts are not recorded
        return wanted.default_value
    return _of_kind(kind, given)


def _of_kind(kind: str, given: Argument) -> Any:
    """What an argument of a type is given."""
    text = given.value.strip()
    is_tensor = kind == "Tensor" and given.is_tensor and given.type in DTYPES
    if is_tensor or (kind in ("List[Tensor]", "List[Optional[Tensor]]") and given.is_list and given.dims):
        return given
    if kind.startswith("List[") and given.type in (tensor_types.NUMBERS, tensor_types.GENERIC) and text.startswith("["):
        read = _READERS[kind[len("List[") : -1]]
        return [read(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if given.type == tensor_types.NUMBER:
        return _READERS[kind](given.value)
    raise ValueError(given.type)


def _bool(text: str) -> bool:
    return {"True": True, "False": False, "1": True, "0": False, "true": True, "false": False}[text]


def _number(text: str) -> int | float | bool:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


def _word(text: str) -> str:
    if not _WORDS.fullmatch(text):
        raise ValueError(text)
    return text


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "bool": _bool,
    "int": int,
    "float": float,
    "number": _number,
    "str": _word,
    "Device": lambda _: torch.device("cpu"),
}
