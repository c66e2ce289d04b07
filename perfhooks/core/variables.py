"""Variables of the environment by which a person tells perfhooks something."""

from __future__ import annotations

from typing import Final

MAX_UNPACKED_MB: Final = "PERFHOOKS_MAX_UNPACKED_MB"
"""How many megabytes (10^6 bytes) a packed trace may unpack to."""
PEAKS: Final = "PERFHOOKS_PEAKS"
"""The file in which what devices can do at most is kept, as `perfhooks doctor --peaks` measured it."""
