from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.core.errors import TraceError
from perfhooks.testing import kernel, launch, memory, op, write_trace
from perfhooks.trace import Kind, read
from perfhooks.trace.kinds import classify
from perfhooks.trace.reading import reader, source

EVENTS = [
    *(
        op(f"aten::op{number}", 10 * number, 10 * number + 7, external=number + 1, **{"Input Dims": [[number, 1]]})
        for number in range(40)
    ),
    *(launch(number, 10 * number, 10 * number + 3, external=number) for number in range(1, 20)),
    *(kernel(number, 1000 + number, 2000 + number, bytes=4) for number in range(1, 20)),
    memory(15, 64, allocated=64),
]


def layouts(events):
    """The same events as different writers lay them out: Kineto's C++, torch's Python, json with and without indent."""
    lines = ",\n".join(json.dumps(event) for event in events)
    head = {"schemaVersion": 1}
    tail = {"distributedInfo": {"rank": 3}, "pg": [{"a": {"b": 1}}, {"a": {"b": 2}}]}
    return {
        "lines": '{"schemaVersion":1,"traceEvents":[\n' + lines + f'],\n"distributedInfo":{json.dumps({"rank": 3})}}}',
        "compact": json.dumps({**head, "traceEvents": events, **tail}, separators=(",", ":")),
        "spaced": json.dumps({**head, "traceEvents": events, **tail}),
        "indented": json.dumps({**head, "traceEvents": events, **tail}, indent=4),
        "events last": json.dumps({**head, **tail, "traceEvents": events}, indent=2),
        "list": json.dumps(events),
        "indented list": json.dumps(events, indent=1),
        "open list": json.dumps(events, indent=1)[:-1].rstrip() + ",",
    }


def contents(trace):
    """What a trace holds, independent of numbering."""
    rows = zip(trace.name, trace.kind, trace.thread, trace.start, trace.end, trace.correlation, strict=True)
    shapes = [trace.text(each) for each in trace.argument("dims")]
    return [
        (trace.names[name], Kind(kind), trace.threads[thread][:3], int(start), int(end), int(number), dims)
        for (name, kind, thread, start, end, number), dims in zip(rows, shapes, strict=True)
    ]


