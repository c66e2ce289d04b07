"""The tables of a window, one module a table."""
