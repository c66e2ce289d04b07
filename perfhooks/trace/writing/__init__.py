"""Repair of saved traces for viewers: lanes, labels and names."""