@pytest.fixture
def whole(tmp_path):
    return contents(read(write_trace(tmp_path / "whole.json", EVENTS)))


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks and blocks of some events."""
    for where, name, value in (
        *((reader, "BLOCK", 1000), (reader, "_PATIENCE", 3)),
        *((source, "BLOCK", 700), (source, "_PACKED_BLOCK", 700)),
    ):
        monkeypatch.setattr(where, name, value)


def test_columns_equal_the_events(tmp_path):
    trace = read(write_trace(tmp_path / "t.json", EVENTS, distributedInfo={"rank": 3}))
    assert trace.rank == 3
    assert trace.metadata["traceName"] == "test", "a key after the events"
    row = trace.rows(Kind.KERNEL)[3]
    assert trace.names[trace.name[row]] == "gemm"
    assert (trace.start[row], trace.end[row], trace.correlation[row]) == (1004, 2004, 4)
    assert (trace.argument("stream")[row], trace.argument("nbytes")[row]) == (7, 4)
    assert trace.text(trace.argument("dims")[trace.rows(Kind.OP)[3]]) == [[3, 1]]
    assert trace.argument("no such thing")[row] == -1
    assert trace.launches.tolist() == trace.rows(Kind.RUNTIME).tolist()
    assert trace.instants.size.tolist() == [64]


@pytest.mark.parametrize("chunk", [1, 500, 8 << 20])
@pytest.mark.parametrize("layout", layouts([]))
def test_any_layout_gives_equal_columns_for_any_chunks(tmp_path, monkeypatch, whole, layout, chunk):
    monkeypatch.setattr(reader, "BLOCK", chunk)
    monkeypatch.setattr(source, "_PACKED_BLOCK", 300)
    monkeypatch.setattr(source, "BLOCK", 300)
    (tmp_path / "t.json").write_text(layouts(EVENTS)[layout])
    trace = read(tmp_path / "t.json")
    assert contents(trace) == whole
    assert trace.rank == (None if "list" in layout else 3)
    assert [doubt.name for doubt in trace.doubts] == (["cut-off"] if layout == "open list" else [])


@pytest.mark.parametrize("place", [0, 2, 4])
def test_damaged_event_keeps_the_precision_of_other_times(tmp_path, place):
    """Microseconds since 1970 with three decimals, of which a double holds none."""
    starts = [1_712_195_495_509_066_207 + 1001 * number for number in range(5)]
    texts = [f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{at // 1000}.{at % 1000:03d},"dur":0.5}}'
             for at in starts]  # fmt: skip
    texts[place] = texts[place].replace('"pid":1', '"pid":null')
    (tmp_path / "t.json").write_text('{"traceEvents":[' + ",".join(texts) + "]}")
    trace = read(tmp_path / "t.json")
    assert {*starts} - {*trace.start.tolist()} <= {starts[place]}


def test_events_with_another_beginning_are_found(small_chunks, tmp_path, monkeypatch):
    events = [op("a", 10 * number, 10 * number + 5) for number in range(300)]
    events[0] = {"name": events[0].pop("name")} | events[0]
    (tmp_path / "t.json").write_text(json.dumps(events))
    sizes = []
    monkeypatch.setattr(
        reader._Reader, "_add_list", spied(reader._Reader._add_list, lambda _, text, *__: sizes.append(len(text)))
    )
    trace = read(tmp_path / "t.json")
    assert (len(trace), trace.doubts) == (300, [])
    assert max(sizes) < 3 * 1000 + 2000, "what was waited for, and no more"


@pytest.mark.parametrize("first", ["ph", "name", "unknown"])
def test_text_without_the_end_of_an_event_is_searched_once(small_chunks, tmp_path, monkeypatch, first):
    """Not again with every block: a file of a gigabyte would take hours."""
    searched = []
    spy = spied(reader._Reader._last_boundary, lambda _, buffer, begin: searched.append(len(buffer) - begin))
    monkeypatch.setattr(reader._Reader, "_last_boundary", spy)
    long = {first: "X"} | op("x" * 100_000, 0, 5)
    (tmp_path / "t.json").write_text(json.dumps([long]))
    assert len(read(tmp_path / "t.json")) == 1
    assert 90_000 < sum(searched) < 200_000


def spied(real, tell):
    """The same method, which tells what it is given."""

    def method(*given):
        tell(*given)
        return real(*given)

    return method


def test_odd_argument_does_not_affect_other_events(tmp_path):
    """Streams of ROCm are handles in hexadecimal."""
    events = [kernel(number, 10 * number, 10 * number + 5, stream="0x7f", bytes="4096") for number in range(1, 4)]
    events[1]["args"]["correlation"] = "N/A"
    trace = read(write_trace(tmp_path / "t.json", events))
    assert trace.argument("stream").tolist() == [0x7F] * 3
    assert trace.argument("nbytes").tolist() == [4096] * 3
    assert trace.correlation.tolist() == [1, -1, 3]


@pytest.mark.parametrize("first", ["ph", "name"])
def test_objects_inside_of_arguments_are_no_events(small_chunks, tmp_path, first):
    """In a compact file only their keys tell them apart."""
    listed = {"l": [{"id": 1}, {"id": 2}, {"name": "q"}], "External id": 7}
    events = [op("a", 10 * number, 10 * number + 5) | {"args": listed} for number in range(300)]
    events = [{first: event.pop(first)} | event for event in events]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 3}}))
    trace = read(tmp_path / "t.json")
    assert trace.rank == 3
    if first == "ph":
        assert (len(trace), trace.doubts) == (300, [])
    else:  # some of these begin like an event: those that a chunk ends at cost theirs, and no other
        assert 200 < len(trace) < 300
        assert [doubt.name for doubt in trace.doubts] == ["dropped-events"]


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**30])
def test_a_number_beyond_64_bits_is_no_number(tmp_path, value):
    event = op("a", 0, 5) | {"args": {"Sequence number": value, "External id": 3}}
    trace = read(write_trace(tmp_path / "t.json", [event]))
    assert (trace.argument("sequence")[0], trace.argument("external")[0]) == (-1, 3)


@pytest.mark.parametrize(
    ("argument", "value", "column"),
    [
        ("Sequence number", 4, "sequence"),
        ("Input Dims", [[2, 3]], "dims"),
        ("Input type", ["float"], "types"),
        ("Concrete Inputs", ["1"], "inputs"),
        ("Collective name", "allreduce", "collective"),
    ],
)
@pytest.mark.parametrize("others", [{}, {"Collective name": "wait", "Input Dims": [[1]]}, {"External id": "none"}])
def test_argument_of_a_single_event_is_read(tmp_path, argument, value, column, others):
    """Also where its neighbours carry more, or something that cannot be read."""
    events = [op("a", 10 * number, 10 * number + 5) for number in range(9)]
    events[4]["args"] = {argument: value}
    events[5]["args"] = others
    trace = read(write_trace(tmp_path / "t.json", events))
    found = trace.argument(column)[4]
    assert (trace.text(found) if isinstance(value, (str, list)) else found) == value
    assert (trace.argument(column)[[*range(4), *range(6, 9)]] == -1).all()


@pytest.mark.parametrize("members", [1, 3, 50])
def test_gzip_of_any_number_of_members_under_any_name(tmp_path, whole, members):
    data = write_trace(tmp_path / "whole.json", EVENTS).read_bytes()
    size = len(data) // members + 1
    parts = [data[begin : begin + size] for begin in range(0, len(data), size)]
    (tmp_path / "t.json").write_bytes(b"".join(gzip.compress(part, mtime=0) for part in parts) + b"\0" * 100)
    trace = read(tmp_path / "t.json")
    assert contents(trace) == whole
    assert trace.doubts == []


def test_a_url_is_read_through_fsspec(whole):
    path = "memory://traces/t.json.gz"
    with fsspec.open(path, "wb") as file:
        file.write(gzip.compress(layouts(EVENTS)["compact"].encode()))
    assert contents(read(path)) == whole


@pytest.mark.slow
@given(st.integers(0, 7_889_238_000_000_000_000 // 1000), st.integers(0, 10**9))
def test_relative_times_are_exact_to_the_nanosecond(tmp_path_factory, start, span):
    """Three decimals of microseconds since the start of the trimester: Kineto's time stamps since torch 2.4."""
    text = f'{{"traceEvents":[{{"ph":"X","cat":"cpu_op","name":"a","ts":{start // 1000}.{start % 1000:03d},'
    text += f'"dur":{span // 1000}.{span % 1000:03d},"pid":1,"tid":1}}]}}'
    path = tmp_path_factory.mktemp("times") / "t.json"
    path.write_text(text)
    trace = read(path)
    assert (trace.start[0], trace.end[0]) == (start, start + span)


