"""perfhooks for Lightning's Fabric: ``Fabric(callbacks=[ProfilerCallback()])``."""

import importlib.util

if not any(importlib.util.find_spec(name) for name in ("lightning", "lightning_fabric")):
    raise ModuleNotFoundError("perfhooks_fabric needs Lightning's Fabric: pip install 'perfhooks[fabric]'")

from perfhooks_fabric.callback import Batches, ProfilerCallback

__all__ = ["Batches", "ProfilerCallback"]
