"""Comparison of two trainings: verdict, differing facts and reasons."""