@pytest.mark.slow
@given(st.integers(1_500_000_000_000_000_000, 2_000_000_000_000_000_000))
def test_absolute_times_are_exact_to_the_nanosecond(tmp_path_factory, start):
    path = tmp_path_factory.mktemp("times") / "t.json"
    path.write_text(f'[{{"ph":"X","cat":"cpu_op","ts":{start // 1000}.{start % 1000:03d},"dur":1}}]')
    assert read(path).start[0] == start


def test_threads_and_streams_of_the_same_number_are_not_the_same(tmp_path):
    """In a container a process may be number 0, and a string may be a number."""
    events = [
        testing.slice_event("cpu_op", "a", 0, 1, pid=0, tid=7),
        testing.slice_event("kernel", "b", 0, 1, pid=0, tid=7),
        testing.slice_event("kernel", "c", 0, 1, pid="0", tid="stream 7"),
    ]
    trace = read(write_trace(tmp_path / "t.json", events))
    assert len(set(trace.thread.tolist())) == 3


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("cpu_op", Kind.OP),
        ("Operator", Kind.OP),
        ("user_annotation", Kind.ANNOTATION),
        ("gpu_user_annotation", Kind.DEVICE_ANNOTATION),
        ("python_function", Kind.PYTHON),
        ("cuda_runtime", Kind.RUNTIME),
        ("cuda_driver", Kind.RUNTIME),
        ("hip_runtime", Kind.RUNTIME),
        ("xpu_runtime", Kind.RUNTIME),
        ("privateuse1_runtime", Kind.RUNTIME),
        ("Runtime", Kind.RUNTIME),
        ("kernel", Kind.KERNEL),
        ("Kernel", Kind.KERNEL),
        ("gpu_memcpy", Kind.COPY),
        ("Memcpy", Kind.COPY),
        ("gpu_memset", Kind.SET),
        ("Memset", Kind.SET),
        ("cuda_sync", Kind.SYNC),
        ("overhead", Kind.OVERHEAD),
        ("Trace", Kind.SPAN),
        ("what is this", Kind.OTHER),
    ],
)
def test_categories_of_all_generations_are_known(category, kind):
    assert classify(category) == kind


