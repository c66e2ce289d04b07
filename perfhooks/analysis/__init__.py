"""Analyses of recordings: comparisons, findings, ranks and flame graphs."""
