"""The part that runs in the training: the profiler, its windows, and the transfer to the worker."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError("perfhooks records with PyTorch 2.4 or later: pip install 'torch>=2.4'", name="torch")
