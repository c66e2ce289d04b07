"""What a terminal shows while something takes its time."""

import io
import itertools
from types import SimpleNamespace

import pytest

from perfhooks.core import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def lines(self):
        """What it was told, line by line; an empty one wipes the last."""
        return [line.removesuffix("\x1b[K") for line in self.getvalue().split("\r")[1:]]


def terminal(monkeypatch):
    """Somebody looks; to be called in the test itself, as pytest puts its own in place before each part of one."""
    made = Terminal()
    monkeypatch.setattr("sys.stderr", made)
    return made


def test_line_is_removed_at_the_end_and_after_an_error(monkeypatch):
    shown = terminal(monkeypatch)

    def interrupted():
        with progress.show_count("rank") as show:
            show(2, 7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert shown.lines == ["rank 3 of 7", ""]


def test_silent_progress_removes_nothing(monkeypatch):
    shown = terminal(monkeypatch)
    with progress.show_wait() as show:
        show(0.9)
    assert shown.lines == []


def test_a_wait_is_shown_after_a_second(monkeypatch):
    shown = terminal(monkeypatch)
    with progress.show_wait() as show:
        show(1.0)
    assert shown.lines[0].rstrip() == "perfhooks: writing the report, 1 s so far"


def test_remaining_time_is_estimated_from_finished_items(monkeypatch):
    """Two of six took 20 seconds, so four more take 40. Before the first is done, nobody knows."""
    shown = terminal(monkeypatch)
    seconds = itertools.count(100.0, 20.0)
    # the clock of this module only: other threads ask that of the process
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with progress.show_remaining("trying") as show:
        show(1, 6, "mm")
        show(3, 6, "x" * 90)
    assert shown.lines == ["trying 1 of 6: mm", f"trying 3 of 6, 40 s left: {'x' * 60}", ""]
