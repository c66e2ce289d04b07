"""Reading Kineto traces and computing tables from them; imports neither torch nor polars."""

from perfhooks.trace.kinds import DEVICE_WORK, Kind, Lane
from perfhooks.trace.model import Doubt, Flows, Instants, Thread, Trace
from perfhooks.trace.reading.reader import read

__all__ = ["DEVICE_WORK", "Doubt", "Flows", "Instants", "Kind", "Lane", "Thread", "Trace", "read"]
