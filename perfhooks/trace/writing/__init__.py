"""Traces that are written again: lanes, labels and names as viewers show them."""
