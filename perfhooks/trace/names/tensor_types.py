"""Types of tensors as traces spell them: C++ names, which differ between compilers, and those of NCCL and HCCL."""

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
"""By torch's name: the bytes of one element, and how it is spelled, less ``c10::``."""

SIZES: Final = {name: size for name, (size, _) in _TYPES.items()}
"""The bytes of one element, by torch's name."""
SPELLINGS: Final = {
    f"{namespace}{spelling}": name
    for name, (_, spellings) in _TYPES.items()
    for spelling in spellings
    for namespace in ("", "c10::")
}
"""Every spelling and what torch calls the type."""
_NAMES: Final = {spelling.lower(): name for spelling, name in SPELLINGS.items()}

TENSORS: Final = "TensorList"
GENERIC: Final = "GenericList"
"""A list of anything: of tensors where it has shapes, else of numbers."""
LISTS: Final = (TENSORS, GENERIC)
NUMBER: Final = "Scalar"
NUMBERS: Final = "ScalarList"


def short(spelled: str) -> str:
    """A type as users know it: ``BFloat16`` instead of ``c10::BFloat16``."""
    return spelled.removeprefix("c10::")


def name_of(spelled: object) -> str | None:
    """Return torch's name of a type, in whatever letters it is spelled; None if it is no type of a tensor."""
    return _NAMES.get(spelled.lower()) if isinstance(spelled, str) else None


def size(spelled: str | None) -> int | None:
    """Return the bytes of one element of a type; None if it is no type of a tensor."""
    name = name_of(spelled)
    return None if name is None else SIZES[name]
