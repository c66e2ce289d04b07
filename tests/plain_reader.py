"""What is in a trace as the plainest reader sees it: an oracle that shares no code with ours."""

import functools
import gzip
import json
import re
from decimal import Decimal

WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
"""Work of devices; the last three as torch 1.9 wrote it."""
CALLS = {"cuda_runtime", "cuda_driver"}


@functools.lru_cache(maxsize=2)
def content(path):
    """The whole file, every digit of its times included."""
    return json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)


def slices(path, categories=None):
    """What has a start and an end, in the order of the file."""
    events = (event for event in content(path)["traceEvents"] if event["ph"] == "X")
    return [event for event in events if categories is None or event["cat"] in categories]


def nanos(event):
    """When a slice starts and ends, but for the base of the file."""
    start = int(event["ts"] * 1000)
    return start, start + int(event["dur"] * 1000)


def marked_steps(path):
    """The numbers of the steps; where none is marked, all of the trace is one without a number."""
    marks = (re.fullmatch(r"ProfilerStep#(\d+)", event["name"]) for event in slices(path, {"user_annotation"}))
    return [int(mark[1]) for mark in marks if mark] or [None]


def unowned(path):
    """What a device did for calls of no operator: of none by its number, or in old traces, of none around the call."""
    host, work = slices(path, {"cpu_op", "user_annotation", "Operator"}), slices(path, WORK)
    calls = {event["args"]["correlation"]: event for event in slices(path, CALLS)}
    told = [(each["args"].get("External id"), each["args"]["correlation"]) for each in work]
    if any(number not in (None, call) for number, call in told):
        numbers = {event["args"]["External id"] for event in host}
        return [each for each in work if each["args"].get("External id") not in numbers]
    # torch before 2.1 writes the correlation there, and torch's new recorder cuspy nothing
    return [each for each in work if not is_inside(calls[each["args"]["correlation"]], host)]


def is_inside(call, others):
    """Whether one of the others holds a slice, on its thread."""
    (start, end), where = nanos(call), (call["pid"], call["tid"])
    around = (nanos(each) for each in others if (each["pid"], each["tid"]) == where)
    return any(first <= start <= end <= last for first, last in around)
