"""Trainings in processes of their own that need not import torch again: each is forked from one that has.

As a script: imports some modules, takes jobs from a socket and forks for each; what a job does ends as any Python
program ends, but that what was imported is only taken apart where a test is about the end: that copies every page, and
takes 0.7 s of a processor. It serves all processes that share the tests, and ends when none of them listens any more.
"""

import atexit


class End:
    """The last of all that Python calls at its end, as it is the first that was registered."""

    def __init__(self):
        self.code = None
        """With which the job ends, where it ends as a program does that no signal ends."""
        self._is_whole = False
        atexit.register(self._leave)

    def run(self, code, names, *, is_whole):
        """Run a script; its names are in a dictionary."""
        self._is_whole = is_whole
        try:
            exec(code, names)
        except SystemExit as error:
            self.code = 0 if error.code is None else error.code
            raise
        except Exception:
            self.code = 1
            raise
        self.code = 0

    def _leave(self):
        if isinstance(self.code, int) and not self._is_whole:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (AttributeError, OSError, ValueError):
                    return  # Python has a word for that, and an exit code
            os._exit(self.code & 0xFF)


if __name__ == "__main__":
    end = End()

import contextlib
import hashlib
import importlib
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from filelock import FileLock

CONTEXT = "MUTANTS_CONTEXT"
"""Says which test runs, where `make mutants` measures what each of them enters."""


