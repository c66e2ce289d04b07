"""Takes down a process of an engine, which imports nothing else for it."""

import os


def die_of(text, named):
    """Stand in for a trace whose reading takes a process down."""
    if text == named:
        os._exit(9)
    return text.encode()
