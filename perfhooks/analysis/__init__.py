"""What recordings show: comparisons, findings, ranks, flame graphs."""
