"""A small training that forks, hears signals and goes on from its last checkpoint; its result has one right value.

    python endured.py FOLDER STEPS [OUT]

With OUT, windows are recorded there. It ends with a line in which all losses and all children have a part.
"""

import contextlib
import hashlib
import os
import random
import signal
import struct
import subprocess
import sys
import time

import torch

EVERY = 5
"""Steps from one window to the next."""
CHECKPOINT = 200
CHILD = 97
"""Steps between two that fork, more or less."""
QUEUED = 5
"""Windows that may wait for their files: with eight, the next would be left out."""


class Training:
    def __init__(self, folder):
        torch.manual_seed(7)
        torch.set_num_threads(1)
        self.path = os.path.join(folder, "checkpoint.pt")
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.step, self.digest = 0, ""
        if os.path.exists(self.path):
            kept = torch.load(self.path, weights_only=False)
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])
            torch.set_rng_state(kept["random"])
            self.step, self.digest = kept["step"], kept["digest"]

    def keep(self):
        torch.save({
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(), "step": self.step, "digest": self.digest,
        }, self.path + ".new")  # fmt: skip
        os.replace(self.path + ".new", self.path)

    def learn(self, inputs):
        loss = self.model(inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def mix(self, *seen):
        """Everything that was seen since the beginning is in the result."""
        self.digest = hashlib.sha256(repr((self.digest, self.step, seen)).encode()).hexdigest()

    def train_step(self, tell):
        self.mix(self.learn(torch.randn(4, 8)))
        dice = random.Random(self.step)
        if dice.random() < 1 / CHILD:
            self.mix(dice.choice((exits, raises, learns, workers, starts))(self, tell))


def forked(act):
    """What a child prints, and how it ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        act(lambda text: os.write(writing, text.encode()))
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def exits(training, tell):
    def act(say):
        say("leaves")
        sys.exit(3)

    return forked(act)


def raises(training, tell):
    def act(say):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its traceback is known
        raise ValueError

    return forked(act)


def learns(training, tell):
    """A child that trains on its own, as population-based training does, and tells the profiler so."""

    def act(say):
        for _ in range(2 * EVERY):
            loss = training.learn(torch.randn(4, 8))
            tell()
        say(repr(loss))
        os._exit(4)

    return forked(act)


def workers(training, tell):
    data = torch.utils.data.DataLoader(torch.arange(8), num_workers=1, batch_size=4)
    return [batch.tolist() for batch in data]


def starts(training, tell):
    return subprocess.run(["sh", "-c", "exit 5"], preexec_fn=os.getpid, check=False).returncode


def main(folder, steps, out=None):
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(7))
    heard = []
    training = Training(folder)
    progress = os.open(os.path.join(folder, f"progress-{time.time_ns()}"), os.O_RDWR | os.O_CREAT)
    first, tell, recording = training.step, int, contextlib.nullcontext()
    if out is not None:
        import perfhooks

        schedule = f"wait={EVERY - 2} warmup=1 active=1"
        recording = perfhooks.Profiler(
            schedule=schedule, out=out, run="run", poll=0.05, on_trace_ready=["steps"], keep_results=False
        )
        recording.start(training.step)
        tell = recording.step
    with recording:
        while training.step < steps:
            training.train_step(tell)
            training.step += 1
            tell()
            os.pwrite(progress, struct.pack("QQ", first, training.step), 0)
            if training.step % CHECKPOINT == 0:
                training.keep()
            while out is not None and recording.windows_left > QUEUED:
                recording.wait(0.02)
    print(training.digest)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
