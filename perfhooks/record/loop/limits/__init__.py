"""What a recording may cost: its budget, the Python calls that it would hold, and the window that needs both."""
