"""torch's new recorder (cuspy): no window is lost on it, and where it is not there Kineto records.

It needs a GPU. What stands for it here writes where torch's does, which is what matters to a window.
"""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity

import perfhooks
from perfhooks import Profiler
from perfhooks.record.loop import next_recorder
from perfhooks.record.loop.like_torch.accepted import check_recording

pytestmark = pytest.mark.skipif(not hasattr(torch.profiler, "CuspyConfig"), reason="this torch has one recorder")

OBSERVER = "torch.profiler._cuspy.observers.profiler"
X = torch.ones(8, 8)
SCHEDULE = "wait=1 warmup=0 active=2 repeat=2"


class Observer:
    """As torch's ``ProfilerObserver``, of a device that does nothing."""

    available = True
    packs = True
    writes = True
    fails = False

    def __init__(self, **options):
        self.options, self.written = options, []
        MADE.append(self)

    def push_annotation(self, name):
        return None

    def open_window(self):
        self.is_open = True

    def close_window(self):
        return 7 if self.writes else None

    def set_export(self, window, cpu_json, out):
        assert window == 7
        self.written.append((Path(cpu_json), Path(out if out.endswith(".gz") or not self.packs else f"{out}.gz")))

    def join(self, *, force=True, timeout_s=30.0):
        self.is_open = False
        for host, out in self.written:
            if self.fails:
                out.write_bytes(b"\x1f\x8b half of it")
                host.unlink()
                raise OSError(28, "No space left on device")
            with host.open("rb") as plain, (gzip.open if self.packs else open)(out, "wb") as file:
                shutil.copyfileobj(plain, file)
            host.unlink()
        self.written = []


MADE: list[Observer] = []


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(next_recorder, "_logged", set())
    MADE.clear()


@pytest.fixture
def recorder(monkeypatch):
    """Puts an observer in the place of torch's."""

    def put(**attributes):
        module = types.ModuleType(OBSERVER)
        module.ProfilerObserver = type("ProfilerObserver", (Observer,), attributes)
        monkeypatch.setitem(sys.modules, OBSERVER, module)
        monkeypatch.setattr(next_recorder, "_has_device", lambda: module.ProfilerObserver.available is not None)

    return put


def objects(**options):
    config = torch.profiler.ProfilerActivityConfig(profiler_configs=[torch.profiler.CuspyConfig(**options)])
    return [ProfilerActivity.CPU, {ProfilerActivity.CUDA: config}]


def words():
    return ["cpu", "cuda:cuspy"]


def trained(activities, **options):
    with Profiler(activities=activities, schedule=SCHEDULE, out="perf", run="r", background=False, **options) as prof:
        for _ in range(8):
            X @ X
            prof.step()
    return prof


def windows():
    return sorted(Path("perf/r").glob("train-*"))


def names(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        return [event.get("name") for event in json.load(file)["traceEvents"]]


def left():
    """What belongs to nobody: spooled traces, half files, torch's own temporary files."""
    return [*Path("perf").rglob("*spool*"), *(path for path in Path("tmp").rglob("*") if path.is_file())]


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("activities", [objects, words])
def test_windows_are_found_packed_or_plain(recorder, activities, packs):
    recorder(packs=packs)
    trained(activities())
    assert [window.name for window in windows()] == ["train-000001-000002", "train-000004-000005"]
    for window, first in zip(windows(), (1, 4), strict=True):
        marks = [name for name in names(window / "rank0.pt.trace.json.gz") if name.startswith("ProfilerStep")]
        assert marks == [f"ProfilerStep#{first}", f"ProfilerStep#{first + 1}"]
        assert (window / "rank0.operators.csv").read_text().count("aten::mm")
    assert left() == []
    assert [observer.is_open for observer in MADE] == [False, False]


def test_window_written_later_by_torch_is_awaited(recorder):
    recorder()
    later = torch._C._profiler._ExperimentalConfig(custom_profiler_config='{"cuspy_async_export": true}')
    trained(objects(), experimental_config=later)
    assert [observer.options["defer_export"] for observer in MADE] == [True, True]
    assert [observer.is_open for observer in MADE] == [False, False]
    assert ["aten::mm" in names(window / "rank0.pt.trace.json.gz") for window in windows()] == [True, True]
    assert left() == []


def test_device_finishes_its_work_before_recording_ends(recorder, monkeypatch):
    """torch waits for it only where Kineto records; what begins after that would be in no window."""
    done = []
    recorder(close_window=lambda self: done.append("closed") or 7)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("waited"))
    trained(objects())
    assert done == ["waited", "closed"] * 2


def test_trace_size_is_that_of_its_json(recorder):
    recorder()
    trained(objects())
    capture = json.loads((windows()[0] / "rank0.capture.json").read_text())
    with gzip.open(windows()[0] / "rank0.pt.trace.json.gz") as file:
        assert capture["cost"]["trace_bytes"] == len(file.read())


def test_window_is_exported_plain_or_packed_several_times(recorder):
    recorder()
    with Profiler(activities=objects(), with_stack=True) as prof:
        X @ X
    for name in ("a.json", "b.json.gz", "c.json"):
        prof.export_chrome_trace(name)
        assert "aten::mm" in names(Path(name))
    prof.export_stacks("stacks")
    assert Path("stacks").read_text()
    assert left() == []


