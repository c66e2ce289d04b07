"""Limits of recordings: the budget, the count of Python calls, and the second window with stacks and shapes."""
