"""Traces made to take all memory or time cost no more than their size; sizes of thousands are in `make fuzz`."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from rich.console import Console

from perfhooks import testing
from perfhooks.analysis import flames
from perfhooks.analysis.ranks import merge as merging
from perfhooks.cli import app
from perfhooks.cli.actions import show
from perfhooks.core.errors import OptionError, PerfhooksError, TraceError
from perfhooks.report.handlers.tensorboard import translate
from perfhooks.report.page import terminal_tables
from perfhooks.trace import read
from perfhooks.trace.nesting import host
from perfhooks.trace.reading import arguments, reader, source
from perfhooks.trace.reading.events import decode_object, decode_value
from perfhooks.trace.tables import memory, modules, stacks, steps, synchronisations
from perfhooks.trace.writing import raw_events

GOOD = '{"ph":"X","cat":"cpu_op","name":"good","pid":1,"tid":1,"ts":5.001,"dur":1}'
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "attacks.py"


def nested(count, make):
    return [make(number, number, 3 * count - number) for number in range(count)]


def frames(count):
    return nested(count, lambda number, start, end: testing.python_frame(f"a.py({number}): f", start, end))


def packed(path, *pieces):
    """An archive of some texts, each of them so many times."""
    pack = zlib.compressobj(wbits=31)
    path.write_bytes(b"".join(pack.compress(text.encode() * count) for text, count in pieces) + pack.flush())
    return path


def spied(real, tell):
    """The same function, which tells what it is given."""

    def known(*given):
        tell(*given)
        return real(*given)

    return known


def doubts(trace):
    return [doubt.name for doubt in trace.doubts]


# --- what nests


def test_too_deep_stacks_end_in_a_frame_that_marks_the_cut(tmp_path, monkeypatch):
    trace = read(testing.write_trace(tmp_path / "t.json", frames(300)))
    whole = stacks.folded(trace)
    monkeypatch.setattr(host, "MAX_LETTERS", 10_000)
    monkeypatch.setattr(host, "MAX_LETTERS_PER_SLICE", 0)
    trace = read(tmp_path / "t.json")
    cut = stacks.folded(trace)
    assert sum(map(len, whole)) > 500_000
    assert sum(map(len, cut)) <= 10_000 + 1000
    assert sum(cut.values()) == sum(whole.values()), "no time is lost"
    (deeper,) = [stack for stack in cut if stack.endswith("(deeper)")]
    assert [stack for stack in cut if stack != deeper] == [stack for stack in whole if stack in cut]


def test_kernels_below_a_long_stack_are_cut_too(tmp_path, monkeypatch):
    """Their names stand behind the stack of each."""
    events = [testing.op("x" * 5000, 0, 10_000)]
    for number in range(1, 100):
        events += [testing.launch(number, number, number)]
        events += [testing.kernel(number, 10 * number, 10 * number + 5, name=f"k{number}")]
    monkeypatch.setattr(host, "MAX_LETTERS", 10_000)
    monkeypatch.setattr(host, "MAX_LETTERS_PER_SLICE", 0)
    cut = stacks.folded(read(testing.write_trace(tmp_path / "t.json", events)), "device")
    assert sum(map(len, cut)) <= 10_000 + 5000
    assert sum(cut.values()) == 5 * 99


def test_modules_nested_too_deep_belong_to_outer_modules(tmp_path, monkeypatch):
    events = nested(60, lambda number, start, end: testing.python_frame(f"nn.Module: A_{number}", start, end))
    path = testing.write_trace(tmp_path / "t.json", events)
    whole = modules.table(read(path))
    monkeypatch.setattr(host, "MAX_LETTERS", 500)
    monkeypatch.setattr(host, "MAX_LETTERS_PER_SLICE", 0)
    cut = modules.table(read(path))
    assert 5 < cut.height < 30
    assert cut["forward_ms"].to_list() == whole["forward_ms"].to_list()[: cut.height]
    assert cut["forward_self_ms"].sum() == pytest.approx(whole["forward_self_ms"].sum())


def test_long_names_lose_their_middle_in_many_stacks(tmp_path, monkeypatch):
    events = [testing.python_frame(f"{'x' * 5000}.py(1): f", 0, 10_000)]
    events += [testing.python_frame(f"b.py({number}): g", 10 * number, 10 * number + 5) for number in range(1, 100)]
    monkeypatch.setattr(host, "MAX_LETTERS", 10_000)
    monkeypatch.setattr(host, "MAX_LETTERS_PER_SLICE", 0)
    texts, _ = stacks.by_depth(read(testing.write_trace(tmp_path / "t.json", events)), 5)
    assert len(texts) == 100
    assert sum(map(len, texts)) <= 20_000
    assert texts[1].startswith("xxxx")
    assert "…" in texts[1]
    assert texts[1].endswith("b.py(1): g")


def test_a_name_that_no_table_has_room_for_loses_its_middle(tmp_path):
    long = "a" * 100_000 + "end"
    path = testing.write_trace(tmp_path / "t.json", [testing.op(long, 0, 5), testing.op("b" * 8192, 0, 5, tid=7)])
    first, second = read(path).names
    assert first == f"{'a' * 4096}…{'a' * 4092}end"
    assert second == "b" * 8192


def test_wrong_arguments_cost_no_more_time_than_right_ones(tmp_path):
    """What fields there are is found out once."""
    events = [testing.kernel(number, number, number + 1, occupancy=[]) | {"args": {"device": "x", "correlation": 1}}
              for number in range(300)]  # fmt: skip
    path = testing.write_trace(tmp_path / "t.json", events)
    arguments._fields.cache_clear()
    assert read(path).correlation.tolist() == [1] * 300
    assert arguments._fields.cache_info().misses <= 2


def test_a_deep_flame_graph_shows_its_outermost_frames(tmp_path):
    trace = read(testing.write_trace(tmp_path / "t.json", frames(500)))
    flame = flames.tree(stacks.summed(trace), nodes=50)
    assert 40 < len(flame["value"]) <= 50
    assert flame["value"][0] == sum(stacks.folded(trace).values())
    assert flame["names"][flame["frame"][1]] == "a.py(0): f"


@pytest.mark.parametrize("late", [0, 1, 5, 299, 300, 301, 600, 2000])
def test_open_slice_is_found_at_any_depth(tmp_path, late):
    """The innermost that has not ended, both its ends included."""
    events = nested(300, lambda number, start, end: testing.op(f"op{number}", start, end))
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    open_then = [number for number in range(300) if number <= late <= 900 - number]
    found = host.innermost(trace, trace.thread[:1], trace.start[:1] + late)
    assert found.tolist() == [max(open_then, default=-1)]


def test_operator_of_a_deeply_nested_wait_is_found(tmp_path):
    """And waits in waits are one: runtimes report a call and the one that it is made of."""
    events = [testing.op("aten::item", 0, 10_000, external=5)]
    names = ["cudaMemcpyAsync"] * 299 + ["cudaStreamSynchronize"]
    events += nested(300, lambda number, start, end: testing.launch(number + 1, start + 1, end + 1, name=names[number]))
    events += nested(300, lambda number, start, end: testing.launch(
        number + 301, start + 5001, end + 5001, name="cudaStreamSynchronize"))  # fmt: skip
    table = synchronisations.table(read(testing.write_trace(tmp_path / "t.json", [*events, testing.kernel(999, 0, 1)])))
    assert table["operator"].to_list() == ["aten::item"] * 2


def test_devices_above_the_limit_count_as_the_busiest(tmp_path):
    events = [testing.memory(number, 8, allocated=8, device=number) for number in range(200)]
    events += [testing.memory(300, 8, allocated=16, device=199)]
    table = memory.peak(read(testing.write_trace(tmp_path / "t.json", [testing.op("a", 0, 9), *events])))
    assert table.height == 64
    assert table["allocated_bytes"].to_list()[-1] == 16


def test_moments_in_nested_labels_belong_to_the_innermost(tmp_path):
    """The innermost has the moment, however many are open."""
    names = ("forward", "backward")
    events = nested(400, lambda number, start, end: testing.annotation(names[number % 2], start, end))
    table = steps.table(read(testing.write_trace(tmp_path / "t.json", [testing.step_mark(0, 0, 1200), *events])))
    assert table["forward_ms"].item() == pytest.approx(400e-6)
    assert table["backward_ms"].item() == pytest.approx(800e-6)


# --- what is packed


@pytest.mark.parametrize("limit", ["argument", "environment", "ratio"])
def test_archive_is_read_up_to_the_unpacked_limit(tmp_path, monkeypatch, limit):
    path = packed(tmp_path / "t.json.gz", ('{"traceEvents":[' + GOOD, 1), (" " * 1000, 3000), ("," + GOOD + "]}", 1))
    assert doubts(read(path)) == []
    if limit == "environment":
        monkeypatch.setenv("PERFHOOKS_MAX_UNPACKED_MB", "1.5")
    if limit == "ratio":
        monkeypatch.setattr(source, "FLOOR", 0)
    trace = read(path, max_unpacked_mb=1.5 if limit == "argument" else None)
    assert (len(trace), set(doubts(trace))) == (1, {"cut-off"})
    assert "PERFHOOKS_MAX_UNPACKED_MB" in trace.doubts[0].text
    said = "100 times" if limit == "ratio" else "1.5 MB"
    assert said in trace.doubts[0].text


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["show", "flame", "report", "merge"])
def test_command_line_sets_the_unpacked_limit(tmp_path, monkeypatch, capsys, verb):
    monkeypatch.setenv("PERFHOOKS_MAX_UNPACKED_MB", "")
    packed(tmp_path / "t.json.gz", ('{"traceEvents":[' + GOOD, 1), (" " * 1000, 3000), ("," + GOOD + "]}", 1))
    target = tmp_path if verb == "merge" else tmp_path / "t.json.gz"
    how = {"show": ["-t", "checks"], "flame": ["-f", "folded", "-o", "-"]}.get(verb, ["-o", str(tmp_path / "made")])
    told = []
    for limit in ("1", "9", "0"):
        monkeypatch.setattr("sys.argv", ["perfhooks", verb, str(target), *how, "--max-unpacked-mb", limit])
        with pytest.raises(SystemExit):
            app.main()
        said = capsys.readouterr()
        made = (tmp_path / "made").read_bytes().decode("utf-8", "replace") if (tmp_path / "made").exists() else ""
        told.append(said.out + said.err + made)
    assert told[0] != told[1]
    assert told[2].startswith("perfhooks: max-unpacked-mb must be a number of megabytes above 0, got 0") or made


@pytest.mark.slow
def test_archive_is_read_up_to_the_object_limit(tmp_path, monkeypatch):
    """Each costs memory, however short it is."""
    monkeypatch.setattr(source, "OBJECTS_FLOOR", 30_000)
    path = packed(
        tmp_path / "t.json.gz", ('{"traceEvents":[' + GOOD, 1), (',{"ph":"X","ts":1,"dur":1}', 400_000), ("]}", 1)
    )
    trace = read(path)
    assert len(trace) < 100_000
    assert set(doubts(trace)) == {"cut-off"}
    assert "objects" in trace.doubts[0].text
    assert len(read(path, max_unpacked_mb=50)) == 400_001


def test_object_limit_grows_with_the_archive(traces, monkeypatch):
    """A recorded trace has an object for some ten of its bytes, however long it is."""
    monkeypatch.setattr(source, "OBJECTS_FLOOR", 10)
    for path in traces.glob("*.json.gz"):
        assert "cut-off" not in doubts(read(path))


def test_argument_overrides_the_environment_variable(tmp_path, monkeypatch):
    path = packed(tmp_path / "t.json.gz", ('{"traceEvents":[' + GOOD, 1), (" " * 1000, 3000), ("]}", 1))
    monkeypatch.setenv("PERFHOOKS_MAX_UNPACKED_MB", "1")
    assert doubts(read(path, max_unpacked_mb=100)) == []


@pytest.mark.parametrize(("given", "said"), [(0, ""), ("many", ""), (None, "many"), (None, "-3"), (None, "nan")])
def test_invalid_limit_is_rejected(tmp_path, monkeypatch, given, said):
    monkeypatch.setenv("PERFHOOKS_MAX_UNPACKED_MB", said)
    with pytest.raises(OptionError, match="must be a number of megabytes above 0"):
        read(packed(tmp_path / "t.json.gz", ("[]", 1)), max_unpacked_mb=given)


def test_a_plain_file_has_no_limit(tmp_path):
    (tmp_path / "t.json").write_text(f"[{GOOD}{' ' * 3_000_000}]")
    assert doubts(read(tmp_path / "t.json", max_unpacked_mb=1)) == []


def test_recorded_traces_are_far_from_the_limit(recordings):
    for path in recordings.glob("*.json.gz"):
        data = path.read_bytes()
        text = gzip.decompress(data)
        assert len(text) < 100 / 4 * len(data), path.name
        assert text.count(b"{") < 0.5 / 3 * len(data), path.name


# --- what has no end

ENDLESS = {
    "string": '{"ph":"X","ts":1,"dur":1,"name":"' + "a" * 9000 + '"}',
    "argument": '{"ph":"X","ts":1,"dur":1,"args":{"Input Dims":[' + "[1]," * 3000 + "1]}}",
    "braces in a string": '{"ph":"X","ts":1,"dur":1,"name":"' + '},{\\"' * 2000 + '"}',
    "space": '{"ph":"X","ts":1,"dur":1}' + " " * 9000,
}


@pytest.fixture
def short(monkeypatch):
    """Events are too long from some kilobytes on."""
    for name, value in {"BLOCK": 300, "LONGEST": 3000, "_LOOKAHEAD": 100, "_PATIENCE": 3}.items():
        monkeypatch.setattr(reader, name, value)
    monkeypatch.setattr(source, "BLOCK", 300)
    monkeypatch.setattr(source, "_PACKED_BLOCK", 300)


@pytest.mark.parametrize("what", ENDLESS)
def test_endless_event_loses_few_other_events(tmp_path, short, monkeypatch, what):
    kept, held = [], []
    spy = spied(reader._Reader._is_past_endless, lambda _, text: kept.append(len(text)))
    monkeypatch.setattr(reader._Reader, "_is_past_endless", spy)
    look = spied(reader._Reader._last_boundary, lambda _, text, searched: held.append(len(text)))
    monkeypatch.setattr(reader._Reader, "_last_boundary", look)
    text = ",".join([*[GOOD] * 20, ENDLESS[what], *[GOOD] * 20])
    (tmp_path / "t.json").write_text('{"traceEvents":[' + text + '],"distributedInfo":{"rank":3}}')
    trace = read(tmp_path / "t.json")
    assert len(trace) >= 39
    assert trace.rank == 3
    assert (doubts(trace) == ["dropped-events"]) == (len(trace) < 41)
    assert max(kept[1:], default=0) < 1000, "what is passed over is not kept"
    assert max(held) < 4500


@pytest.mark.parametrize("text", ["x" * 20_000, "[" * 20_000], ids=["string", "brackets"])
def test_endless_keys_lose_no_event(tmp_path, short, text):
    (tmp_path / "t.json").write_text('{"traceEvents":[' + ",".join([GOOD] * 20) + '],"x":"' + text)
    trace = read(tmp_path / "t.json")
    assert len(trace) == 20
    assert doubts(trace) == ["unread-metadata"]


def test_endless_keys_before_the_events_are_no_trace(tmp_path, short):
    (tmp_path / "t.json").write_text('{"x":"' + "x" * 20_000 + f'","traceEvents":[{GOOD}]}}')
    with pytest.raises(TraceError, match="no list of traceEvents in its first"):
        read(tmp_path / "t.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents":[' + "[" * 100_000,
        '{"traceEvents":[' + GOOD + ',{"args":' + "[" * 100_000,
        '{"traceEvents":[' + GOOD + '],"x":' + "[" * 100_000,
        '{"traceEvents":[' + GOOD + ',{"ph":"X","ts":1e999999999,"id":' + "7" * 9000 + "}]}",
        '{"traceEvents":[{"ph":"X","ts":"soon","pid":1}]}',
        '{"x":' + "[" * 100_000,
    ],
    ids=["brackets", "in an event", "behind", "numbers", "words", "before"],
)
def test_merge_rejects_unreadable_files_in_one_line(tmp_path, text):
    (tmp_path / "rank0.pt.trace.json").write_text(text)
    writer = merging._Writer(io.BytesIO(), 1)
    try:
        writer.add(0, 0, tmp_path / "rank0.pt.trace.json", 1.0)
    except PerfhooksError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is fine


def test_merge_reads_more_text_until_the_end_of_an_event(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_events, "BLOCK", 1000)
    monkeypatch.setattr(source, "BLOCK", 1000)
    monkeypatch.setattr(source, "_PACKED_BLOCK", 1000)
    looked = []
    whole_events = raw_events.RawEvents._whole_events
    monkeypatch.setattr(
        raw_events.RawEvents, "_whole_events", spied(whole_events, lambda _, text: looked.append(len(text)))
    )
    (tmp_path / "t.json").write_text('{"traceEvents":[{"ph":"X","ts":1,"name":"' + "x" * 200_000 + '"}]}')
    assert sum(map(len, raw_events.RawEvents(tmp_path / "t.json", merging._DECODE).lists())) == 1
    assert len(looked) < 12


# --- what no table can hold


@pytest.mark.parametrize("rank", [2**70, 2**40, -1, 1.5, "0", True, None])
def test_a_rank_that_no_job_has_is_none(tmp_path, rank):
    assert (
        read(testing.write_trace(tmp_path / "t.json", [testing.op("a", 0, 1)], distributedInfo={"rank": rank})).rank
        is None
    )


@pytest.mark.parametrize("decode", [decode_object, decode_value])
def test_values_that_only_json_can_express_are_replaced(decode):
    text = b'{"a":[1,%d,%d,{"\\ud800b":"\\ud83d\\ude00 \\udc00"}],"c":true}' % (2**70, -(2**63))
    assert decode(text) == {"a": [1, None, -(2**63), {"?b": "😀 ?"}], "c": True}
    json.dumps(decode(text), ensure_ascii=False).encode()


def test_torn_archive_is_translated_up_to_the_tear(tmp_path, caplog):
    events = [testing.annotation(f"label{number}", number, number + 1) for number in range(20_000)]
    path = testing.write_trace(tmp_path / "t.json.gz", events)
    path.write_bytes(path.read_bytes()[:-5000])
    made = io.BytesIO()
    translate(path, made)
    text = gzip.decompress(made.getvalue())
    assert text.startswith(b"{")
    assert text.count(b'"cat": "cpu_op"') > 10_000
    assert b"user_annotation" not in text
    assert "incomplete" in caplog.text


HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eright \x7f\x00"


@pytest.mark.parametrize("name", ["operators", "kernels", "modules", "stacks", "memory", "syncs", "checks"])
def test_no_name_moves_the_cursor_of_a_terminal(tmp_path, name):
    events = [
        testing.op(f"aten::{HOSTILE}", 0, 90, external=1),
        testing.python_frame(f"a.py(1): {HOSTILE}", 0, 90),
        testing.python_frame(f"nn.Module: {HOSTILE}", 0, 90),
        testing.launch(1, 1, 2, name="cudaStreamSynchronize"),
        testing.kernel(1, 5, 9, name=HOSTILE, external=1),
        testing.memory(5, 8, allocated=8),
    ]
    trace = read(testing.write_trace(tmp_path / "t.json", events, WARNING=[HOSTILE]))
    screen = io.StringIO()
    console = Console(file=screen, width=200, color_system=None, highlight=False)
    terminal_tables.draw({name: show.compute(trace, name)}, console=console)
    assert "red" in screen.getvalue()
    assert {letter for letter in screen.getvalue() if not letter.isprintable()} == {"\n"}


def test_errors_and_problems_are_printable(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["perfhooks", "show", str(tmp_path / HOSTILE.replace("\x00", ""))])
    with pytest.raises(SystemExit):
        app.main()
    assert "\x1b" not in capsys.readouterr().err


# --- and all of it together

QUICK = ("bad-times", "bad-ends", "open-events", "nested-then-memory", "threads", "brackets-in-an-event")


@pytest.mark.process
def test_small_attacks_stay_within_their_bounds():
    command = [sys.executable, str(SCRIPT), "--size", "1500", "--together", *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
