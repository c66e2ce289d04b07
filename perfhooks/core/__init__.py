"""Shared knowledge of all rooms."""
