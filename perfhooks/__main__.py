"""``python -m perfhooks``."""

from perfhooks.command.app import main

main()
