"""Trainings that end in some way, each in a process of its own, with our hook and without.

As a script: imports what is needed once, then forks for each of some ways; writes the exit codes to ``codes.json`` in a
folder. It needs the folder and the cases.
"""

import contextlib
import gc
import json
import os
import signal
import sys
from pathlib import Path

ITERATION = 5
"""When it happens."""

AT_ONCE = 2
"""Children that run beside each other."""


def _raise():
    raise RuntimeError("out of luck")


def _signal(number):
    os.kill(os.getpid(), number)


ACTIONS = {
    "exception": _raise,
    "ctrl-c": lambda: _signal(signal.SIGINT),
    "sigterm": lambda: _signal(signal.SIGTERM),
    "exit": lambda: sys.exit(3),
    "exit 0": lambda: sys.exit(0),
}
"""What ends a training in the middle of an iteration."""

PLACES = ("iteration", "data", "hook", "validation", "backward")
"""Where an exception may come from."""

RUNS = ("train twice", "train, test", "test", "val", "two hooks", "resume", "caught")
"""Runs that leave mmengine's own hook open."""

COMPARED = ("exception", "ctrl-c", "sigterm", "exit", "exception in validation", "exception in backward")
"""Cases that are also run without our hook."""

CASES = (*ACTIONS, *(f"exception in {place}" for place in PLACES), *RUNS, "workers", "background")


def settings(case, work, hooks):
    """What the runner of a case takes."""
    import mmengine_training as tiny

    cfg = tiny.settings(work, *hooks, train_cfg={"by_epoch": False, "max_iters": 8, "val_interval": 6})
    cfg |= tiny.validation() | tiny.on_test()
    if case == "resume":
        cfg |= {"load_from": "no such file", "resume": True}
    if case == "workers":
        cfg["train_dataloader"] = tiny.batches(8, num_workers=2)
    return cfg


def build(case, work, ours):
    """A runner in which a case happens."""
    import mmengine_training as tiny
    from mmengine.hooks import Hook
    from mmengine.runner import Runner

    from perfhooks_mmengine import ProfilerHook

    class Happen(Hook):
        def after_train_iter(self, runner, **_):
            if runner.iter == ITERATION and (case in ACTIONS or case == "background"):
                ACTIONS.get(case, _raise)()
            elif runner.iter == ITERATION and case == "exception in hook":
                _raise()

    class Fail(tiny.Tiny):
        def forward(self, inputs, labels, mode="loss"):
            failing = mode == "predict" if case == "exception in validation" else runner.iter == ITERATION
            if failing and case in ("exception in validation", "exception in iteration", "caught"):
                _raise()
            losses = super().forward(inputs, labels, mode)
            if failing and case == "exception in backward":
                losses["loss"].register_hook(lambda _: _raise())
            return losses

    class Data(tiny.Samples):
        def __getitem__(self, index):
            return _raise() if index == 2 * ITERATION + 1 else super().__getitem__(index)

    # the worker of one makes all that there is, the page too, and the others what the tests look at
    options = {"schedule": "wait=2 warmup=0 active=9 repeat=1"}
    options |= {} if case == "background" else {"on_trace_ready": ["steps"]}
    hooks = [ProfilerHook(**options)] * ours
    if ours and case == "two hooks":
        hooks.append(ProfilerHook(**options))
    cfg = settings(case, work, [*hooks, Happen()])
    if case == "exception in data":
        cfg["train_dataloader"] = tiny.batches(8, dataset=Data())
    runner = Runner(**cfg | {"model": Fail()})
    return runner


def run(case, work, *, ours):
    """Let it happen."""
    runner = build(case, work, ours)
    if case == "test":
        runner.test()
    elif case == "val":
        runner.val()
    elif case == "caught":
        with contextlib.suppress(RuntimeError):
            runner.train()
    else:
        runner.train()
    if case == "train twice":
        runner.train()
    if case == "train, test":
        runner.test()


def main(folder, cases):
    """Fork for each case; a child returns, so that its interpreter ends as any other."""
    import mmengine_training as tiny
    import torchvision  # noqa: F401 -- it and what mmengine imports when it trains would be imported in each child

    from perfhooks.core import options
    from perfhooks.report.finishing import finish  # noqa: F401 -- and what a window is finished with

    tiny.trained(folder / "without any hook", train_cfg={"by_epoch": False, "max_iters": 1})
    gc.freeze()  # a child that looks at every object when it ends copies every page
    codes, running = {}, {}

    def reap():
        child, status = os.wait()
        codes[running.pop(child)] = os.waitstatus_to_exitcode(status)

    for name in (*cases, *(f"{case}, without" for case in cases if case in COMPARED)):
        if len(running) == AT_ONCE:
            reap()
        child = os.fork()
        if not child:
            with (folder / f"{name}.txt").open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            options.DEFAULTS["background"] = name == "background"
            run(name.removesuffix(", without"), folder / name, ours=name in CASES)
            return
        running[child] = name
    while running:
        reap()
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
