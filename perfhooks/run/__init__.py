"""The run folder: its files, the facts of its windows, the clock of its steps, and who writes to it."""