def test_an_unknown_category_on_a_stream_is_work_of_a_device(tmp_path):
    events = [kernel(1, 0, 5, category="npu_thing"), testing.slice_event("npu_host", "x", 0, 5)]
    trace = read(write_trace(tmp_path / "t.json", events))
    assert [Kind(kind) for kind in trace.kind[np.argsort(trace.order)]] == [Kind.KERNEL, Kind.OTHER]


def test_external_ids_equal_to_correlations_are_replaced(tmp_path):
    events = [op("a", 0, 9, external=3)] + [launch(number, number, number, external=number) for number in range(1, 9)]
    trace = read(write_trace(tmp_path / "t.json", [*events, launch(20, 20, 20, external=20)]))
    assert trace.external[trace.rows(Kind.RUNTIME)].tolist() == [3] * 8 + [-1]
    assert set(trace.external[trace.rows(Kind.OP)]) == {3}


def test_flows_from_forward_to_backward_are_paired(tmp_path):
    forward, backward = op("aten::mul", 5, 8), op("MulBackward0", 50, 60, tid=7)
    stray = testing.flow(9, forward, backward)[:1]
    trace = read(write_trace(tmp_path / "t.json", [forward, backward, *testing.flow(1, forward, backward), *stray]))
    assert (trace.flows.time.tolist(), trace.flows.backward_time.tolist()) == ([5], [50])
    assert trace.thread[1] == trace.flows.backward_thread[0]


# --- bad input

