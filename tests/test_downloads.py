"""Downloads end at a limit of size or of slowness, and a killed one leaves no file."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time

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

    def answer(self, *, is_head):
        self.send_response(200)
        size = {"/huge.json": 10**15, "/slow.json": 10**6, "/short.json": 7}.get(self.path)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.path == "/short.json" and not is_head:
            self.wfile.write(b'{"a":1}')
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


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.is_over, served.has_sent = threading.Event(), threading.Event()
        threading.Thread(target=served.serve_forever, daemon=True).start()
        served.url = f"http://127.0.0.1:{served.server_address[1]}"
        yield served
        served.is_over.set()
        served.shutdown()


@pytest.mark.parametrize(
    ("name", "message"), [("endless", "more than 256,000,000 bytes"), ("huge", "the disk has room for")]
)
def test_report_refuses_a_body_without_end(server, tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = (sys.executable, "-m", "perfhooks", "report", f"{server.url}/{name}.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not [path for path in tmp_path.rglob(f"{name}.json") if path.is_file()]


def test_show_refuses_a_trace_without_end(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = (sys.executable, "-m", "perfhooks", "show", f"{server.url}/endless.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "more than 256,000,000 bytes" in done.stderr
    assert not list(tmp_path.iterdir())


def test_slow_download_ends(server, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(downloads, "SILENCE_S", 0.5)
    with pytest.raises(PerfhooksError, match="less than 1000 bytes per second"):
        remote.content(f"{server.url}/slow.json")
    with pytest.raises(PerfhooksError, match="less than 1000 bytes per second"):
        perfhooks.trace.read(f"{server.url}/slow.json")


def test_download_of_the_stated_size_is_whole(server):
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
