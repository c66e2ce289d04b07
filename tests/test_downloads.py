"""Downloads end at a limit of size or of slowness, and a killed one leaves no file."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import perfhooks.trace
from perfhooks.core.errors import PerfhooksError
from perfhooks.run import remote
from perfhooks.trace.reading import downloads

pytestmark = pytest.mark.process


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(is_head=True)

    def do_GET(self):
        self.answer(is_head=False)

    def answer(self, *, is_head):  # noqa: C901 -- one case for each path
        if self.path.startswith("/loop"):
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd" if "file" in self.path else self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path == "/headers.json" or (self.path == "/extension.json" and not is_head):
            begin = b"HTTP/1.1 200 OK\r\n"
            begin += b"X: " if self.path == "/headers.json" else b"Transfer-Encoding: chunked\r\n\r\n10;"
            self.send_slowly(begin)
            return
        if self.path == "/packed.json":
            body = gzip.compress(b'{"a":1}' + b" " * 10_000)
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if is_head else body)
            return
        self.send_response(200)
        if self.path == "/listing/":
            self.send_header("Content-Type", "text/html")
        size = {"/steady.json": 10_000, "/huge.json": 10**15, "/slow.json": 10**6, "/short.json": 7}.get(self.path)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.path == "/short.json" and not is_head:
            self.wfile.write(b'{"a":1}')
            return
        if self.path == "/steady.json" and not is_head:
            for _ in range(100):
                self.wfile.write(b" " * 100)
                self.wfile.flush()
                self.server.may_send.acquire(timeout=60)
            return
        try:
            while not is_head and not self.server.is_over.is_set():
                self.wfile.write(b" " * (1 if size else 1 << 16))
                self.server.has_sent.set()
                if size:
                    self.wfile.flush()
                    time.sleep(0.02)
        except OSError:
            pass

    def send_slowly(self, begin):
        """Send bytes that belong to no header and no body."""
        try:
            self.wfile.write(begin)
            while not self.server.is_over.is_set():
                self.wfile.write(b"a")
                self.wfile.flush()
                time.sleep(0.02)
        except OSError:
            pass


@pytest.fixture
def server():
    downloads._client_options.cache_clear()
    downloads._client_options()  # with the usual limits of the client, whichever limits a test sets for ours
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.is_over, served.has_sent = threading.Event(), threading.Event()
        served.may_send = threading.Semaphore(0)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        served.url = f"http://127.0.0.1:{served.server_address[1]}"
        yield served
        served.is_over.set()
        served.shutdown()


@pytest.mark.parametrize(
    ("name", "message"), [("endless", "more than 256,000,000 bytes"), ("huge", "the disk has room for")]
)
def test_report_rejects_an_endless_download(server, tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = (sys.executable, "-m", "perfhooks", "report", f"{server.url}/{name}.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not [path for path in tmp_path.rglob(f"{name}.json") if path.is_file()]


def test_show_rejects_an_endless_trace(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = (sys.executable, "-m", "perfhooks", "show", f"{server.url}/endless.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "more than 256,000,000 bytes" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def patient(server, monkeypatch):
    """Half a second of silence is a minute, as a busy machine may pause the server; the speed is still measured."""
    limits = []

    def wait_for(result, limit):
        limits.append(limit)
        return asyncio.wait_for(result, 120 * limit)

    monkeypatch.setattr(downloads, "SILENCE_S", 0.5)
    monkeypatch.setattr(downloads, "asyncio", SimpleNamespace(wait_for=wait_for, TimeoutError=asyncio.TimeoutError))
    return limits


@pytest.mark.usefixtures("patient")
def test_slow_download_ends(server, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(PerfhooksError, match="less than 1000 bytes per second"):
        remote.content(f"{server.url}/slow.json")
    with pytest.raises(PerfhooksError, match="less than 1000 bytes per second"):
        perfhooks.trace.read(f"{server.url}/slow.json")


@pytest.mark.parametrize("name", ["headers", "extension"])
def test_bytes_that_are_no_content_end_a_download(server, monkeypatch, name):
    monkeypatch.setattr(downloads, "SILENCE_S", 0.5)
    with pytest.raises(PerfhooksError, match=r"sent no data for 0\.5 s"):
        remote.content(f"{server.url}/{name}.json")


def test_steady_download_may_take_longer_than_the_limit(server, monkeypatch, patient):
    """Each of a hundred parts comes 0.02 s after the one before, by the clock that measures the speed."""
    now, add = [0.0], downloads.DownloadLimits.relative_update

    def take_part(limits, more=1):
        now[0] += 0.02
        add(limits, more)
        server.may_send.release()

    monkeypatch.setattr(downloads, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(downloads.DownloadLimits, "relative_update", take_part)
    assert remote.content(f"{server.url}/steady.json") == b" " * 10_000
    assert now[0] > 3 * downloads.SILENCE_S
    assert patient == [downloads.SILENCE_S] * len(patient)
    assert len(patient) > 100, "each part may take as long as the limit"


def test_endless_listing_is_rejected(server, monkeypatch):
    monkeypatch.setattr(downloads, "FLOOR", 1_000_000)
    with pytest.raises(PerfhooksError, match="more than 1,000,000 bytes"):
        remote.names(f"{server.url}/listing/")


@pytest.mark.parametrize(("name", "reason"), [("loop", "TooManyRedirects"), ("loop-to-file", "file:///etc/passwd")])
def test_redirect_that_leads_nowhere_is_named(server, name, reason):
    with pytest.raises(PerfhooksError, match=reason):
        remote.content(f"{server.url}/{name}.json")


def test_compressed_download_is_complete(server):
    assert remote.content(f"{server.url}/packed.json").startswith(b'{"a":1} ')


def test_copy_of_a_file_that_is_no_trace_is_deleted(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = (sys.executable, "-m", "perfhooks", "report", f"{server.url}/short.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert (done.returncode, "no list of traceEvents" in done.stderr) == (2, True)
    assert not [path for path in tmp_path.rglob("short.json") if path.is_file()]


def test_download_of_the_stated_size_is_complete(server):
    assert remote.content(f"{server.url}/short.json") == b'{"a":1}'


@pytest.mark.skipif(sys.platform != "linux", reason="needs files without a name")
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_killed_download_leaves_no_file(server, tmp_path, monkeypatch, end):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = (sys.executable, "-m", "perfhooks", "report", f"{server.url}/slow.json")
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert server.has_sent.wait(60)
    getattr(process, end)()
    process.wait(60)
    assert not [path for path in tmp_path.rglob("slow.json") if path.is_file()]
