"""perfhooks for mmengine: ``dict(type="perfhooks_mmengine.ProfilerHook", ...)`` in any config."""

from perfhooks_mmengine.builtin import replace_builtin
from perfhooks_mmengine.hook import ProfilerHook

__all__ = ["ProfilerHook", "replace_builtin"]
