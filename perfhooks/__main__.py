"""``python -m perfhooks``."""

from perfhooks.cli import main

main()
