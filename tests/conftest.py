"""What all tests share: no profiler left running, reproducible property tests, real traces where there are some."""

import os
import sys
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=200)
# for a longer search with a seed of its own: HYPOTHESIS_PROFILE=search make test
hypothesis.settings.register_profile("search", deadline=None, database=None, max_examples=20_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ROOT = Path(__file__).parents[1]


def _torch_profiler_running() -> bool:
    torch = sys.modules.get("torch")
    # a module that is only half imported has no profiler yet
    autograd = getattr(getattr(torch, "_C", None), "_autograd", None)
    return autograd is not None and bool(autograd._profiler_enabled())


@pytest.fixture(autouse=True)
def no_profiler_left_running():
    """No test may leave a profiler running: it would silently change what the next one records."""
    assert not _torch_profiler_running(), "a torch profiler was running before this test"
    yield
    assert not _torch_profiler_running(), "this test left a torch profiler running"


@pytest.fixture
def traces() -> Path:
    """A folder of Kineto traces recorded on real machines, too large for the repository."""
    folder = Path(os.environ.get("PERFHOOKS_TRACES", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip(f"no folder of recorded traces at {folder}; set PERFHOOKS_TRACES")
    return folder
