"""Conversion of the bytes of a trace to columns: compression, formats, and dialects of recorders."""
