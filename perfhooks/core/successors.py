from __future__ import annotations

import functools
from pathlib import Path

import msgspec


@functools.cache
def successors() -> dict[str, dict[str, str]]:
    """Map the options of other profilers to the options of perfhooks that replace them."""
    texts = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, dict[str, str]])
    return {owner: {name: " ".join(text.split()) for name, text in names.items()} for owner, names in texts.items()}


def successor(name: str) -> str | None:
    """Return which option of perfhooks replaces another profiler's option, as a sentence; None if unknown."""
    for profiler, options in successors().items():
        if name in options:
            return f"this is an option of {profiler}; use {options[name]}"
    return None
