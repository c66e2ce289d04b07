"""The process that samples loader workers, and readers of their Python stacks."""
