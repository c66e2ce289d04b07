"""Run recorded operators again, to measure advice on the user's own shapes."""
