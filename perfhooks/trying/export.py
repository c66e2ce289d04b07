"""Recorded calls as a file that other benchmarks can read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from perfhooks.trying import schemas
from perfhooks.trying.recorded import Argument, Signature

if TYPE_CHECKING:
    from perfhooks.trying.cut import Cut, Group

FORMAT: Final = 1
_SHORT: Final = {
    "float": "f32",
    "double": "f64",
    "c10::Half": "f16",
    "c10::BFloat16": "bf16",
    "long int": "i64",
    "int": "i32",
    "short": "i16",
    "signed char": "i8",
    "unsigned char": "u8",
    "bool": "b8",
    "c10::complex<float>": "c64",
    "c10::complex<double>": "c128",
}
"""Types as torch's operatorbench writes them."""


def data(cut: Cut) -> dict[str, Any]:
    """The calls of operators, what costs most first.

    Returns:
        ``format``, and ``operators``: of each its ``operator`` and ``overload``, ``calls`` and ``step_ms`` in a step,
        ``inputs`` (``type``, ``dims`` and ``strides`` of tensors, ``value`` of the rest), and ``operatorbench``, the
        line that TorchBench's operatorbench and BackendBench read.
    """
    found = [_call(group, group.signature) for group in cut.groups if isinstance(group.signature, Signature)]
    return {"format": FORMAT, "operators": found}


def _call(group: Group, signature: Signature) -> dict[str, Any]:
    operator, values = schemas.overload(signature)
    formal = schemas.formal(operator)
    positional = [_text(value) for each, value in zip(formal, values, strict=True) if not each.kwarg_only]
    keywords = [
        f"'{each.name}': {_text(value)}"
        for each, value in zip(formal, values, strict=True)
        if each.kwarg_only and value is not None
    ]
    line = f"(({', '.join(positional)}{',' if len(positional) == 1 else ''}), {{{', '.join(keywords)}}})"
    return {
        "operator": signature.name,
        "overload": str(operator).rpartition(".")[2],
        "calls": group.calls,
        "step_ms": group.step_ms,
        "inputs": [_input(each.name, value) for each, value in zip(formal, values, strict=True)],
        "operatorbench": f"cnt: {max(round(group.calls), 1)}, {line}",
    }


def _input(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Argument):
        return {"name": name, "value": value if isinstance(value, (int, float, str, list, type(None))) else str(value)}
    return {"name": name, "type": value.type, "dims": value.dims, "strides": value.strides}


def _text(value: Any) -> str:
    if not isinstance(value, Argument):
        return repr(value)
    if value.is_list:
        strides = value.strides or [None] * len(value.dims)
        return f"[{', '.join(_tensor(*each, 'f32') for each in zip(value.dims, strides, strict=True))}]"
    return _tensor(value.dims, value.strides, _SHORT.get(value.type, "f32"))


def _tensor(dims: Any, strides: Any, kind: str) -> str:
    dense = [math.prod(dims[place + 1 :]) for place in range(len(dims))]
    lying = f", stride={tuple(strides)}" if strides is not None and list(strides) != dense else ""
    return f"T({list(dims)}, {kind}{lying})"
