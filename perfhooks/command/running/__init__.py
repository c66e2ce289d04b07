"""The verbs for a job that is running."""
