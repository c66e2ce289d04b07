"""Reports and files that are made of recordings."""