def test_unsaved_window_is_released(recorder):
    recorder()
    with Profiler(activities=objects(), schedule=SCHEDULE, on_trace_ready=lambda _: None, keep_results=False) as prof:
        for _ in range(8):
            prof.step()
    assert [observer.is_open for observer in MADE] == [False, False]


def lines(caplog):
    return [record.getMessage() for record in caplog.records if "cuspy" in record.getMessage().lower()]


HOST_ALONE = pytest.mark.filterwarnings("ignore:CUDA is not available, disabling CUDA profiling")


@HOST_ALONE
@pytest.mark.parametrize("activities", [objects, words])
def test_missing_library_is_one_line_and_kineto_records(monkeypatch, caplog, activities):
    monkeypatch.setitem(sys.modules, OBSERVER, None)
    prof = trained(activities())
    (line,) = lines(caplog)
    assert line.startswith("torch's new recorder (cuspy) is not available (ModuleNotFoundError: ")
    assert line.endswith("it needs cupti-python): Kineto records the device")
    assert not prof._use_cuspy
    assert len(windows()) == 2
    assert "aten::mm" in names(windows()[1] / "rank0.pt.trace.json.gz")


@HOST_ALONE
def test_next_recorder_is_not_started_without_a_device(recorder, caplog):
    recorder(available=None)
    trained(objects())
    assert lines(caplog) == [
        "torch's new recorder (cuspy) is not available (there is no CUDA device): Kineto records the device"
    ]
    assert (len(MADE), len(windows())) == (0, 2)


@HOST_ALONE
def test_invisible_device_is_one_line_and_kineto_records(recorder, caplog):
    def refused(self, **options):
        logging.getLogger("torch.profiler._cuspy.observers.base").warning("Cuspy observer unavailable: no driver")
        MADE.append(self)

    recorder(available=False, __init__=refused)
    trained(objects())
    (line,) = lines(caplog)
    assert line.endswith("(cuspy) is not available (Cuspy observer unavailable: no driver): Kineto records the device")
    assert len(MADE) == 1, "the windows after it are recorded alike"
    assert len(windows()) == 2
    assert "aten::mm" in names(windows()[1] / "rank0.pt.trace.json.gz")
    assert left() == []


@pytest.mark.filterwarnings("ignore:Cuspy observer unavailable")
def test_missing_device_events_leave_the_host_with_a_note(recorder):
    recorder(writes=False)
    trained(objects())
    capture = json.loads((windows()[0] / "rank0.capture.json").read_text())
    assert "this window contains the host only" in capture["notes"][0]
    assert "aten::mm" in names(windows()[0] / "rank0.pt.trace.json.gz")


def test_half_a_file_on_a_full_disk_does_not_stay(recorder, caplog):
    recorder(fails=True)
    trained(objects())
    assert [line for line in caplog.messages if "No space left on device" in line]
    assert left() == []


def taken(*activities):
    (config,) = check_recording({"activities": activities})["activities"]
    return config[ProfilerActivity.CUDA]


def test_text_and_configuration_objects_are_equivalent(recorder):
    recorder()
    whole, cuspy = torch.profiler.ProfilerActivityConfig, torch.profiler.CuspyConfig
    assert taken("cuda:cuspy") == whole(profiler_configs=[cuspy()])
    both = cuspy(enable_environment_counters=True, enable_cuda_sync_events=True)
    assert taken("CUDA:cuspy+environment_counters+cuda_sync_events") == whole(profiler_configs=[both])
    metrics = {"type": "PerformanceMetricsConfig", "metric_names": ["sm__cycles_active.avg"]}
    config = {"activity_types": ["GPU_MEMCPY"], "profiler_configs": [{"type": "CuspyConfig"}, metrics]}
    of_torch = torch.profiler.PerformanceMetricsConfig(["sm__cycles_active.avg"])
    assert taken({"cuda": config}) == whole(["GPU_MEMCPY"], [cuspy(), of_torch])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("cuda:kineto", "unknown recorder 'kineto'; torch's new recorder is 'cuspy'"),
        ("cuda:cuspy+speed", "enable_speed"),
        ("gpu:cuspy", "activities must be one or more of"),
        ({"cuda": {"profiler_configs": [{"type": "os"}]}}, "must name one of torch.profiler's configurations"),
        ({"cuda": {"kinds": []}}, "is not a valid activity configuration"),
    ],
)
def test_invalid_text_is_rejected_at_construction(wrong, said):
    with pytest.raises(perfhooks.OptionError, match=said):
        Profiler(activities=["cpu", wrong])


def test_next_recorder_needs_the_host(recorder):
    recorder()
    with pytest.raises(perfhooks.OptionError, match="requires CPU activity"):
        Profiler(activities=["cuda:cuspy"])


@pytest.mark.gpu
@pytest.mark.recorder
def test_windows_on_a_gpu_contain_device_work():
    pytest.importorskip("cupti")
    on_device = torch.ones(512, 512, device="cuda")
    with Profiler(activities=words(), schedule=SCHEDULE, out="perf", run="r", background=False) as prof:
        for _ in range(8):
            (on_device @ on_device).sum().item()
            prof.step()
    assert len(windows()) == 2
    assert (windows()[0] / "rank0.kernels.csv").read_text().count("gemm")
    assert left() == []
