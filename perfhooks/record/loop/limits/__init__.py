"""Limits of recordings: the budget, the count of Python calls, and the explaining window that needs both."""
