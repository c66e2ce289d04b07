"""Loaders as a profiler meets them: as steps, and with workers to sample."""
