"""Nesting of slices, intervals, parts of steps, and device work with its launches."""
