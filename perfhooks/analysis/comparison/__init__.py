"""Comparison of two trainings: verdict, differing settings, and causes of the difference."""
