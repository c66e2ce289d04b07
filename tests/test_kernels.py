from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_reader import WORK, slices
from twins import TRACES

from perfhooks import KernelTable, OptionError, testing
from perfhooks.run.capture import Capture
from perfhooks.testing import kernel, op
from perfhooks.trace import read
from perfhooks.trace.nesting import device
from perfhooks.trace.tables import kernels

MS = 1e-6
OCCUPANCY = "est. achieved occupancy %"


def trace_of(tmp_path, events, **metadata):
    return read(testing.write_trace(tmp_path / "t.json", events, **metadata))


def rows(tmp_path, events, make=kernels.table):
    return make(trace_of(tmp_path, events)).rows(named=True)


def nanos(value):
    return None if value is None else round(value / MS)


spans = st.tuples(st.integers(0, 80), st.integers(0, 20))
work = st.lists(
    st.tuples(
        spans, st.sampled_from(["a", "b"]), st.integers(1, 2), st.integers(0, 1), st.none() | st.integers(0, 100)
    ),
    max_size=12,
)


def slow(pieces):
    """The obvious way: for every name, look at every piece, and at every other on its stream."""
    found = {}
    for start, end, name, stream, place, occupancy in pieces:
        others = sorted((s, -e) for s, e, _, other, where, _ in pieces if (other, where) == (stream, place))
        index = others.index((start, -end))
        before = max((-e for _, e in others[:index]), default=None)
        row = found.setdefault((place, name), {"spans": [], "gaps": [], "occupancy": []})
        row["spans"].append(own(start, end, others))
        row["gaps"] += [] if before is None else [max(start - before, 0)]
        row["occupancy"] += [] if occupancy is None else [(occupancy, own(start, end, others))]
    return found


def own(start, end, others):
    """The length of one piece less those that lie in it and in no shorter one: the last that is open holds a piece."""
    opened, length = [], end - start
    for begin, last in ((begin, -last) for begin, last in others):
        while opened and (begin >= opened[-1][1] or last > opened[-1][1]):
            opened.pop()
        length -= last - begin if opened and opened[-1] == (start, end) else 0
        opened.append((begin, last))
    return length


@pytest.mark.slow
@given(work)
def test_table_equals_a_simple_computation(tmp_path_factory, drawn):
    pieces = [
        (start, start + span, name, stream, place, occupancy) for (start, span), name, stream, place, occupancy in drawn
    ]
    pieces = [
        piece
        for number, piece in enumerate(pieces)
        if (piece[0], piece[1], *piece[3:5]) not in {(each[0], each[1], *each[3:5]) for each in pieces[:number]}
    ]
    events = [op("nothing", 0, 1)] + [
        kernel(
            number,
            start,
            end,
            name=name,
            stream=stream,
            device=place,
            **({} if occupancy is None else {OCCUPANCY: occupancy}),
        )
        for number, (start, end, name, stream, place, occupancy) in enumerate(pieces, 1)
    ]
    expected = slow(pieces)
    found = {(row["device"], row["name"]): row for row in rows(tmp_path_factory.mktemp("k"), events)}
    assert found.keys() == expected.keys()
    for key, row in found.items():
        lengths, gaps, weights = (expected[key][name] for name in ("spans", "gaps", "occupancy"))
        assert (row["count"], nanos(row["total_ms"])) == (len(lengths), sum(lengths))
        assert row["mean_ms"] == pytest.approx(sum(lengths) / len(lengths) * MS)
        assert row["gap_before_ms"] == (pytest.approx(sum(gaps) / len(gaps) * MS) if gaps else None)
        weight = sum(span for _, span in weights)
        mean = sum(each * span for each, span in weights) / weight if weight else None
        assert row["occupancy_percent"] == (None if mean is None else pytest.approx(mean))


@pytest.mark.parametrize("name", TRACES)
def test_every_kernel_of_any_dialect_is_counted_once(traces, name):
    path = traces / f"{name}.json.gz"
    trace, work = read(path), slices(path, WORK)
    spans = int(sum(each["dur"] for each in work) * 1000)
    for table in (kernels.table(trace), kernels.by_launch(trace)):
        assert table["count"].sum() == len(trace.device_rows) == len(work)
        assert nanos(table["total_ms"].sum()) == pytest.approx(spans, abs=1)


@pytest.mark.parametrize("name", ["a100-ddp2-train", "mi300-bert-small", "sampled-128ranks-rank0"])
def test_every_kernel_of_any_dialect_has_an_operator(traces, name):
    """By its external id, or in old traces, where that is something else, by the time of its launch."""
    trace = read(traces / f"{name}.json.gz")
    assert (device.owners(trace) >= 0).all()
    assert kernels.table(trace)["operators"].null_count() == 0


# --- the handler


def test_handler_writes_nothing_without_a_device(tmp_path):
    assert list(KernelTable().artifacts(Capture(), trace_of(tmp_path, [op("a", 0, 1)]))) == []


@pytest.mark.parametrize("options", [{"by_launch": 1}, {"row_limit": 0}, {"row_limit": "all"}])
def test_the_handler_refuses_bad_options(options):
    with pytest.raises(OptionError):
        KernelTable(**options)
