import sys

# Python puts the working directory first, where a file may have the name of a module that we import
if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]

from perfhooks.cli.app import main

main()
