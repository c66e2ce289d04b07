"""The watcher thread: requests, step times and slow steps of a running training."""
