"""The single path from the saved trace of a window to its files and the report."""
