"""A browser for tests and pictures: Chromium without a window, driven over two pipes by its own protocol."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--disable-extensions", "--disable-default-apps", "--no-default-browser-check", "--force-color-profile=srgb"),
)
# the browser reads from file descriptor 3 and writes to 4
START = """
import os, sys
reads, writes, *command = sys.argv[1:]
os.dup2(int(reads), 3)
os.dup2(int(writes), 4)
os.execvp(command[0], command)
"""


def find():
    """The browser's program, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One browser with one page; counts what it asks the network for and what it complains about."""

    def __init__(self, program=None):
        self._folder = tempfile.mkdtemp(prefix="browser-")
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        flags = (*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self._folder}", "about:blank")
        # two pipes that are neither 3 nor 4 themselves
        reads, writes = (_high(each) for each in (reads, writes))
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(reads), str(writes), program or find(), *flags],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._rest, self._number, self._session = b"", 0, None
        self.requests, self.complaints = [], []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self._session = None
            self._call("Browser.close", timeout=5)
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(
        self, path, *, width=1440, height=900, dark=False, fragment="", ready="document.body.dataset.ready === 'yes'"
    ):
        """Open a copy of a file, at the place that a fragment names, and wait until an expression holds."""
        self.look(width=width, height=height, dark=dark)
        # always the same one: a script that was compiled of an address need not be again, which is half of the time
        shown = Path(self._folder, f"opened{path.suffix}")
        shutil.copyfile(path, shown)
        # a new fragment alone would not load the file again
        self._call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.requests.clear()
        self.complaints.clear()
        self._call("Page.navigate", url=shown.as_uri() + fragment)
        self.wait(f"location.href !== 'about:blank' && document.readyState === 'complete' && ({ready})")

    def look(self, *, width=1440, height=900, dark=False, media=""):
        """Change the size of the window, the colours that the person wants, and the medium."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def run(self, script):
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait(self, script, timeout=60.0):
        """Wait until an expression holds in the page."""
        self.wait_for(lambda: self.run(f"Boolean({script})"), script, timeout)

    def wait_for(self, holds, what="it", timeout=60.0):
        """Wait until something holds here."""
        end = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"{what} does not hold after {timeout} s; {self.complaints}")
            time.sleep(0.05)

    def save_to(self, folder):
        """Let the page save files in a folder."""
        session, self._session = self._session, None
        self._call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._session = session

    def press(self, key):
        """Press a key, where the focus is."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, "ArrowRight": 39, "ArrowLeft": 37}
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def picture(self, path, *, whole=False, of=None, margin=0):
        """Save what is seen as PNG: the window, the whole page, or one element by its selector."""
        more = {}
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            more = {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        if of:
            box = f"document.querySelector({json.dumps(of)}).getBoundingClientRect()"
            clip = self.run(f"(r => ({{x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}}))({box})")
            clip = {
                name: value + (2 * margin if name in ("width", "height") else -margin) for name, value in clip.items()
            }
            more = {"captureBeyondViewport": True, "clip": {**clip, "scale": 1}}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png", **more)["data"]))

    def _call(self, method, timeout=120.0, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self, end):
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(end - time.monotonic(), 0))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, given = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(given["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(given["args"])[:500])
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(given["entry"]["text"])


def _high(descriptor):
    """The same pipe under a number that nobody else wants."""
    moved = os.dup(descriptor)
    held = []
    while moved <= 4:
        held.append(moved)
        moved = os.dup(descriptor)
    for each in (descriptor, *held):
        os.close(each)
    return moved
