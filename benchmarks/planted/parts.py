"""What makes some steps of the trainings beside it slow, each for some 0.4 s; a line of their output says which."""

import atexit
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SLOW_S = 0.4
FIRST, GAP = 180, 20
"""The first step with a plant, and the steps from one to the next."""
NEIGHBOURS = 24
folder = tempfile.TemporaryDirectory()


def plan(names, times):
    """Which step has which plant: all of them in turn."""
    turns = [name for _ in range(times) for name in names]
    return {FIRST + GAP * place: name for place, name in enumerate(turns)}


def say(step, name):
    """What the step that goes on is slow for."""
    print(f"planted {step} {name}", flush=True)


def long_enough():
    """Asks whether it has been slow for long enough, from now on."""
    until = time.monotonic() + SLOW_S
    return lambda: time.monotonic() >= until


class Images(Dataset):
    """Batches in memory, one of which may come late."""

    slow = ""

    def __len__(self):
        return 64 * 40

    def __getitem__(self, index):
        kind, self.slow = self.slow, ""
        if kind == "wait":
            time.sleep(SLOW_S)
        elif kind == "read":
            read_slowly()
        return torch.full((256,), index / 1e4), index % 10


def read_slowly():
    """Read a file that is in no cache."""
    path, done = os.path.join(folder.name, "images.bin"), long_enough()
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(os.urandom(1 << 24))
            os.fsync(file.fileno())
    while not done():
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 16) and not done():
                pass


def loaders():
    data = Images()
    return DataLoader(data, batch_size=64, shuffle=True), DataLoader(Images(), batch_size=64), data


def network():
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 1000
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


heap = [[number] for number in range(700_000)]


def clean_up():
    done = long_enough()
    while not done():
        gc.collect()


state = {f"layer {number}": torch.ones(1024, 1024) for number in range(8)}


def keep(model):
    done = long_enough()
    while not done():
        torch.save(state, f"{folder.name}/last.pt")


def record_results(model):
    done = long_enough()
    with open(os.path.join(folder.name, "results.txt"), "ab") as file:
        while not done():
            file.write(b"0.1\n" * 4000)
            file.flush()
            os.fsync(file.fileno())


class Queue:
    """Something that another thread has, too."""

    def __init__(self):
        self.lock = threading.Lock()

    def publish(self, model):
        has_it = threading.Event()
        threading.Thread(target=self.hold, args=(has_it,)).start()
        has_it.wait()
        with self.lock:
            pass

    def hold(self, has_it):
        with self.lock:
            has_it.set()
            time.sleep(SLOW_S)


def grow_buffer(model):
    done, buffers = long_enough(), []
    while not done():
        buffers = [*buffers[-3:], torch.ones(16_000_000)]


def count_words(model):
    done, words = long_enough(), {}
    while not done():
        for number in range(1000):
            key = str(number * number % 997)
            words[key] = words.get(key, 0) + 1


def histogram(model):
    done, bins = long_enough(), {}
    values = model[0].weight.detach().flatten()
    while not done():
        for place in range(100):
            value = round(values[place].item(), 2)
            bins[value] = bins.get(value, 0) + 1


class Environment:
    """A game: each move takes a little Python."""

    def step(self, action):
        total = sum(number * number for number in range(300))
        return torch.randn(1, 256), float(action) + total % 2


def collect_episodes(model):
    done, game, rewards = long_enough(), Environment(), []
    seen = torch.randn(1, 256)
    while not done():
        with torch.no_grad():
            action = model(seen).argmax()
        seen, reward = game.step(action)
        rewards.append(reward)


def specialize(model):
    done, size = long_enough(), 2
    torch._dynamo.reset()
    fast = torch.compile(model.forward, backend="eager", dynamic=False)
    while not done():
        size += 1
        fast(torch.ones(size, 256))


class Neighbours:
    """Other programs on this machine, which compute for the length of one step."""

    def __init__(self):
        loop = f"while kill -0 {os.getpid()}; do for i in 1 2 3 4 5 6 7 8 9; do :; done; done"
        busy = f"for each in $(seq {NEIGHBOURS}); do ({loop}) & done; echo; wait"
        # a group, and no session: Linux shares a processor fairly between sessions first
        self.others = subprocess.Popen(
            ["sh", "-c", busy], stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0
        )
        self.others.stdout.readline()  # all of them are there
        self.leave()
        atexit.register(self.tell, signal.SIGKILL)

    def tell(self, number):
        os.killpg(self.others.pid, number)

    def come(self):
        self.tell(signal.SIGCONT)

    def leave(self):
        self.tell(signal.SIGSTOP)


NAMES = (
    "evaluation", "rollouts", "wait", "read", "collection", "checkpoint", "fsync", "lock", "allocation", "loop",
    "items", "compilation", "neighbour",
)  # fmt: skip
times = int(sys.argv[1]) if len(sys.argv) > 1 else 3
