"""Make the pictures of README and site from one real run of the tutorials' training, with Chromium.

They are the report, a flame graph, and a terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, find  # noqa: E402 -- the tests' own browser

WIDTH, HEIGHT = 1440, 900
COLUMNS = 80
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
@keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: no-preference) {{
text {{ animation: appear 1ms backwards; }}
DELAYS
}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""
"""A terminal without web fonts. Lines appear in order, and all stay visible without animation."""


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the pictures go (default: %(default)s)")
    args = parser.parse_args()
    if find() is None:
        sys.exit("no Chromium here; Debian has it as chromium")
    args.docs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        cast(args.docs, Path(folder))
        page(browser, (Path(folder) / "perf/latest").resolve(), args.docs)
    for picture in sorted([*args.docs.glob("*.png"), *args.docs.glob("*.svg")]):
        print(f"{picture}  {picture.stat().st_size / 1024:.0f} KiB")


def page(browser: Browser, run: Path, docs: Path) -> None:
    """Draw the first screen of the report, and its flame graph."""
    browser.open(run / "report.html", width=WIDTH, height=HEIGHT)
    browser.wait("document.querySelector('.figure .main-svg')")
    browser.picture(docs / "page.png")
    browser.look(width=WIDTH, height=HEIGHT)
    if browser.run("Boolean(document.querySelector('#flame .flame'))"):
        browser.picture(docs / "flame.png", of="#flame", margin=24)


def cast(docs: Path, folder: Path) -> None:
    """Draw `perfhooks run` and `perfhooks show` of the training of the tutorials."""
    shutil.copy(ROOT / "examples/tutorial/train.py", folder)
    run = on_a_terminal(["run", "train.py"], folder, stderr=None)
    show = on_a_terminal(["show", "perf/latest", "-t", "steps", "-t", "findings"], folder, stderr=subprocess.DEVNULL)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    lines: list[float] = []
    clock = 0.0
    for command, seconds, printed in (
        ("perfhooks run train.py", 1.5, run.replace(str(folder), "/home/me")),
        ("perfhooks show perf/latest -t steps -t findings", 1.0, show),
    ):
        shown = [f"$ {command}", *printed.strip().splitlines(), ""]
        console.print(Text.from_ansi("\n".join(shown)), soft_wrap=True)
        lines += [clock, *(clock + seconds + 0.06 * row for row in range(len(shown) - 1))]
        clock = lines[-1] + 2.0
    delays = "\n".join(
        f'[clip-path="url(#cast-line-{row})"] {{ animation-delay: {delay:.2f}s; }}' for row, delay in enumerate(lines)
    )
    code = SVG.replace("DELAYS", delays.replace("{", "{{").replace("}", "}}"))
    svg = console.export_svg(title="perfhooks", unique_id="cast", code_format=code)
    (docs / "terminal.svg").write_text(svg, encoding="utf-8")


def on_a_terminal(arguments: list[str], folder: Path, stderr: int | None) -> str:
    """Return the output of a command of perfhooks on a terminal; `stderr` None includes its standard error."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    settings = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "perfhooks", *arguments]
    stderr = theirs if stderr is None else stderr
    with subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=stderr, env=settings):
        os.close(theirs)
        printed = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody is left to print
            while chunk := os.read(ours, 1 << 16):
                printed += chunk
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
