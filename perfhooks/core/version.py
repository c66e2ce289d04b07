"""The version, which files say: below everything that writes one."""

__version__ = "0.1.0"
