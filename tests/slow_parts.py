"""Parts of a training that can be slow, in a module of their own; for slow_training.py."""

import itertools
import pickle
import sys
import threading
import time

import torch

from perfhooks.record.watch import watcher
from perfhooks.record.watch.causes import spent
from perfhooks.run.timeline import clock

ENOUGH = 30
"""Looks at a slow step, after which it may end: it lasts as long as the watcher needs on a busy machine."""
MOSTLY = 0.75
"""The share of them, and of the step, in which what was planted must be seen: a busy machine can make a step slow
before it comes to that, and keep from it whoever looks."""
NAP_S = 0.02


def too_short(function=None):
    """Whether a function, or else the caller, has not been seen enough in the step that goes on, by any who watches."""
    code = sys._getframe(1).f_code if function is None else function.__code__
    watches = list(watcher._watcher._watches.values())
    return not watches or not all(is_slow_and_seen(code, watch, watch._slow._watched) for watch in watches)


def is_slow_and_seen(code, watch, watched):
    """Whether the step is slow by any limit of its last steps, and the code has been seen enough in it."""
    if watched is None or clock() - watched.begin < 2 * watch._pace.limit_ns:
        return False
    return seen_enough(code, watched.begin, watched.samples[:])


_SEEN = {}
"""Looks that have been examined, and those of them that saw the code, by code and begin of the step."""


def seen_enough(code, begin, looks):
    examined, seen = _SEEN.setdefault((code, begin), ([], []))
    new = looks[len(examined) :]  # to examine all again would be computing, and not the wait that is planted
    examined += new
    seen += [look for look in new if any(frame.code is code for frame in look.stack)]
    return len(seen) >= max(ENOUGH, MOSTLY * len(looks)) and spent(seen) >= MOSTLY * (clock() - begin)


class Trainer:
    """What many call their own loop."""

    def __init__(self):
        self.model = torch.nn.Identity()
        self.model.register_forward_hook(lambda *_: time.sleep(NAP_S))

    @torch.no_grad()
    def collect(self):
        while too_short():
            self.model(torch.ones(1))  # step 120: evaluation

    def log_metrics(self):
        event = event_after(self.log_metrics)
        event.wait()  # step 130: blocking call

    def dump_state(self, path):
        read_late(path, self.dump_state)
        with path.open("wb") as file:  # step 140: checkpoint
            pickle.dump({}, file)


def event_after(function):
    """An event that is set when the function has been seen enough. Who waits for it needs no CPU meanwhile."""
    event = threading.Event()

    def set_late():
        while too_short(function):
            time.sleep(NAP_S)
        event.set()

    threading.Thread(target=set_late).start()
    return event


def read_late(path, writer):
    """Have somebody read a pipe only when the function that writes has stood there long enough."""

    event = event_after(writer)
    threading.Thread(target=lambda: event.wait() and path.read_bytes()).start()


def scaled(values, times):
    return [torch.relu(values * times + place) for place in range(40)]


def train_one():
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    for times in itertools.count():
        compiled(torch.ones(8), times)  # step 150: compilation
        if not too_short():
            break


def wait_for_lock():
    lock, event = threading.Lock(), event_after(wait_for_lock)
    lock.acquire()
    threading.Thread(target=lambda: event.wait() and lock.release()).start()
    with lock:  # step 160: blocking call
        pass
