"""From the bytes of a trace to columns: formats, dialects, packing."""
