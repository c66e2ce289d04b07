"""Files that a running training reads and writes."""
