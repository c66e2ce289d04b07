"""The single path from a saved capture to its files and the report."""
