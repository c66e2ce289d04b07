"""Trainings without torch that take turns: ``python held_training.py STEPS WORK [LOG] [KIND]``.

Each step does so much work, and is written into the log with its beginning and its end, in nanoseconds.
"""

import json
import os
import signal
import subprocess
import sys
import time

from perfhooks.record.launch.turns import HeldSteps

HANDLED = 3
"""The exit code of one whose signal handler raises while it is held."""


def work(count):
    return sum(number * number for number in range(count))


def begin_child():
    """A process that works ahead for as long as its parent lives, as a loader's worker does."""
    code = f"import os, time\nwhile os.getppid() == {os.getpid()}: time.sleep(0.01)"
    return subprocess.Popen([sys.executable, "-c", code])


def fork(held):
    """A forked child makes steps of its own, and takes no part."""
    if os.fork() == 0:
        for _ in range(1000):
            held.step()
        os._exit(0)
    _, status = os.wait()
    assert status == 0


def stop(*_):
    raise SystemExit(HANDLED)


def main(steps, amount, log="", kind=""):
    held = HeldSteps(json.loads(os.environ["PERFHOOKS_RUN"])["turns"])
    child = begin_child() if kind in ("child", "stopped_child", "sigchld") else None
    if kind == "stopped_child":
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    if kind == "sigchld":
        signal.signal(signal.SIGCHLD, lambda *_: os.wait())
    if kind == "handler":
        signal.signal(signal.SIGUSR1, stop)
    times = []
    for number in range(int(steps)):
        begin = time.monotonic_ns()
        work(int(amount))
        times.append((begin, time.monotonic_ns()))
        if kind == "fork" and number == 1:
            fork(held)
        if kind == "slow_fail" and number == 400:
            held.let_go()
            time.sleep(0.5)
        if number == {"fail": 5, "slow_fail": 400}.get(kind):
            raise SystemExit("the disk is full")
        held.step()
    if log:
        with open(f"{log}.{os.environ.get('RANK', '0')}.{os.getpid()}", "w") as file:  # noqa: PTH123
            json.dump(times, file)
    if child is not None:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
