"""Spellings of tensor types: C++ names (different for each compiler), and names of NCCL and HCCL."""

from __future__ import annotations

from typing import Final

_TYPES: Final = {
    "bool": (1, ("bool",)),
    "int8": (1, ("signed char", "char", "int8")),
    "uint8": (1, ("unsigned char", "byte", "uint8")),
    **{name.lower(): (1, (name,)) for name in ("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz")},
    "float8_e8m0fnu": (1, ("Float8_e8m0fnu",)),
    "float16": (2, ("Half", "FP16")),
    "bfloat16": (2, ("BFloat16", "BFP16", "BF16")),
    "int16": (2, ("short", "short int", "int16")),
    "uint16": (2, ("unsigned short", "uint16")),
    "float32": (4, ("float", "FP32")),
    "int32": (4, ("int", "int32")),
    "uint32": (4, ("unsigned int", "uint32")),
    "float64": (8, ("double", "FP64")),
    "int64": (8, ("long", "long int", "long long", "int64")),
    "uint64": (8, ("uint64",)),
    "complex64": (8, ("complex<float>", "ComplexFloat")),
    "complex128": (16, ("complex<double>", "ComplexDouble")),
}
"""Torch's names of types, each with the bytes of an element and its spellings without ``c10::``."""

SIZES: Final = {name: size for name, (size, _) in _TYPES.items()}
SPELLINGS: Final = {
    f"{namespace}{spelling}": name
    for name, (_, spellings) in _TYPES.items()
    for spelling in spellings
    for namespace in ("", "c10::")
}
_NAMES: Final = {spelling.lower(): name for spelling, name in SPELLINGS.items()}

TENSORS: Final = "TensorList"
GENERIC: Final = "GenericList"
"""Type of a list: of tensors with record_shapes, otherwise of numbers."""
LISTS: Final = (TENSORS, GENERIC)
NUMBER: Final = "Scalar"
NUMBERS: Final = "ScalarList"


def short(spelling: str) -> str:
    """Return the type without its namespace: ``BFloat16`` for ``c10::BFloat16``."""
    return spelling.removeprefix("c10::")


def name_of(spelling: object) -> str | None:
    """Return torch's name of a tensor type in upper or lower case."""
    return _NAMES.get(spelling.lower()) if isinstance(spelling, str) else None


def size(spelling: str | None) -> int | None:
    name = name_of(spelling)
    return None if name is None else SIZES[name]
