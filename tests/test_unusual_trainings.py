"""Trainings in another thread, in a backward pass or under a profiler of the program end as without perfhooks."""

import textwrap

import pytest

pytestmark = pytest.mark.process

NET = """
    import cProfile, pstats, threading, time
    import torch
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    def pass_back():
        net(torch.randn(64, 64)).square().mean().backward()
    def step():
        pass_back()
        optimizer.step()
        optimizer.zero_grad()
    def train(count=300):
        for _ in range(count):
            step()
"""
IN_A_THREAD = """
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""
IN_BACKWARD = """
    def update(parameter):
        optimizer.step()
        optimizer.zero_grad()
    net[0].weight.register_post_accumulate_grad_hook(update)
    for _ in range(300):
        pass_back()
"""
IN_BACKWARD_EACH = """
    optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in net.parameters()}
    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for each in optimizers:
        each.register_post_accumulate_grad_hook(update)
    for _ in range(300):
        pass_back()
"""
UNDER_A_PROFILER = """
    profiler = cProfile.Profile()
    profiler.runcall(train)
    assert {calls[0] for place, calls in pstats.Stats(profiler).stats.items() if place[2] == "pass_back"} == {300}
"""
STOPPED_CLOCKS = """
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"):
        setattr(time, name, lambda *_: 0.0)
        setattr(time, f"{name}_ns", lambda *_: 0)
    time.sleep = lambda _: None
    train()
"""
END = "print(float(sum(each.double().sum() for each in net.parameters())))\n"


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(IN_A_THREAD, id="in a thread"),
        pytest.param(IN_BACKWARD, id="update in the backward pass"),
        pytest.param(IN_BACKWARD_EACH, id="an optimizer for each parameter"),
        pytest.param(UNDER_A_PROFILER, id="under cProfile"),
        pytest.param(STOPPED_CLOCKS, id="with stopped clocks"),
    ],
)
def test_unusual_training_is_recorded_and_ends_as_without_perfhooks(launch, run_script, tmp_path, how):
    text = textwrap.dedent(NET) + textwrap.dedent(how) + END
    (tmp_path / "train.py").write_text(text)
    done = launch("--run", "it", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == run_script(text).stdout
    assert list(tmp_path.glob("perf/it/train-*/rank0.steps.csv")), done.stderr
    assert "another profiler" not in done.stderr
    assert " failed (" not in done.stderr
