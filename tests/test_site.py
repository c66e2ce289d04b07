"""The site builds without a warning, and its pages are as wide as a phone."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import find

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

ROOT = Path(__file__).parents[1]
PHONE = 390
"""Width of a common phone, in CSS pixels."""
SCRIPT = """
setTimeout(() => {
  const widths = {};
  for (const frame of document.querySelectorAll("iframe")) {
    widths[frame.dataset.name] = frame.contentDocument.documentElement.scrollWidth;
  }
  document.getElementById("widths").textContent = JSON.stringify(widths);
}, 20000);
"""
"""Measures the frames after 20 virtual seconds, when their styles are loaded."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    settings = {"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, env=settings, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def test_pages_load_nothing_from_other_hosts(site):
    loaded = re.compile(
        r'<(?:script|img)[^>]* src="(https?:[^"]+)|<link[^>]* rel="stylesheet"[^>]* href="(https?:[^"]+)'
    )
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text(encoding="utf-8"))] == []


def test_pages_fit_the_width_of_a_phone(site, tmp_path):
    if find() is None:
        pytest.skip("no Chromium here")
    pages = {str(page.parent.relative_to(site)): page for page in site.rglob("index.html")}
    frames = (
        f'<iframe data-name="{name}" src="{page.as_uri()}" width="{PHONE}"></iframe>' for name, page in pages.items()
    )
    viewer = tmp_path / "viewer.html"
    viewer.write_text(f'{"".join(frames)}<pre id="widths"></pre><script>{SCRIPT}</script>', encoding="utf-8")
    flags = (
        "--headless --no-sandbox --disable-gpu --allow-file-access-from-files --virtual-time-budget=30000 --dump-dom"
    )
    command = [find(), *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", viewer.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    widths = json.loads(re.search(r'<pre id="widths">(.*?)</pre>', dumped)[1])
    assert widths.keys() == pages.keys()
    assert {name: width for name, width in widths.items() if width > PHONE} == {}
