"""CUPTI is detached at the end of a recording, if that is safe."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from perfhooks import Profiler
from perfhooks.record.loop.ending import cupti


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", None)
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)


@pytest.mark.recorder
def test_recorder_sets_the_variable_that_detaches_cupti(monkeypatch, tmp_path):
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    monkeypatch.setattr(cupti, "may_detach", lambda: True)
    seen = []
    for name in ("start", "stop"):
        method = getattr(torch.profiler.profile, name)
        wrapped = lambda self, method=method: (seen.append(os.environ.get("TEARDOWN_CUPTI")), method(self))[1]  # noqa: E731
        monkeypatch.setattr(torch.profiler.profile, name, wrapped)
    with Profiler(schedule="wait=0 warmup=0 active=1 repeat=1", out=tmp_path, background=False) as prof:
        prof.step()
    assert seen == ["1", "1"]
    assert "TEARDOWN_CUPTI" not in os.environ


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("case", ["graph", "compiler", "CUDA 11", "no CUDA", "not used"])
def test_cupti_stays_attached_if_detaching_can_crash(monkeypatch, case):
    assert cupti.may_detach()
    if case == "graph":
        monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", SimpleNamespace())
    elif case == "compiler":
        monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", SimpleNamespace())
    elif case == "not used":
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    else:
        monkeypatch.setattr(torch.version, "cuda", "11.8" if case == "CUDA 11" else None)
    assert not cupti.may_detach()


@pytest.mark.usefixtures("gpu")
def test_choice_of_the_user_counts(monkeypatch):
    monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    with cupti.detached_at_end():
        assert os.environ["TEARDOWN_CUPTI"] == "0"
    assert os.environ["TEARDOWN_CUPTI"] == "0"
