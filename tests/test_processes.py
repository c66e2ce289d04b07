"""A file with several processes or recordings is refused, because its numbers are unique in one process only."""

from __future__ import annotations

import gzip
import json

import msgspec
import pytest
from many_ranks import ManyRanks
from twins import DIALECTS, Machine

from perfhooks import testing
from perfhooks.analysis.ranks.merge import merge
from perfhooks.core.errors import TraceError
from perfhooks.trace import read

SEVERAL = r"contains several (processes|recordings); perfhooks reads one process at a time"


def rank(number, *, pid=None, count=300):
    """The file of one rank: two steps, and as many operators as wanted."""
    process = 1000 + number if pid is None else pid
    begin = 700 * number
    step = 10_000 * count
    events = [testing.step_mark(3 + place, begin + place * step, begin + (place + 1) * step) for place in range(2)]
    for index in range(count):
        at = begin + 20_000 * index
        events.append(testing.op("aten::mm", at, at + 900, external=index + 1))
        events += [testing.launch(index + 1, at + 100, at + 300), testing.kernel(index + 1, at + 400, at + 5000)]
    for event in events:
        if event["cat"] != "kernel":
            event["pid"] = process
    return {"distributedInfo": {"rank": number, "world_size": 2}, "traceEvents": events}


def write(path, text):
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("count", [3, 300, 4000])
def test_single_rank_is_read(tmp_path, count):
    assert len(read(write(tmp_path / "t.json", json.dumps(rank(0, count=count)).encode()))) == 3 * count + 2


@pytest.mark.parametrize("pid", [None, 1])
def test_two_fused_ranks_are_rejected(tmp_path, pid):
    """In containers both may be process 1."""
    fused = rank(0, pid=pid)
    fused["traceEvents"] += rank(1, pid=pid)["traceEvents"]
    with pytest.raises(TraceError, match=SEVERAL):
        read(write(tmp_path / "t.json", json.dumps(fused).encode()))


def test_two_recordings_of_one_process_are_rejected(tmp_path):
    """Another window, or a rank whose clock is ahead: both number their calls from 1."""
    first, second = (rank(number, pid=1)["traceEvents"] for number in range(2))
    for event in second:
        event |= {"ts": event["ts"] + 1e7, "name": event["name"].replace("#3", "#5").replace("#4", "#6")}
    with pytest.raises(TraceError, match=SEVERAL):
        read(write(tmp_path / "t.json", json.dumps({"traceEvents": first + second}).encode()))


@pytest.mark.parametrize("block", [1, 7, 50])
def test_interleaved_blocks_are_rejected(tmp_path, block):
    first, second = rank(0)["traceEvents"], rank(1)["traceEvents"]
    events = []
    for begin in range(0, len(first), block):
        events += first[begin : begin + block] + second[begin : begin + block]
    with pytest.raises(TraceError, match=SEVERAL):
        read(write(tmp_path / "t.json", json.dumps(events).encode()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("count", [1, 20, 3000])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("between", [b"", b"\n"])
def test_two_consecutive_recordings_are_rejected(tmp_path, name, count, listed, between):
    files = [rank(number, pid=1, count=count) for number in range(2)]
    texts = [json.dumps(each["traceEvents"] if listed else each | {"traceName": "x"}).encode() for each in files]
    path = tmp_path / name
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(texts[0]) + gzip.compress(between + texts[1]))
    else:
        path.write_bytes(between.join(texts))
    with pytest.raises(TraceError, match=SEVERAL):
        read(path)


def test_members_of_one_recording_are_read(tmp_path):
    text = json.dumps(rank(0)).encode()
    members = [gzip.compress(text[at : at + 1000]) for at in range(0, len(text), 1000)]
    (tmp_path / "t.json.gz").write_bytes(b"".join(members))
    assert len(read(tmp_path / "t.json.gz")) == 902


@pytest.mark.parametrize("dialect", ["a100-ddp2-train", "mi210-gpu-only"])
def test_output_of_merge_is_rejected(tmp_path, dialect):
    window = ManyRanks(ranks=2, node=2, windows=1).write(tmp_path / "run") / "train-000010-000012"
    for number in range(2):
        file = Machine(DIALECTS[dialect]).whole() | {"distributedInfo": {"rank": number, "world_size": 2}}
        path = window / f"rank{number}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(msgspec.json.Encoder(decimal_format="number").encode(file)))
    with pytest.raises(TraceError, match=SEVERAL):
        read(merge(window, tmp_path / "merged.json").path)
    alone = merge(window, tmp_path / "alone.json", ranks=[1])
    assert len(read(alone.path)) == len(read(path))
