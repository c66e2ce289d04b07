"""Which overload of an operator a recorded call was: the one whose schema accepts all of its arguments."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trying.recorded import Argument, Signature

DTYPES: Final = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "long": torch.int64,
    "long long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
    "short int": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
}
"""Types of tensors as the recorder writes them: names of C++, which differ between compilers."""

_WORDS: Final = re.compile(r"[a-z_]{1,24}")
"""Texts that an operator may be given: names of modes, and no paths."""
_FORBIDDEN: Final = frozenset({"from_file", "save", "load", "set_", "resize_", "record_stream", "pin_memory"})
"""Operators that touch files or the memory of others: a trace is data, and may come from anybody."""
_COLLECTIVES: Final = ("c10d::", "c10d_functional::", "_c10d_functional::", "nccl:", "gloo:", "record_param_comms")
_BOOLS: Final = {"True": True, "False": False, "1": True, "0": False, "true": True, "false": False}
_WRONG: Final = object()


class UnmatchedError(Exception):
    """A call that cannot be run again: says why, in words that stand behind a name."""


def overload(signature: Signature) -> tuple[Any, list[Any]]:
    """The overload and its arguments: what is no tensor as a value, tensors as they were recorded.

    Args:
        signature: Of a call.

    Returns:
        An operator of ``torch.ops``, and for each argument of its schema an `Argument` or a value.

    Raises:
        UnmatchedError: There is none.
    """
    name, arguments = signature.name, signature.arguments
    _refuse(name)
    if arguments is None:
        raise UnmatchedError("its arguments were not recorded")
    candidates = _overloads(name)
    if not candidates:
        raise UnmatchedError("this torch has no such operator")
    for each, wanted in candidates:
        if len(wanted) != len(arguments):
            continue
        values = [_given(*pair) for pair in zip(wanted, arguments, strict=True)]
        if not any(value is _WRONG for value in values):
            return each, values
    if any(each.type == "TensorList" and not each.dims for each in arguments):
        raise UnmatchedError("the shapes of a list of more than 30 tensors are not recorded")
    raise UnmatchedError("no overload of this torch takes what was recorded of its arguments")


def _refuse(name: str) -> None:
    if name.startswith(_COLLECTIVES):
        raise UnmatchedError("a collective needs the other ranks")
    if name.startswith(("autograd::", "torch::autograd::")) or "::" not in name:
        raise UnmatchedError("autograd's own work between operators")
    namespace, _, operator = name.partition("::")
    if namespace != "aten":
        raise UnmatchedError(f"an operator of {namespace}, which is not torch's own")
    if operator in _FORBIDDEN:
        raise UnmatchedError("it touches files or memory that is not its own")


@functools.cache
def _overloads(name: str) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """The overloads of an operator, each with the arguments of its schema."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None or not hasattr(packet, "overloads"):
        return ()
    found = [getattr(packet, each) for each in packet.overloads()]
    return tuple((each, formal(each)) for each in found)


def formal(operator: Any) -> tuple[Any, ...]:
    """The arguments of an overload's schema."""
    return tuple(operator._schema.arguments)  # noqa: SLF001 -- there is no public name for it


def is_written(argument: Any) -> bool:
    """Whether an operator writes into an argument of its schema."""
    return argument.alias_info is not None and argument.alias_info.is_write


def _given(wanted: Any, argument: Argument) -> Any:
    """What an argument of a schema is given. Texts are not recorded: then it is the schema's own value."""
    kind = str(wanted.type)
    if kind == "str" and not argument.type and wanted.has_default_value():
        return wanted.default_value
    return _value(kind, argument)


def _value(kind: str, given: Argument) -> Any:
    """What an argument of a type is given; `_WRONG` where it cannot be."""
    if kind.startswith("Optional["):
        return None if not given.type else _value(kind[len("Optional[") : -1], given)
    if kind == "Tensor":
        return given if given.is_tensor and given.type in DTYPES else _WRONG
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return given if given.is_list and given.dims else _WRONG
    if kind.startswith("List["):
        return _values(kind[len("List[") : -1], given)
    return _plain(kind, given.value) if given.type == "Scalar" else _WRONG


def _values(kind: str, given: Argument) -> Any:
    text = given.value.strip()
    if given.type not in ("ScalarList", "GenericList") or not text.startswith("["):
        return _WRONG
    parts = [part.strip() for part in text[1:-1].split(",") if part.strip()]
    found = [_plain(kind, part) for part in parts]
    return _WRONG if any(value is _WRONG for value in found) else found


def _plain(kind: str, text: str) -> Any:
    read = _READERS.get(kind)
    try:
        return _WRONG if read is None else read(text)
    except ValueError:
        return _WRONG


def _number(text: str) -> int | float | bool:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


def _word(text: str) -> Any:
    return text if _WORDS.fullmatch(text) else _WRONG


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "bool": lambda text: _BOOLS.get(text, _WRONG),
    "int": int,
    "float": float,
    "number": _number,
    "str": _word,
    "Device": lambda _: torch.device("cpu"),
}
