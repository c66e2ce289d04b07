"""Files that a running training writes and reads."""