GOOD = '{"ph":"X","cat":"cpu_op","name":"good","pid":1,"tid":1,"ts":5.001,"dur":1}'
DEEP = '{"ph":"X","ts":1,"zzz":' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    ("event", "doubt"),
    [
        ('{"ph":"X","name":"half","ts":1,"dur":2,"args":{"External id":"many","stream":7.5,"device":null}}', None),
        ('{"ph":"X","name":"half","ts":1,"dur":2,"args":[1,2]}', None),
        ('{"ph":"X","name":17,"ts":1,"dur":2}', None),
        ('{"ph":"X","name":"half","ts":1,"dur":2,"pid":1.5,"tid":null}', None),
        ('{"ph":"X","name":"half","ts":1,"dur":2,"args":{"correlation":123456789012345678901234567890}}', None),
        ('{"ph":"X","name":"half","ts":1,"dur":2,"args":{"bytes":N/A,"stream":7}}', None),
        (r'{"ph":"X","name":"C:\Users\nobody","ts":1,"dur":2}', None),
        ('{"ph":"X","name":"tab\there","ts":1,"dur":2}', None),
        (r'{"ph":"X","name":"\ud800","ts":1,"dur":2}', None),
        ('{"ph":"X","name":"half","ts":NaN,"dur":2}', "records-without-time"),
        ('{"ph":"X","name":"half","ts":1,"dur":Infinity}', "records-without-length"),
        ('{"ph":"X","name":"half","ts":1e300,"dur":2}', "records-without-time"),
        ('{"ph":"X","name":"half","ts":1e5000000,"dur":2}', "records-without-time"),
        ('{"ph":"X","name":"half","ts":"5","dur":2}', None),
        ('{"ph":"X","name":"half","ts":"soon","dur":2}', "records-without-time"),
        ('{"ph":"X","name":"half"}', "records-without-time"),
        ('{"ph":"X","name":"half","ts":1}', "records-without-length"),
        ('{"ph":"X","name":"half","ts":1,"dur":-0.001}', "records-without-length"),
        ("17", "dropped-events"),
        ("{}", "dropped-events"),
        ("{garbage}", "dropped-events"),
        (DEEP, "dropped-events"),
    ],
)
def test_bad_event_does_not_affect_other_events(tmp_path, event, doubt):
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[\n{GOOD},\n{event},\n{GOOD}\n],"rank":3}}')
    trace = read(tmp_path / "t.json")
    assert [trace.names[name] for name in trace.name].count("good") == 2
    assert len(trace) == 2 + (doubt is None)
    assert [doubt.name for doubt in trace.doubts] == ([] if doubt is None else [doubt])
    assert trace.metadata == {"rank": 3}


@pytest.mark.parametrize(("dims", "value"), [("[NaN]", "nan"), (r'["\W"]', r"\W"), ('["\xff"]', "\ufffd")])
def test_odd_arguments_can_be_read(tmp_path, dims, value):
    """Arguments are decoded late, long after anything could be refused."""
    text = f'[{GOOD[:-1]},"args":{{"Input Dims":{dims}}}}}]'
    (tmp_path / "t.json").write_bytes(text.encode("latin-1"))
    trace = read(tmp_path / "t.json")
    assert [str(each) for each in trace.text(trace.argument("dims")[0])] == [value]


def test_bytes_that_are_no_text_are_replaced(tmp_path):
    (tmp_path / "t.json").write_bytes(b"[" + GOOD.replace("good", "\0\xff").encode("latin-1") + b"]")
    trace = read(tmp_path / "t.json")
    assert [trace.names[name] for name in trace.name] == ["\0\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"hello", "no JSON"),
        (b"\x1f\x8bnot really", "the gzip archive is damaged"),
        (b'{"a": 1}', "no list of traceEvents"),
        (b'{"traceEvents": 5}', "no list of traceEvents"),
        (b"17", "no list of traceEvents"),
        (b"[]", "no event"),
        (b"[1, 2, 3]", "no event"),
        (b'{"traceEvents": []}', "no event"),
        (b'[{"name": "x"}]', "no event"),
        (b'{"traceEvents": [', "no event"),
        (gzip.compress(b'{"a": 1}', mtime=0), "no list of traceEvents"),
    ],
)
def test_invalid_trace_is_rejected_with_name_and_reason(tmp_path, data, message):
    (tmp_path / "odd.json").write_bytes(data)
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path / "odd.json")
    assert "odd.json" in str(caught.value)


def test_unreadable_file_raises_a_perfhooks_error(tmp_path):
    for path in (tmp_path / "missing.json", tmp_path, "nosuchprotocol://x"):
        with pytest.raises(TraceError, match="cannot"):
            read(path)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["compact", "indented", "lines", "list"])
def test_file_truncated_anywhere_has_its_complete_events(tmp_path, layout):
    data = layouts(EVENTS)[layout].encode()
    slices, path = 0, tmp_path / "t.json"
    for cut in [*range(0, len(data), 97), len(data)]:
        path.write_bytes(data[:cut])
        try:
            trace = read(path)
        except TraceError:
            assert not slices, "once something could be read, more of the file gives more"
            continue
        assert len(trace) >= slices
        assert trace.doubts or cut == len(data) or len(trace) == 78
        slices = len(trace)
    assert slices == 78


