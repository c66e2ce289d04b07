"""The run folder: its files, the facts of its windows, and the clock of its steps."""
