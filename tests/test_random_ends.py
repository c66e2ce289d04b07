"""Programs that end at a random moment of their first second have the exit code that they have without perfhooks.

``RANDOM_ENDS=2000 python -m pytest tests/test_random_ends.py`` starts as many programs.
"""

from __future__ import annotations

import os
import random
import signal
import textwrap

import pytest

pytestmark = [pytest.mark.process, pytest.mark.nightly]

STARTS = int(os.environ.get("RANDOM_ENDS", "6"))

PROGRAM = """
    import os, signal, sys, threading, time
    import torch

    torch.set_num_threads(1)
    end = time.monotonic() + {after}
    kind, code = {kind!r}, {code}
    nets = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)) for _ in range({nets})]
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets]

    def leave():
        if kind == "error":
            raise ValueError("planted")
        if kind == "exit":
            sys.exit(code)
        if kind == "os._exit":
            os._exit(code)

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            if {in_backward} and time.monotonic() > end:
                leave()
            return gradient

    def kill():
        time.sleep(max(end - time.monotonic(), 0))
        os.kill(os.getpid(), code)

    def call():
        x = torch.ones(4, 8)
        while True:
            nets[0](x)

    if kind == "signal":
        threading.Thread(target=kill, daemon=True).start()
    for _ in range({threads}):
        threading.Thread(target=call, daemon=True).start()
    while True:
        with torch.profiler.record_function("round"):
            for net, optimizer in zip(nets, optimizers):
                loss = net(torch.ones(4, 8)).square().mean()
                for _ in range({operators}):
                    loss = loss * 1.0
                Node.apply(loss).backward()
                optimizer.step()
                optimizer.zero_grad()
                if time.monotonic() > end:
                    leave()
"""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGUSR1)


def program(seed):
    """A program, and its exit code."""
    draw = random.Random(seed)
    kind = draw.choice(("error", "exit", "os._exit", "signal"))
    number = draw.choice(SIGNALS)
    code = int(number) if kind == "signal" else draw.randrange(2, 100)
    # Python aborts at its end if a thread of the program is inside of torch
    has_end = kind in ("error", "exit") or (kind == "signal" and number is signal.SIGINT)
    text = PROGRAM.format(
        after=draw.random(),
        kind=kind,
        code=code,
        nets=draw.choice((1, 1, 3)),
        in_backward=draw.random() < 0.3,
        threads=0 if has_end else draw.choice((0, 2)),
        operators=draw.choice((0, 20, 20_000)),
    )
    return textwrap.dedent(text), {"error": 1, "signal": -code}.get(kind, code)


@pytest.mark.parametrize("seed", range(STARTS))
def test_random_end_keeps_the_exit_code(launch, tmp_path, seed):
    text, code = program(seed)
    (tmp_path / "script.py").write_text(text)
    launched = launch("--handler", "steps", "script.py")
    assert launched.returncode == code, launched.stderr
