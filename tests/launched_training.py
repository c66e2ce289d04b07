"""Trainings that know nothing of perfhooks, one for each kind of loop: ``python launched_training.py KIND``.

Each prints its loss with all digits, so that a run with and without perfhooks can be compared.
"""

import select
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCHES, SIZE = 2, 8, 4
torch.manual_seed(0)
torch.set_num_threads(1)


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def data(batches=BATCHES):
    return TensorDataset(torch.randn(batches * SIZE, 8), torch.randint(2, (batches * SIZE,)))


def loader(batches=BATCHES, **options):
    return DataLoader(data(batches), batch_size=SIZE, **options)


def loss_of(net, x, y):
    return nn.functional.cross_entropy(net(x), y)


def raw(epochs=EPOCHS, **options):
    """Sixteen updates; a validation loader between the epochs."""
    net, batches, validation = model(), loader(**options), loader()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            sum(loss_of(net, x, y) for x, y in validation)
    return loss


def fork():
    return raw(num_workers=1, multiprocessing_context="fork")


def persistent():
    return raw(num_workers=1, multiprocessing_context="fork", persistent_workers=True)


def spawn():
    """One epoch: its worker imports torch."""
    return raw(epochs=1, batches=12, num_workers=1, multiprocessing_context="spawn")


def accumulate():
    """Every second batch updates."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader()):
            loss = loss_of(net, x, y)
            loss.backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    return loss


def gan():
    """Two optimizers step for every batch."""
    nets = model(), model()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for _ in range(EPOCHS):
        for x, y in loader():
            for net, optimizer in zip(nets, optimizers, strict=True):
                optimizer.zero_grad()
                loss = loss_of(net, x, y)
                loss.backward()
                optimizer.step()
    return loss


def lbfgs():
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    for _ in range(EPOCHS):
        for x, y in loader():

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = loss_of(net, x, y)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
    return loss


def scaler():
    """A scaler that skips the first update, as its scale is too large."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    for number, (x, y) in enumerate(loader()):
        optimizer.zero_grad()
        loss = loss_of(net, x, y)
        scale.scale(loss * (float("inf") if not number else 1)).backward()
        scale.step(optimizer)
        scale.update()
    return loss


def in_backward():
    """An optimizer for each parameter, which steps as soon as its gradient is there."""
    net = model()
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in net.parameters()}

    def update(each):
        optimizers[each].step()
        optimizers[each].zero_grad()

    for each in net.parameters():
        each.register_post_accumulate_grad_hook(update)
    for _ in range(EPOCHS):
        for x, y in loader():
            loss = loss_of(net, x, y)
            loss.backward()
    return loss


def no_loader():
    """Twenty rounds of two updates, and no loader anywhere."""
    nets = model(), model()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for _ in range(20):
        x, y = torch.randn(SIZE, 8), torch.randint(2, (SIZE,))
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            optimizer.step()
    return loss


def generator():
    """A generator is the data: only updates tell."""

    def batches():
        for _ in range(20):
            yield torch.randn(SIZE, 8), torch.randint(2, (SIZE,))

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(net, x, y)
        loss.backward()
        optimizer.step()
    return loss


def inference():
    """Fetches without any update."""
    net = model()
    with torch.no_grad():
        for x, y in DataLoader(data(40), batch_size=SIZE):
            loss = loss_of(net, x, y)
    return loss


def endless():
    """Computes without a loader or an optimizer until its standard input ends; then trains."""
    net, x = model(), torch.randn(64, 8)
    with torch.no_grad():
        while not select.select([sys.stdin], [], [], 0)[0]:
            net(x)
    return raw()


def compiled():
    """The optimizer's step is compiled."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(EPOCHS):
        for x, y in loader():
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            step()
    return loss


def compiled_whole():
    """Model, optimizer and the whole step are compiled; says what Dynamo made of it."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    compiled_net = torch.compile(net, backend="eager")
    step = torch.compile(optimizer.step, backend="eager")
    whole = torch.compile(plain_step, backend="eager")
    slope = torch.compile(lambda x: torch.autograd.grad(torch.square(x).sum(), x)[0] * 2, backend="eager")
    slope(torch.ones(3, requires_grad=True))
    for x, y in loader():
        optimizer.zero_grad()
        loss_of(compiled_net, x, y).backward()
        step()
    for x, y in loader():
        whole(net, optimizer, x, y)
    print("breaks", sum(counters["graph_break"].values()), "graphs", counters["stats"]["unique_graphs"])
    print("recompilations", sum(counters["recompiles"].values()), "calls", counters["stats"]["calls_captured"])
    return torch.zeros(())


def by_hand():
    """What a person would write to profile ``plain``."""
    import perfhooks

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = "skip_first=4 wait=0 warmup=1 active=4 repeat=1"
    with perfhooks.Profiler(schedule=schedule, out="perf", run="by-hand") as prof:
        batches = prof.steps(loader())
        for _ in range(EPOCHS):
            for x, y in batches:
                plain_step(net, optimizer, x, y)
    return torch.zeros(())


def plain():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = loader()
    for _ in range(EPOCHS):
        for x, y in batches:
            plain_step(net, optimizer, x, y)
    return torch.zeros(())


def plain_step(net, optimizer, x, y):
    optimizer.zero_grad()
    loss_of(net, x, y).backward()
    optimizer.step()


def profiled_late():
    """Profiles itself with torch, from the middle of what is recorded by others on."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for number, (x, y) in enumerate(DataLoader(data(12), batch_size=SIZE)):
        if number == 7:
            own.start()
        plain_step(net, optimizer, x, y)
        if number == 10:
            own.stop()
    print("own", sum(each.count for each in own.key_averages() if each.key == "aten::addmm"))
    return torch.zeros(())


def fails():
    raw()
    raise RuntimeError("as planted")


def exits():
    raw()
    sys.exit(3)


def waits():
    """Trains until somebody ends it; says when a window is open."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(10**9):
        for x, y in loader():
            plain_step(net, optimizer, x, y)
        if number == 3:
            print("ready", flush=True)
        if number > 3:
            time.sleep(0.01)
    return torch.zeros(())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result = globals()[sys.argv[1]]()
    print("loss", repr(result.item()))
