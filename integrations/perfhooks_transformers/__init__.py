"""perfhooks for transformers: ``Trainer(callbacks=[ProfilerCallback()])``."""

import importlib.util

if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
    raise ModuleNotFoundError(
        "perfhooks_transformers needs transformers and accelerate: pip install 'perfhooks[transformers]'"
    )

from perfhooks_transformers.callback import ProfilerCallback

__all__ = ["ProfilerCallback"]
