"""Recorded operators run again, so that advice is measured on the user's own shapes; needs torch."""
