"""Environment variables that configure perfhooks."""

from __future__ import annotations

from typing import Final

MAX_UNPACKED_MB: Final = "PERFHOOKS_MAX_UNPACKED_MB"
"""Maximum size of a decompressed trace, in MB (10^6 bytes)."""
PEAKS: Final = "PERFHOOKS_PEAKS"
"""Path of the file with measured peaks of devices, written by `perfhooks doctor --peaks`."""
