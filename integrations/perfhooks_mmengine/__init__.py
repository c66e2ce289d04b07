"""perfhooks for mmengine: ``dict(type="perfhooks_mmengine.ProfilerHook", ...)`` in any config."""

from perfhooks_mmengine.hook import ProfilerHook

__all__ = ["ProfilerHook"]
