"""Loaders of the training: the loader that feeds the steps, and samples of its workers."""
