"""What runs in the training process: the profiler, its windows, and what is handed to the worker."""
