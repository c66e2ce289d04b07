"""perfhooks for accelerate: ``with accelerator.profile(ProfileKwargs(...)) as prof: ...``."""

import importlib.util

if importlib.util.find_spec("accelerate") is None:
    raise ModuleNotFoundError("perfhooks_accelerate needs accelerate: pip install 'perfhooks[accelerate]'")

from perfhooks_accelerate.handler import ProfileKwargs, Profiler

__all__ = ["ProfileKwargs", "Profiler"]
