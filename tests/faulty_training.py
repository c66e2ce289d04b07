"""A training under three profilers, with all that can happen to whoever watches; a script, which needs a folder.

It prints what became of each fault, and ends with code 3 in the middle of a slow step.
"""

import logging
import os
import resource
import sys
import threading
import time
from pathlib import Path

import torch
from slow_parts import NAP_S, too_short

import perfhooks
from perfhooks.record.watch import watch, watcher

STEPS = 100
said = []
profilers = []


class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


def train(after):
    """A model after some steps, which depends on nothing but its seed."""
    torch.manual_seed(7)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(STEPS):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
        after(step)
    return torch.cat([each.flatten() for each in model.parameters()])


def is_watched():
    return any(thread.name == watcher.NAME for thread in threading.enumerate())


def be_slow():
    while is_watched() and too_short():
        time.sleep(NAP_S)


def fork():
    """A child in the middle of being sampled: nobody watches it, and it may go on with the loop."""
    be_slow()
    child = os.fork()
    if not child:
        for prof in profilers:
            prof.step()
        os._exit(is_watched())
    print("forked", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def trace():
    sys.settrace(lambda *_: None)
    be_slow()
    sys.settrace(None)


def fill_the_disk():
    """No file may grow from now on; what was slow before is in its file."""
    wait_until_written()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    be_slow()


def empty_the_disk():
    wait_until_written()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def lock_the_folders():
    """Nobody may write into them from now on; root may do anything, so we are somebody else."""
    wait_until_written()
    for prof in profilers:
        for path in (prof.folder, *prof.folder.glob("rank0.*")):
            path.chmod(0o555)
    if not os.getuid():
        os.seteuid(65534)
    be_slow()


def unlock_the_folders():
    wait_until_written()
    os.seteuid(os.getuid())
    for prof in profilers:
        for path in (prof.folder, *prof.folder.glob("rank0.*")):
            path.chmod(0o755)


class Counted(watch.Watch):
    """Counts how often it has looked at its loop and has tried to write what was slow."""

    times = 0

    def tick(self):
        super().tick()
        self.times += 1


def wait_until_written():
    """All steps that have ended are known to all, which have tried to write those that were slow."""
    watches = watcher._watcher._watches.values()
    # what goes on may have begun before the step ended
    enough = [each.times + 2 for each in watches]
    while is_watched() and any(each.times < times for each, times in zip(watches, enough, strict=True)):
        time.sleep(NAP_S)


FAULTS = {
    30: trace, 40: fork, 50: fill_the_disk, 51: empty_the_disk, 60: lock_the_folders, 61: unlock_the_folders,
    70: be_slow,
}  # fmt: skip


def after(step):
    for prof in profilers:
        prof.step()
    FAULTS.get(step, int)()


def main(out):
    logging.getLogger("perfhooks").addHandler(Said())
    watcher.Watch = Counted
    watcher._SHARE = 1.0  # it looks at every chance, whatever looks cost
    watch.STATUS_S = watch.WRITE_S = 0.0  # it writes whenever it can
    bare = train(int)
    profilers.extend(perfhooks.Profiler(schedule="on request", out=out, run=name, poll=0.05) for name in "abc")
    for prof in profilers:
        prof.start()
    print("equal", torch.equal(train(after), bare))
    failed = [line for line in said if "writing the table of slow steps failed" in line]
    print("said", len(failed))
    print("watched", is_watched())
    be_slow()
    sys.exit(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