def test_events_lost_before_the_truncation_count(tmp_path):
    (tmp_path / "t.json").write_text(f"[\n{GOOD},\n{{garbage}},\n{GOOD},\n{GOOD[:20]}")
    trace = read(tmp_path / "t.json")
    assert len(trace) == 2
    assert {doubt.name: doubt.count for doubt in trace.doubts} == {"cut-off": 1, "dropped-events": 1}


def test_failing_disk_keeps_the_events_read_before(tmp_path, monkeypatch):
    (tmp_path / "t.json").write_text(f"[\n{GOOD},\n{GOOD},\n")

    def failing(file, _limit):
        yield from source.blocks(file)
        raise OSError("the disk is gone")

    monkeypatch.setattr(reader, "blocks", failing)
    trace = read(tmp_path / "t.json")
    assert len(trace) == 2
    assert "reading stopped: the disk is gone" in [doubt.text for doubt in trace.doubts]


def test_truncated_archive_has_its_complete_events(tmp_path):
    noise = random.Random(0)
    events = [op(noise.randbytes(40).hex(), number, number + 1) for number in range(2000)]
    data = gzip.compress(write_trace(tmp_path / "t.json", events).read_bytes())
    (tmp_path / "t.json.gz").write_bytes(data[: len(data) // 2])
    trace = read(tmp_path / "t.json.gz")
    assert 500 < len(trace) < 1500
    assert "cut off" in trace.doubts[0].text


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [100, 8 << 20])
def test_mutated_files_never_break_the_reader(tmp_path, monkeypatch, chunk):
    """2,000 seeded cases: bytes changed, removed, doubled; a trace or a TraceError, and every column consistent."""
    monkeypatch.setattr(reader, "BLOCK", chunk)
    monkeypatch.setattr(source, "_PACKED_BLOCK", chunk)
    data = write_trace(tmp_path / "seed.json", EVENTS[:6] + EVENTS[-30:]).read_bytes()
    packed = gzip.compress(data, mtime=0)
    path, refused = tmp_path / "t.json", 0
    for seed in range(chunk, chunk + 1000):
        path.write_bytes(mutated(packed if seed % 10 == 0 else data, random.Random(seed)))
        try:
            trace = read(path)
        except TraceError:
            refused += 1
            continue
        assert (trace.end >= trace.start).all()
        assert len(trace.kind) == len(trace.correlation) == len(trace.argument("dims")) == len(trace)
        assert trace.name.max(initial=-1) < len(trace.names)
        assert trace.thread.max(initial=-1) < len(trace.threads)
    assert refused < 200, "most mutations leave most of a file whole"


def mutated(data, noise):
    changed = bytearray(data)
    for _ in range(noise.randint(1, 4)):
        place = noise.randrange(len(changed))
        what = noise.randrange(4)
        if what == 0:
            changed[place] = noise.randrange(256)
        elif what == 1:
            del changed[place : place + noise.randint(1, 200)]
        elif what == 2:
            changed[place:place] = noise.choice(
                [b"9" * 400, b"{", b"]", b'"', b"\\", b"null", b"[[[[", b"NaN", b"},\n  {"]
            )
        else:
            changed[place:place] = changed[max(0, place - 300) : place]
        changed = changed or bytearray(b"x")
    return bytes(changed)


@pytest.mark.slow
def test_a_bomb_does_not_explode(tmp_path):
    """A few packed kilobytes that unpack to a gigabyte of nothing."""
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b" " * (1 << 28), 9, mtime=0) * 4)
    with pytest.raises(TraceError):
        read(tmp_path / "t.json.gz")


