"""Trainings in processes of their own that need not import torch again: each is forked from one that has.

As a script: takes jobs from a socket and forks for each; what a job does ends as any Python program ends.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


class Process:
    """A script in a process of its own, as ``subprocess.Popen`` would give it.

    Args:
        channel: Where the process that is warm listens.
        file: The script.
        arguments: What it is told.
        folder: Where it is run; without it, where the script is.
        environment: Its variables, where they are not our own.
        is_leader: Whether it leads a session, as one that a terminal starts.
    """

    def __init__(self, channel, file, *arguments, folder=None, environment=None, is_leader=False):
        ins, outs, errors, status = (os.pipe() for _ in range(4))
        self.stdin, self._status = os.fdopen(ins[1], "w"), os.fdopen(status[0])
        self.stdout, self.stderr = os.fdopen(outs[0]), os.fdopen(errors[0])
        theirs = [ins[0], outs[1], errors[1], status[1]]
        job = {
            "words": [str(file), *map(str, arguments)],
            "folder": str(folder or file.parent),
            "environment": dict(os.environ if environment is None else environment),
            "is_leader": is_leader,
        }
        socket.send_fds(channel, [json.dumps(job).encode()], theirs)
        for each in theirs:
            os.close(each)
        self.pid = int(self._status.readline())
        self.returncode = None
        self._ended = threading.Thread(target=self._wait, daemon=True)
        self._ended.start()

    def _wait(self):
        self.returncode = int(self._status.readline())

    def poll(self):
        return self.returncode

    def wait(self, timeout):
        self._ended.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self):
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)

    def communicate(self, text="", *, timeout):
        """Write to it, and give what it writes until its end."""
        until = time.monotonic() + timeout
        with contextlib.suppress(BrokenPipeError), self.stdin:
            self.stdin.write(text)
        said = {}
        readers = [
            threading.Thread(target=lambda stream=stream: said.__setitem__(stream, stream.read()), daemon=True)
            for stream in (self.stdout, self.stderr)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(until - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        self.wait(max(until - time.monotonic(), 0.1))
        return said[self.stdout], said[self.stderr]

    def close(self):
        """End it, if it has not ended, and let go of its streams."""
        self.kill()
        self.wait(60)
        for stream in (self.stdin, self.stdout, self.stderr, self._status):
            stream.close()


def run(channel, file, *arguments, timeout, **how):
    """What ``subprocess.run`` gives of a script, with what it wrote as text."""
    process = Process(channel, file, *arguments, **how)
    try:
        out, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess([str(file), *arguments], process.returncode, out, errors)
    finally:
        process.close()


@contextlib.contextmanager
def warm():
    """Gives the channel to a process that is warm, and ends it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        yield ours
        ours.close()
        process.wait(60)


def serve(channel):
    """Fork for each job; returns the job of a child."""
    # nobody waits for those who wait for the children
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, given, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not message:
            sys.exit()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            return begin(json.loads(message), given[:3], given[3])
        for each in given:
            os.close(each)


def begin(job, streams, status):
    """Fork into the child, and somebody who says its number and its exit code."""
    child = os.fork()
    if child:
        for each in (*streams, 0, 1, 2):
            os.close(each)
        os.write(status, b"%d\n" % child)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.close(status)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    if job["is_leader"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    return job["words"]


if __name__ == "__main__":
    import gc

    import torch
    import torch._inductor.config  # noqa: F401 -- a profiler imports it when it first starts, and sympy: 1.5 s

    from perfhooks import Profiler  # noqa: F401

    gc.freeze()  # a child that looks at every object when it ends copies every page
    sys.argv = serve(socket.socket(fileno=int(sys.argv[1])))
    file = sys.argv[0]
    sys.path[0] = os.path.dirname(file)  # noqa: PTH120
    with open(file) as text:  # noqa: PTH123
        code = compile(text.read(), file, "exec")
    sys.modules["__main__"].__dict__.update(__file__=file)
    exec(code)
