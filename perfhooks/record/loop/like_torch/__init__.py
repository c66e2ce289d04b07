"""Compatibility with ``torch.profiler.profile``: its interface, and the options that it accepts."""