class Process:
    """A script in a process of its own, as ``subprocess.Popen`` would give it.

    Args:
        channel: Where the process that is warm listens.
        file: The script.
        arguments: What it is told.
        folder: Where it is run; without it, where the script is.
        environment: Its variables, where they are not our own.
        is_leader: Whether it leads a session, as one that a terminal starts.
        is_whole: Whether its end takes apart what was imported, as that of a process of its own does.
    """

    def __init__(self, channel, file, *arguments, folder=None, environment=None, is_leader=False, is_whole=False):
        ins, outs, errors, status = (os.pipe() for _ in range(4))
        self.stdin, self._status = os.fdopen(ins[1], "w"), os.fdopen(status[0])
        self.stdout, self.stderr = os.fdopen(outs[0]), os.fdopen(errors[0])
        theirs = [ins[0], outs[1], errors[1], status[1]]
        job = {
            "words": [str(file), *map(str, arguments)],
            "folder": str(folder or file.parent),
            "environment": dict(os.environ if environment is None else environment),
            "is_leader": is_leader,
            "is_whole": is_whole,
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
        # what is kept from the garbage collector here triton takes for leaks, and its last word ends no line
        errors = re.sub(r"nanobind: leaked.*?refleaks\.html\n?", "", said[self.stderr], flags=re.DOTALL)
        return said[self.stdout], errors

    def close(self):
        """End it, if it has not ended, and let go of its streams."""
        self.kill()
        self.wait(60)
        for stream in (self.stdin, self.stdout, self.stderr, self._status):
            stream.close()


def run(channel, file, *arguments, timeout, **how):
    """What ``subprocess.run`` gives of a script, with what it wrote as text."""
    return _ended(Process(channel, file, *arguments, **how), [str(file), *arguments], timeout)


def _ended(process, words, timeout):
    try:
        out, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(words, process.returncode, out, errors)
    finally:
        process.close()


def beginning(channel, folder, *words, **how):
    """A command of perfhooks in a process of its own, and the script that `perfhooks run` makes of it; gives that."""
    return Process(channel, Path(__file__).with_name("warm_launch.py"), *words, folder=folder, **how)


def command(channel, folder, *words, timeout=300, **how):
    """What ``subprocess.run`` gives of it."""
    return _ended(beginning(channel, folder, *words, **how), words, timeout)


def free_port():
    """A port that is free, and is given to nobody who asks for any before it is used."""
    while True:
        # below those that Linux gives; hypothesis has all processes draw the same numbers otherwise
        port = random.SystemRandom().randrange(16_384, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def of_ranks():
    """The variables that torchrun would give each of two ranks."""
    launch = uuid.uuid4()
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": str(launch)}
    job |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    errors = f"/tmp/torchelastic_{launch.hex}/{launch}_drawn/attempt_0"
    return [
        {**job, "RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_ERROR_FILE": f"{errors}/{rank}/error.json"}
        for rank in "01"
    ]


def ranks(channel, file, *arguments, folder, environment, timeout):
    """What ``subprocess.run`` gives of each of two ranks that torchrun would start."""
    started = [Process(channel, file, *arguments, folder=folder, environment=environment | own) for own in of_ranks()]
    try:
        return [_ended(process, arguments, timeout) for process in started]
    finally:
        for process in started:
            process.close()  # a rank waits half an hour for one that has failed


@contextlib.contextmanager
def warm(place, *modules):
    """Gives a channel to a process that is warm, which begins where none of this place serves yet.

    Args:
        place: Whoever names the same one has the same process; below it lies a lock.
        modules: What it imports besides torch, as far as it is installed.
    """
    address = b"\0" + hashlib.sha256(str(place).encode()).hexdigest().encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ours:
        with FileLock(lock := f"{place}.lock"):
            if ours.connect_ex(address):
                _start(address, ours, lock, modules)
        yield ours


def _start(address, ours, lock, modules):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        ours.connect(address)  # it ends when nobody is connected
        command = [sys.executable, __file__, str(listening.fileno()), lock, *modules]
        # what is measured of its children is each test's own, see `begin`
        quiet = os.environ | {CONTEXT: ""}
        subprocess.run(command, pass_fds=[listening.fileno()], env=quiet, check=True)


def serve(listening, lock):
    """Fork for each job, and say its number and its exit code; returns the job of a child."""
    waiting, running = [listening], {}
    while True:
        _end_if_alone(waiting, lock)
        for each in select.select([*waiting, *running], [], [])[0]:
            if each is listening:
                waiting.append(listening.accept()[0])
            elif each in running:
                child, status = running.pop(each)
                _tell(status, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                os.close(status)
                os.close(each)
            else:
                message, given, _, _ = socket.recv_fds(each, 1 << 20, 4)
                if not message:
                    each.close()
                    waiting.remove(each)
                    continue
                child = os.fork()
                if not child:
                    for other in waiting:
                        other.close()
                    for other, (_, status) in running.items():
                        os.close(other)
                        os.close(status)
                    os.close(given[3])
                    return begin(json.loads(message), given[:3])
                for stream in given[:3]:
                    os.close(stream)
                running[os.pidfd_open(child)] = child, given[3]
                _tell(given[3], child)


def _end_if_alone(waiting, lock):
    """End this process where nobody is connected; nobody connects while it holds the lock, until it has ended."""
    if len(waiting) == 1:
        with FileLock(lock):
            if not select.select(waiting, [], [], 0)[0]:
                os._exit(0)  # with all that was imported nothing is to be done


def _tell(status, number):
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        os.write(status, b"%d\n" % number)


def begin(job, streams):
    """Become what the job asks for, in a child; returns the job."""
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    if job["is_leader"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    if (measuring := sys.modules.get("coverage")) is not None and measuring.Coverage.current() is not None:
        measuring.Coverage.current().switch_context(os.environ.get(CONTEXT, ""))
    return job


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # whoever has started it need not wait for it
    import gc

    import torch
    import torch._inductor.config  # noqa: F401 -- a profiler imports it when it first starts, and sympy: 1.5 s

    from perfhooks import Profiler  # noqa: F401
    from perfhooks.core.options import DEFAULTS

    DEFAULTS["exit_timeout"] = 200.0  # tests look at the files once a training has ended, however busy the machine is

    for module in sys.argv[3:]:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    gc.freeze()  # a child that looks at every object when it ends copies every page
    job = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    sys.argv = job["words"]
    file = sys.argv[0]
    sys.path[0] = os.path.dirname(file)  # noqa: PTH120
    with open(file) as text:  # noqa: PTH123
        code = compile(text.read(), file, "exec")
    names = sys.modules["__main__"].__dict__
    names.update(__file__=file)
    end.run(code, names, is_whole=job["is_whole"])
