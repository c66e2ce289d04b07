from __future__ import annotations

from typing import Final

MAX_UNPACKED_MB: Final = "PERFHOOKS_MAX_UNPACKED_MB"
"""In MB (10^6 bytes)."""
PEAKS: Final = "PERFHOOKS_PEAKS"
"""Path of the result of `perfhooks doctor --peaks`."""
