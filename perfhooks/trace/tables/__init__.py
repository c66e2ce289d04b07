"""Tables of a window, one module per table."""
