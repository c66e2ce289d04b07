"""The TensorBoard handler, held against the loader of the plugin itself."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing

import pytest
from plain_reader import slices

from perfhooks import Capture, OptionError, TensorBoard, testing
from perfhooks.report.handlers.tensorboard import translate
from perfhooks.trace import read

data = pytest.importorskip("torch_tb_profiler.profiler.data")
loader = pytest.importorskip("torch_tb_profiler.profiler.loader")

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
EVENTS = [
    testing.step_mark(7, 0, 1_000_000),
    testing.annotation(LOADER, 1_000, 251_000),
    testing.op("aten::mm", 300_000, 400_000, external=5),
    testing.launch(9, 350_000, 360_000, external=5),
    testing.kernel(9, 500_000, 700_000, external=5),
    testing.slice_event("gpu_user_annotation", "ProfilerStep#7", 500_000, 700_000, pid=0, tid=7),
    testing.step_mark(8, 1_000_000, 2_000_000),
    testing.launch(10, 1_350_000, 1_360_000, external=5),
    testing.kernel(10, 1_500_000, 1_700_000, external=5),
]


def opened(path, cache):
    """What the plugin's loader makes of a file."""
    return data.RunProfileData.parse("rank0", None, str(path), str(cache))


def translated(source, folder):
    target = folder / "rank0.pt.trace.json.gz"
    with target.open("wb") as file:
        translate(source, file)
    return target


def test_plugin_finds_steps_waits_and_operators_of_kernels(tmp_path):
    source = testing.write_trace(tmp_path / "spool.json", EVENTS)
    plain, ours = opened(source, tmp_path), opened(translated(source, tmp_path), tmp_path)
    costs = [[round(each) for each in step.costs] for step in ours.steps_costs]
    roles = data.ProfileRole
    assert ours.steps_names == ["7", "8"]
    assert costs[0][roles.DataLoader] == 250
    assert costs[0][roles.Runtime] == 10
    assert costs[0][roles.Kernel] == 200
    assert plain.avg_costs.costs[roles.Runtime] == 0  # what the translation is for
    (kernel,) = ours.kernel_list_groupby_name_op
    assert (kernel.name, kernel.op_name, kernel.calls) == ("gemm", "aten::mm", 2)


def test_the_plugin_opens_a_trace_of_a_gpu(traces, tmp_path):
    """Of which it takes the steps for others, and finds no runtime, as it is."""
    path = traces / "a100-ddp2-train.json.gz"
    ours = opened(translated(path, tmp_path), tmp_path)
    assert ours.steps_names == ["4", "5", "6"]
    assert ours.has_runtime
    assert ours.has_kernel
    ops = {event["args"]["External id"]: event["name"] for event in slices(path, {"cpu_op", "user_annotation"})}
    launched = {ops[event["args"]["External id"]] for event in slices(path, {"kernel"})}
    assert {row.op_name for row in ours.kernel_list_groupby_name_op} == launched


def test_only_categories_change(tmp_path):
    tricky = testing.op('say "cat": "user_annotation"', 0, 5, Input_Dims=[[1, 2]])
    events = [*EVENTS, tricky, testing.slice_event("hip_driver", "hipLaunch", 1, 2)]
    source = testing.write_trace(tmp_path / "spool.json", events)
    before = json.loads(source.read_bytes())
    after = json.loads(gzip.decompress(translated(source, tmp_path).read_bytes()))
    words = {"user_annotation": "cpu_op", "gpu_user_annotation": "gpu_annotation"}
    words |= {"cuda_runtime": "runtime", "hip_driver": "runtime"}
    for event in before["traceEvents"]:
        event["cat"] = words.get(event["cat"], event["cat"])
    assert after == before


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_category_is_translated_wherever_a_chunk_ends(size, tmp_path, monkeypatch):
    source = testing.write_trace(tmp_path / "spool.json.gz", EVENTS)
    whole = translated(source, tmp_path).read_bytes()
    monkeypatch.setattr("perfhooks.trace.reading.source.BLOCK", size)
    monkeypatch.setattr("perfhooks.trace.reading.source._PACKED_BLOCK", max(size, 2))
    assert gzip.decompress(translated(source, tmp_path).read_bytes()) == gzip.decompress(whole)


@pytest.mark.parametrize("size", [1, 7, 24])
def test_category_at_the_end_of_a_chunk_is_translated(size, tmp_path, monkeypatch):
    monkeypatch.setattr("perfhooks.trace.reading.source.BLOCK", size)
    monkeypatch.setattr("perfhooks.trace.reading.source._PACKED_BLOCK", size)
    source = tmp_path / "spool.json"
    source.write_text('{"traceEvents":[{"cat":"cuda_runtime","name":"cudaLaunchKernel"}]}')
    after = json.loads(gzip.decompress(translated(source, tmp_path).read_bytes()))
    assert after["traceEvents"] == [{"cat": "runtime", "name": "cudaLaunchKernel"}]


def test_windows_in_a_separate_folder_sort_by_step_as_text(tmp_path):
    """So the plugin sorts them."""
    trace = read(testing.write_trace(tmp_path / "spool.json", EVENTS))
    written = []
    for first in (9, 100, 12_000):
        assert list(TensorBoard(folder=tmp_path / "tb").artifacts(Capture(first=first), trace)) == []
        written += [path.name for path in (tmp_path / "tb" / "train").iterdir() if path.name not in written]
    assert len(written) == 3
    assert written == sorted(written)


def test_without_a_folder_the_file_is_in_the_window(tmp_path):
    trace = read(testing.write_trace(tmp_path / "spool.json", EVENTS))
    ((name, write),) = TensorBoard().artifacts(Capture(), trace)
    file = io.BytesIO()
    write(file)
    assert name == "tensorboard.pt.trace.json.gz"
    assert b'"cat": "runtime"' in gzip.decompress(file.getvalue())


@pytest.mark.process
def test_folder_has_runs_workers_and_spans(tmp_path):
    trace = read(testing.write_trace(tmp_path / "spool.json", EVENTS))
    handler = TensorBoard(folder=tmp_path / "tb")
    for rank in (0, 1):
        for first in (7, 27):
            assert list(handler.artifacts(Capture(rank=rank, first=first), trace)) == []
    run = loader.RunLoader("train", str(tmp_path / "tb" / "train"), _Cache()).load()
    for (
        process
    ) in multiprocessing.active_children():  # it does not wait for them, and a window beside them has a sampler
        process.join(300)
    assert sorted(profile.worker for profile in run.profiles.values()) == ["rank0", "rank0", "rank1", "rank1"]
    assert {span for profile in run.profiles.values() if (span := profile.span)} == {1, 2}


class _Cache:
    """The plugin's own cache hands files out by name; here they are where they are."""

    cache_dir = "."

    def read(self, path):
        with open(path, "rb") as file:  # noqa: PTH123 -- as the plugin calls it
            return file.read()

    def get_remote_cache(self, path):
        return path

    def get_file(self, path):
        return path

    def add_tempfile(self, path):
        pass


def test_relative_folder_refers_to_the_training(tmp_path, monkeypatch):
    """The files are made by another process."""
    monkeypatch.chdir(tmp_path)
    assert TensorBoard(folder="tb").folder == str(tmp_path / "tb")


@pytest.mark.parametrize("folder", [3, "s3://bucket/tb"])
def test_folder_that_tensorboard_cannot_open_is_rejected(folder):
    with pytest.raises(OptionError, match="folder must be a local folder or None"):
        TensorBoard(folder=folder)
