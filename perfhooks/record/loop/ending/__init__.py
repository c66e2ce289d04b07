"""Ends of recordings inside a step, at signals, at forks and at the end of the process."""
