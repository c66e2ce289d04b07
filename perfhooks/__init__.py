"""Profiling hooks for PyTorch training that people leave switched on."""

__version__ = "0.1.0"
