"""Loaders of the training: which of them feeds the steps, and samples of their workers."""
