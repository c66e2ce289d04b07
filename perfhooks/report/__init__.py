"""What a whole run becomes."""
