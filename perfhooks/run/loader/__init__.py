"""Facts about the workers of a loader."""
