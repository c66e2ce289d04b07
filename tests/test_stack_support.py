"""Versions of Python and torch with which a window with stacks can crash the process."""

from __future__ import annotations

import gc
import json
import logging
import sys
import threading

import pytest
import torch

import perfhooks
from perfhooks.cli import doctor
from perfhooks.record.loop import stack_support
from perfhooks.record.loop.limits import explaining
from perfhooks.record.watch.sampling import outwards

X = torch.ones(8, 8)
OLD = ((3, 13, 1), (2, 11))


@pytest.fixture
def set_versions(monkeypatch):
    return lambda python, recorder: monkeypatch.setattr(stack_support, "versions", lambda: (python, recorder))


@pytest.mark.parametrize(
    ("python", "recorder", "is_dangerous"),
    [
        (*OLD, True),
        ((3, 14, 0), (2, 9), True),
        ((3, 13, 0), (2, 12), False),
        ((3, 14, 0), (3, 0), False),
        ((3, 12, 9), (2, 11), False),
        ((3, 10, 0), (2, 4), False),
    ],
)
def test_danger_needs_new_python_and_old_torch(set_versions, python, recorder, is_dangerous):
    set_versions(python, recorder)
    danger = stack_support.danger()
    assert (danger is not None) is is_dangerous
    assert danger is None or "#178551" in danger


def test_versions_are_those_of_this_process():
    python, recorder = stack_support.versions()
    assert python >= (3, 10)
    assert torch.__version__.startswith(".".join(map(str, recorder)))


def windows(folder):
    facts = [json.loads(path.read_text()) for path in folder.glob("run/*/rank0.capture.json")]
    return [each["options"].get("with_stack", False) for each in sorted(facts, key=lambda each: each["first"])]


@pytest.mark.recorder
@pytest.mark.usefixtures("even_pace")
@pytest.mark.parametrize("is_old", [True, False])
def test_second_window_is_skipped_with_one_line(set_versions, monkeypatch, tmp_path, caplog, is_old):
    caplog.set_level(logging.INFO, "perfhooks")
    set_versions(*(OLD if is_old else ((3, 13, 1), (2, 12))))
    monkeypatch.setattr(explaining, "EXPLAINING_S", 1e3)
    model = torch.nn.Linear(8, 8)
    with perfhooks.Profiler(schedule="when settled", out=tmp_path, run="run", background=False) as prof:
        for _ in range(30):
            model(X)
            prof.step()
    assert windows(tmp_path) == ([False] if is_old else [False, True])
    assert sum("no second window with stacks" in text for text in caplog.messages) == is_old


def test_with_stack_warns_at_construction(set_versions, caplog):
    set_versions(*OLD)
    perfhooks.Profiler(with_stack=True)
    perfhooks.Profiler(record_shapes=True)
    assert [text.startswith("with_stack=True: with torch") for text in caplog.messages] == [True]


@pytest.mark.recorder
def test_requested_stacks_warn(set_versions, tmp_path, caplog):
    set_versions(*OLD)
    with perfhooks.Profiler(schedule="on request", out=tmp_path, run="run", background=False) as prof:
        prof.request(2, with_stack=True)
        for _ in range(6):
            X @ X
            prof.step()
    assert sum("with_stack was requested" in text for text in caplog.messages) == 1
    assert windows(tmp_path) == [True]


@pytest.mark.recorder
@pytest.mark.parametrize(
    ("versions", "state", "words"),
    [
        (OLD, "note", "can crash the process"),
        (((3, 12, 3), (2, 4)), "note", "lose calls"),
        (((3, 11, 7), (2, 14)), "ok", "works"),
    ],
)
def test_doctor_reports_stacks(set_versions, tmp_path, versions, state, words):
    set_versions(*versions)
    found = {each.subject: each for each in doctor.examine(tmp_path)}
    assert (found["stacks"].state, words in found["stacks"].text) == (state, True)
    assert found["recorder"].state == "ok"


@pytest.mark.recorder
@pytest.mark.skipif(sys.version_info < (3, 11), reason="older frames need no allocation")
def test_no_garbage_is_collected_while_stacks_start():
    """Torch keeps frames of all threads then. The callbacks of a collection let other threads end them."""
    over, is_deep, starts = threading.Event(), threading.Event(), []

    def wait(depth):
        if depth:
            wait(depth - 1)
        else:
            is_deep.set()
            over.wait()

    def note(_phase, _info):
        starts.append(any(frame.f_code.co_name == "_start_trace" for frame in outwards(sys._getframe(1))))

    thread, threshold = threading.Thread(target=wait, args=(300,)), gc.get_threshold()
    thread.start()
    is_deep.wait()
    prof = perfhooks.Profiler(with_stack=True)
    gc.callbacks.append(note)
    gc.set_threshold(50)
    try:
        with prof:
            X.cos()
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*threshold)
        over.set()
        thread.join()
    assert not any(starts)
    assert gc.isenabled()
