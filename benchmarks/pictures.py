"""Make the pictures of the README from a real run: the page, light and dark, a flame graph, and the terminal.

It trains the demo, or takes a run folder that is there, and needs Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import os
import pty
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
COLUMNS = 118
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #14161a; color: #e7e9ec; display: inline-block; }}
pre {{ margin: 0; padding: 22px 26px; font: 14px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }}
</style><pre>{code}</pre>"""


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="a run folder; default: the demo's, trained now")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the pictures go (default: %(default)s)")
    args = parser.parse_args()
    if find() is None:
        sys.exit("no Chromium here; Debian has it as chromium")
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        run = args.run or demo(Path(folder))
        args.docs.mkdir(exist_ok=True)
        page(browser, run, args.docs)
        terminal(browser, run, args.docs, Path(folder))
    for picture in sorted(args.docs.glob("*.png")):
        print(f"{picture}  {picture.stat().st_size / 1024:.0f} KiB")


def demo(out: Path) -> Path:
    """Train the demo, in a process of its own."""
    (out / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "examples/lightning_resnet18.py", "--steps", "26", "--out", "perf"]
    subprocess.run(command, check=True, cwd=out)
    return (out / "perf/latest").resolve()


def page(browser: Browser, run: Path, docs: Path) -> None:
    """The first screen of the page in both lights, and its flame graph."""
    for name, dark in (("page", False), ("page-dark", True)):
        browser.open(run / "report.html", width=WIDTH, height=HEIGHT, dark=dark)
        browser.wait("document.querySelector('.figure .main-svg')")
        browser.picture(docs / f"{name}.png")
    browser.look(width=WIDTH, height=HEIGHT)
    if browser.run("Boolean(document.querySelector('#flame .flame'))"):
        browser.picture(docs / "flame.png", of="#flame", margin=24)


def terminal(browser: Browser, run: Path, docs: Path, scratch: Path) -> None:
    """What `perfhooks show` prints about the last window."""
    trace = max(run.glob("*/rank0.pt.trace.json.gz"))
    printed = on_a_terminal([sys.executable, "-m", "perfhooks", "show", str(trace)])
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    shown = f"$ perfhooks show {trace.parent.name}/{trace.name}\n\n{printed.rstrip()}"
    console.print(Text.from_ansi(shown), soft_wrap=True)
    code = console.export_html(inline_styles=True, code_format="{code}")
    (scratch / "terminal.html").write_text(TERMINAL.format(code=code), encoding="utf-8")
    browser.open(scratch / "terminal.html", width=WIDTH, height=HEIGHT, ready="document.querySelector('pre')")
    browser.picture(docs / "terminal.png", of="body")


def on_a_terminal(command: list[str]) -> str:
    """What a command prints to somebody who looks at it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    settings = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=settings):
        os.close(theirs)
        printed = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody is left to print
            while chunk := os.read(ours, 1 << 16):
                printed += chunk
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
