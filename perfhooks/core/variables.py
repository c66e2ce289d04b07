from __future__ import annotations

from typing import Final

MAX_UNPACKED_MB: Final = "PERFHOOKS_MAX_UNPACKED_MB"
"""Variable with the maximum size of an unpacked trace, in MB (10^6 bytes)."""
PEAKS: Final = "PERFHOOKS_PEAKS"
"""Variable with the path of the file that `perfhooks doctor --peaks` writes."""
