import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError("perfhooks records with PyTorch 2.4 or later: pip install 'torch>=2.4'", name="torch")
