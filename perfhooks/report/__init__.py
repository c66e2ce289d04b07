"""Reports and other files of recordings."""
