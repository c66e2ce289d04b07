from __future__ import annotations

import re
from typing import Final

OURS: Final = re.compile(r"(?:^|/)perfhooks(?:_[a-z]+)?/(?:\w+/)*\w+\.py\(\d+\): ")
STAND_IN: Final = re.compile(
    r"(?:^|/)perfhooks(?:_[a-z]+/|/adapters/|/record/launch/(?:calls|loaders|frameworks)\.py|/record/loop/loader\.py)"
    r"|(?:^|/)perfhooks/record/loop/labelling\.py\(\d+\): (?:_labelled_call|labelled|noted)$"
)
"""Frames of perfhooks functions that wrap torch or a framework and call the user's program."""
PROGRAM: Final = re.compile(
    r"^nn\.Module: |^(?!.*(?:^|/)(?:contextlib|functools|threading)\.py\(|.*torch/(?:compiler|_dynamo|profiler)/"
    r"|.*torch/autograd/profiler\.py\().+\(\d+\): "
)
"""Functions of the program that a wrapper (`STAND_IN`) calls. Other callees are helpers of the wrapper."""
