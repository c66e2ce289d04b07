"""perfhooks for Lightning: ``Trainer(callbacks=[ProfilerCallback()])``."""

from perfhooks_lightning.callback import ProfilerCallback

__all__ = ["ProfilerCallback"]
