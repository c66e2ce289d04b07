"""perfhooks for mmengine: ``dict(type="perfhooks_mmengine.ProfilerHook", ...)`` in any config."""

import importlib.util

if importlib.util.find_spec("mmengine") is None:
    raise ModuleNotFoundError("perfhooks_mmengine needs mmengine: pip install 'perfhooks[mmengine]'")

from perfhooks_mmengine.hook import ProfilerHook, replace_builtin

__all__ = ["ProfilerHook", "replace_builtin"]
