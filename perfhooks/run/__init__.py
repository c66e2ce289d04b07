"""The run folder: its files, facts of its windows, and times of its steps."""
