"""The one path from a saved capture to its files and the page: inline, in the worker, and afterwards."""
