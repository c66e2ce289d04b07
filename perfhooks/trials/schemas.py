"""Selection of the overload of a recorded call: the first overload whose schema accepts all arguments."""

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
DTYPES: Final[dict[str, torch.dtype]] = {
    spelled: getattr(torch, name) for spelled, name in tensor_types.SPELLINGS.items() if name not in _UNUSUAL
}

_WORDS: Final = re.compile(r"[a-z_]{1,24}")
_MODES: Final = {
    *("approximate", "driver", "indexing", "interpolation", "mode", "norm", "ord", "p", "pad_mode", "padding"),
    *("padding_side", "reduce", "rounding_mode", "side", "UPLO"),
}
"""Names of string arguments that select a mode, and are never paths."""
_TENSORS: Final = ("Tensor", "List[Tensor]")
_REFUSED: Final = (
    (communication.OPERATORS, "a collective needs the other ranks"),
    (operators.AUTOGRAD, "autograd's own work between operators"),
    (operators.FOREIGN, "an operator of {namespace}, which is not torch's own"),
)


class UnmatchedError(Exception):
    """A call that cannot run again. The message completes a sentence that starts with the name of the call."""


def overload(signature: Signature) -> tuple[Any, dict[str, Any]]:
    """Return an operator of ``torch.ops``, and for each argument an `Argument` (for tensors) or a value."""
    name, arguments = signature.name, signature.arguments
    for beginning, reason in _REFUSED:
        if refused := re.match(beginning, name):
            raise UnmatchedError(reason.format(**refused.groupdict()))
    if arguments is None:
        raise UnmatchedError("its arguments were not recorded")
    if not (candidates := overloads(name)):
        raise UnmatchedError("this torch has no such operator")
    if not (pure := [candidate for candidate in candidates if is_pure(*candidate)]):
        raise UnmatchedError("its schema does not guarantee that it only computes tensors")
    for operator, parameters in pure:
        if len(parameters) == len(arguments):
            with contextlib.suppress(KeyError, ValueError):
                values = map(_value, parameters, arguments)
                return operator, dict(zip([argument.name for argument in parameters], values, strict=True))
    if any(recorded.type == tensor_types.TENSORS and not recorded.dims for recorded in arguments):
        raise UnmatchedError("torch does not record the shapes of lists of more than 30 tensors")
    raise UnmatchedError("this torch has no overload for the recorded arguments")


@functools.cache
def overloads(name: str) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    packet = getattr(torch.ops.aten, name.removeprefix(operators.NAMESPACE), None)
    if packet is None or not hasattr(packet, "overloads"):
        return ()
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return tuple((operator, schema_arguments(operator)) for operator in overloads)


def is_pure(operator: Any, parameters: tuple[Any, ...]) -> bool:
    """Return whether a call from an untrusted trace is safe, because the operator only computes tensors.

    The schema lists every tensor that the operator writes to. A tag marks operators that change the metadata of inputs,
    for example ``resize_``. perfhooks passes no streams and generators to operators.
    """
    has_tensor_result = any(str(result.type) in _TENSORS for result in _schema(operator).returns)
    string_names = {argument.name for argument in parameters if "str" in str(argument.type)}
    is_computed = has_tensor_result or any(map(is_written, parameters))
    return is_computed and string_names <= _MODES and torch.Tag.inplace_view not in operator.tags


def schema_arguments(operator: Any) -> tuple[Any, ...]:
    return tuple(_schema(operator).arguments)


def _schema(operator: Any) -> Any:
    return operator._schema  # noqa: SLF001 -- there is no public name for it


def is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _value(parameter: Any, argument: Argument) -> Any:
    kind = str(parameter.type)
    if kind.startswith("Optional["):
        return _convert(kind[len("Optional[") : -1], argument) if argument.type else None
    if kind == "str" and not argument.type and parameter.has_default_value():
        return parameter.default_value
    return _convert(kind, argument)


def _convert(kind: str, argument: Argument) -> Any:
    text = argument.value.strip()
    is_tensor = kind == "Tensor" and argument.is_tensor and argument.type in DTYPES
    if is_tensor or (kind in ("List[Tensor]", "List[Optional[Tensor]]") and argument.is_list and argument.dims):
        return argument
    if (
        kind.startswith("List[")
        and argument.type in (tensor_types.NUMBERS, tensor_types.GENERIC)
        and text.startswith("[")
    ):
        read_item = _READERS[kind[len("List[") : -1]]
        return [read_item(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if argument.type == tensor_types.NUMBER:
        return _READERS[kind](argument.value)
    raise ValueError(argument.type)


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
