"""Run the commands of the tutorials in their order, and write the real outputs into the pages.

A block of commands may be followed by a block with its output. All commands run in one folder with the script.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pictures import on_a_terminal

ROOT = Path(__file__).parents[1]
PAGES = ("bottleneck", "faster")
_LINES = r"(?:(?!```).*\n)*"
STEP = re.compile(rf"^```sh\n(?P<commands>{_LINES})```$(?P<shown>\n\n```text\n{_LINES}```$)?", re.MULTILINE)
"""A block of commands, and the block of their output if there is one."""


def main() -> None:
    """Renew the outputs of the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=PAGES, help="names of pages (default: %(default)s)")
    for name in parser.parse_args().pages:
        page = ROOT / "docs" / f"{name}.md"
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(renewed(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")


def renewed(text: str, folder: Path) -> str:
    """Return a page with the outputs of its commands."""
    shutil.copy(ROOT / "examples/tutorial/train.py", folder)

    def step(match: re.Match[str]) -> str:
        outputs = "".join(output_of(line, folder) for line in match["commands"].splitlines())
        shown = f"\n\n```text\n{outputs}```" if match["shown"] else ""
        return f"```sh\n{match['commands']}```{shown}"

    return STEP.sub(step, text)


def output_of(command: str, folder: Path) -> str:
    """Return the output of a command on a terminal, with the folder of a user instead of the temporary one."""
    program, *arguments = shlex.split(command)
    if program != "perfhooks":
        sys.exit(f"only commands of perfhooks are run: {command}")
    shown = None if arguments[0] == "run" else subprocess.DEVNULL  # elsewhere it only has a progress bar
    printed = on_a_terminal(arguments, folder, stderr=shown).replace(str(folder), "/home/me")
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in printed.strip().splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