@pytest.mark.process
def test_reading_needs_no_torch_and_no_polars():
    code = "import sys, perfhooks.trace; print({'torch', 'polars', 'fsspec'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
        == "set()\n"
    )


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=40))
def test_slices_come_before_their_content(tmp_path_factory, rows):
    events = [op(str(number), start, start + span, tid=tid) for number, (tid, start, span) in enumerate(rows)]
    trace = read(write_trace(tmp_path_factory.mktemp("sorted") / "t.json", events))
    keys = np.stack([trace.thread, trace.start, -trace.end, trace.order], axis=1).tolist()
    assert keys == sorted(keys)
    expected = sorted((str(number), start, start + span) for number, (_, start, span) in enumerate(rows))
    assert (
        sorted((trace.names[n], s, e) for n, s, e in zip(trace.name, trace.start, trace.end, strict=True)) == expected
    )


ODD = [
    json.loads(line)
    for line in """\
{"ph":"M","name":"thread_name","pid":100,"tid":1,"args":{"name":"main"}}
{"ph":"M","cat":"cpu_op","name":"thread_name","pid":100,"tid":1,"args":{"name":"other"}}
{"ph":"X","cat":"something new","name":"a","pid":100,"tid":1,"ts":5,"dur":1,"args":{"stream":1}}
{"ph":"X","cat":"kernel","name":"b","pid":0,"tid":"stream","ts":7,"dur":1,"args":{"stream":"0x1"}}
{"ph":"X","cat":"cpu_op","name":"c","pid":100,"tid":1,"ts":9.0,"dur":2,"args":{"External id":"x"}}
{"ph":"X","cat":"cpu_op","name":"d","pid":100,"tid":1,"ts":"never","dur":2}
{"ph":"X","cat":"cpu_instant_event","name":"[memory]","pid":100,"tid":1,"ts":3,"dur":2,"args":{}}
{"ph":"i","cat":"cpu_op","name":"[memory]","pid":100,"tid":1,"ts":4,"args":{"Bytes":8}}
{"ph":"X","cat":"cpu_op","name":"e","pid":100,"tid":1,"ts":8,"args":{"Collective name":"all","x":1}}
{"ph":"s","cat":"fwdbwd","name":"f","pid":100,"tid":1,"ts":8,"id":1}
{"cat":"cpu_op"}
{}
17
""".splitlines()
]
"""Events that few traces have."""


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, len(EVENTS)), st.sampled_from(ODD)), max_size=30), st.integers(0, 3))
def test_chunks_equal_their_events_read_singly(places, learning):
    """Whatever does not fit the categories so far: one union of structs reads what a struct for any event does."""
    events = list(EVENTS)
    for place, odd in places:
        events.insert(place, odd)
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "t.json"
        path.write_text(json.dumps({"traceEvents": events}, indent=2))
        patch.setattr(reader, "BLOCK", 1500)
        patch.setattr(source, "BLOCK", 1500)
        for chunks in (learning, len(events)):
            patch.setattr(reader, "_LEARNING", chunks)
            trace = read(path)
            texts = {name: [trace.text(each) for each in trace.argument(name)] for name in ("dims", "collective")}
            numbers = [trace.argument(name).tolist() for name in ("external", "stream", "nbytes", "sequence")]
            others = ([each.tolist() for each in trace.instants], trace.threads, [each.text for each in trace.doubts])
            found.append((contents(trace), trace.order.tolist(), texts, numbers, others))
    assert found[0] == found[1]


def test_few_events_of_a_long_trace_are_read_singly(tmp_path, monkeypatch):
    events = [*ODD[:1] * 20, *EVENTS * 40, *ODD[:1] * 20]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}, indent=2))
    monkeypatch.setattr(reader, "BLOCK", 20_000)
    monkeypatch.setattr(source, "BLOCK", 20_000)
    monkeypatch.setattr(reader.processes, "check_single", lambda _: None)  # the events repeat their numbers
    any_event, one_by_one = reader._decode_any, []
    monkeypatch.setattr(
        reader, "_decode_any", lambda text, *, exact: one_by_one.append(len(text)) or any_event(text, exact=exact)
    )
    assert len(read(tmp_path / "t.json")) == 40 * (len(EVENTS) - 1)
    assert sum(one_by_one) < (tmp_path / "t.json").stat().st_size / 5
