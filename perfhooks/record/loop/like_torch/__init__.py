"""A profiler as code that was written for ``torch.profiler.profile`` knows it: what it asks, and what it may give."""
