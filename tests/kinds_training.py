"""Small trainings of many kinds. Each prints a digest of all that it computed.

Run with names of kinds, or without names for all. Exits with code 7.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import io
import os
import pickle
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.set_num_threads(1)
KINDS = {}
BATCHES = 8
"""Batches of a loader, if a kind needs no other number."""


def kind(function):
    KINDS[function.__name__] = function
    return function


def digest(*values):
    """A digest of tensors, modules and plain values."""
    text = hashlib.sha256()
    for value in values:
        if isinstance(value, nn.Module):
            text.update(digest(sorted(value.state_dict().items())).encode())
        elif isinstance(value, torch.Tensor):
            text.update(repr((value.shape, value.detach().reshape(-1).tolist())).encode())
        elif isinstance(value, (list, tuple)):
            text.update(digest(*value).encode())
        else:
            text.update(repr(value).encode())
    return text.hexdigest()[:16]


def net(width=8):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))


def batches(count=None):
    count = count or BATCHES
    return DataLoader(TensorDataset(torch.randn(4 * count, 8), torch.randn(4 * count, 1)), batch_size=4, shuffle=True)


def train(model, optimizer, loss_of=None, count=None):
    """Train with a loader. Return all losses and the model."""
    losses = []
    for x, y in batches(count):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y) if loss_of is None else loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@kind
def plain_loop():
    model = net()
    return train(model, adam(model))


@kind
def validation_in_between():
    model, results = net(), []
    optimizer = adam(model)
    for _ in range(2):
        results += train(model, optimizer, count=3)[0]
        model.eval()
        with torch.inference_mode():
            results += [model(x) for x, _ in batches(2)]
        model.train()
    return results, model


@kind
def vmap_of_models():
    models = [net() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    call = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None), randomness="different")
    losses = []
    for x, y in batches():
        loss = (call(parameters, buffers, x) - y).square().mean()
        for weight, gradient in zip(
            parameters.values(), torch.autograd.grad(loss, list(parameters.values())), strict=True
        ):
            weight.data -= 0.01 * gradient
        losses.append(loss.item())
    return losses, [*parameters.values()]


@kind
def functorch_grad():
    model = net().eval()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    loss = lambda w, x, y: mse_loss(functional_call(model, w, (x,)), y)  # noqa: E731
    for x, y in batches():
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        weights = {name: weight - 0.01 * each[name].mean(0) for name, weight in weights.items()}
    return [*weights.values()]


@kind
def hessian_of_a_loss():
    model, results = nn.Linear(8, 1), []
    optimizer = sgd(model)
    for x, y in batches(5):
        weights = dict(model.named_parameters())
        second = hessian(lambda w, x=x, y=y: mse_loss(functional_call(model, w, (x,)), y))(weights)
        results.append(second["weight"]["weight"])
        results += train(model, optimizer, count=1)[0]
    return results, model


@kind
def forward_mode():
    model, results = net().eval(), []
    for x, _ in batches():
        results += jvp(model, (x,), (torch.ones_like(x),))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            results.append(torch.autograd.forward_ad.unpack_dual(model(dual)).tangent)
    return results


@kind
def double_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def penalized(model, x, y):
        x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return mse_loss(out, y) + (slope.norm(dim=1) - 1).square().mean()

    return train(model, adam(model), penalized)


@kind
def checkpointing():
    model = nn.ModuleList([net(8), nn.Linear(1, 1)])

    def loss_of(model, x, y):
        hidden = checkpoint(model[0], x, use_reentrant=False)
        return mse_loss(checkpoint(model[1], hidden, use_reentrant=True), y)

    return train(model, adam(model), loss_of)


@kind
def compiled():
    import torch._dynamo.testing

    counter = torch._dynamo.testing.CompileCounter()
    model = net()
    fast = torch.compile(model, backend=counter)
    results = train(fast, adam(model)), model
    return results, counter.frame_count, counter.op_count


@kind
def compiled_step():
    import torch._dynamo.testing

    counter = torch._dynamo.testing.CompileCounter()
    model = net()
    optimizer = sgd(model)

    @torch.compile(backend=counter)
    def loss_of(x, y):
        return mse_loss(model(x), y)

    losses = []
    for x, y in batches():
        loss = loss_of(x, y)
        loss.backward()
        torch.compile(optimizer.step, backend=counter)()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model, counter.frame_count, counter.op_count


@kind
def exported():
    model = net().eval()
    program = torch.export.export(model, (torch.randn(4, 8),))
    results = train(model, adam(model))
    graph = [str(node.target) for node in program.graph.nodes]
    return results, graph, program.module()(torch.ones(4, 8))


@kind
def traced_with_make_fx():
    from torch.fx.experimental.proxy_tensor import make_fx

    model, graphs = net().eval(), []
    optimizer = sgd(model)
    for x, y in batches():
        graphs.append([str(node.target) for node in make_fx(model)(x).graph.nodes])
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return graphs, model


@kind
def fake_tensors():
    from torch._subclasses import FakeTensorMode

    model, shapes = net(), []
    optimizer = sgd(model)
    for x, y in batches():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            shapes.append(tuple(model(mode.from_tensor(x)).shape))
        mse_loss(model(x), y).backward()
        optimizer.step()
    return shapes, model


@kind
def jit_traced_and_scripted():
    results = []
    for make in (lambda model: torch.jit.trace(model, torch.randn(4, 8)), torch.jit.script):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        made = make(model)
        results += [train(made, adam(model)), str(made.inlined_graph)]
    return results


class CountedFunctions(TorchFunctionMode):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class CountedOperators(TorchDispatchMode):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append(str(function))
        return function(*args, **(kwargs or {}))


def train_in(mode):
    calls = []
    model = net()
    with mode(calls):
        results = train(model, sgd(model))
    return results, calls


@kind
def function_mode():
    return train_in(CountedFunctions)


@kind
def dispatch_mode():
    return train_in(CountedOperators)


@kind
def modes_in_a_step():
    calls = []

    def loss_of(model, x, y):
        with CountedFunctions(calls), CountedOperators(calls):
            return mse_loss(model(x), y)

    model = net()
    return train(model, adam(model), loss_of), calls


@kind
def computed_weights():
    model = net()

    def loss_of(model, x, y):
        weights = {name: weight * 1 for name, weight in model.named_parameters()}
        return mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = train(model, sgd(model), loss_of)
    return results, [str(warning.message) for warning in caught]


@kind
def subclass_tensors():
    calls = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(getattr(function, "__name__", str(function)))
            return super().__torch_function__(function, types, args, kwargs or {})

    model = net()
    results = train(model, adam(model), lambda model, x, y: mse_loss(model(x.as_subclass(Logged)), y))
    return results, calls


@kind
def module_hooks():
    model, calls = net(), []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda m, i, name=name: calls.append(("pre", name)))
        module.register_forward_hook(lambda m, i, o, name=name: calls.append(("post", name, o.sum().item())))
        module.register_full_backward_hook(lambda m, i, o, name=name: calls.append(("back", name)))
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda w: calls.append(w.grad.sum().item()))
    optimizer = adam(model)
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: calls.append(type(m).__name__))
    results = train(model, optimizer)
    handle.remove()
    return results, calls


@kind
def saved_tensor_hooks():
    model, sizes = net(), []

    def loss_of(model, x, y):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            return mse_loss(model(x), y)

    return train(model, adam(model), loss_of), sizes


@kind
def custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, slope):
            return 3 * ctx.saved_tensors[0] ** 2 * slope

    model = net()
    return train(model, sgd(model), lambda model, x, y: mse_loss(Cube.apply(model(x)), y))


@kind
def deep_copies_and_ema():
    model = net()
    optimizer = adam(model)
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    copies, losses = [], []
    for x, y in batches():
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        copies.append(digest(copy.deepcopy(model), copy.deepcopy(optimizer).state_dict()["state"][0]["exp_avg"]))
        losses.append(loss.item())
    return losses, copies, model, average.module


@kind
def stochastic_weight_averaging():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = sgd(model)
    average, schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.01)
    for _ in range(3):
        train(model, optimizer, count=3)
        average.update_parameters(model)
        schedule.step()
    torch.optim.swa_utils.update_bn(batches(3), average)
    return model, average.module


@kind
def pickled_in_training():
    model = net()
    optimizer = adam(model)
    losses, sizes = [], []
    for x, y in batches():
        model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        buffer = io.BytesIO()
        torch.save({"model": model, "optimizer": optimizer.state_dict()}, buffer)
        sizes.append(len(pickle.dumps(model)))
        sizes.append(digest(torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)["model"]))
        losses.append(loss.item())
    return losses, sizes, model


@kind
def lbfgs_closure():
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    losses = []
    for x, y in batches():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
            return loss

        optimizer.step(closure)
    return losses, model


@kind
def autocast_and_scaler():
    model = net()
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append((loss.item(), scaler.get_scale()))
    return losses, model


@kind
def accumulation():
    model = net()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)
    losses = []
    for number, (x, y) in enumerate(batches(12)):
        loss = mse_loss(model(x), y) / 3
        loss.backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        losses.append(loss.item())
    return losses, model, optimizer.param_groups[0]["lr"]


@kind
def adversarial_pair():
    maker, judge = net(), net()
    first, second, losses = adam(maker), adam(judge), []
    for x, _ in batches():
        fake = maker(x) * torch.ones(1, 8)
        loss = judge(x).mean() - judge(fake.detach()).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        first.zero_grad()
        (-judge(fake).mean()).backward()
        first.step()
        losses.append(loss.item())
    return losses, maker, judge


@kind
def parametrized():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)),
        nn.Linear(8, 1),
    )
    return train(model, adam(model))


@kind
def quantized():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    results = train(model, sgd(model))
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    return results, [small(x) for x, _ in batches()]


@kind
def recurrent():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.core, self.head = nn.LSTM(2, 6, batch_first=True, dropout=0.1, num_layers=2), nn.Linear(6, 1)

        def forward(self, x):
            return self.head(self.core(x.view(-1, 4, 2))[0][:, -1])

    model = Net()
    return train(model, adam(model))


@kind
def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(8, 1))
    return train(model, adam(model))


@kind
def convolution_channels_last():
    model = nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 1)
    ).to(memory_format=torch.channels_last)
    return train(model, sgd(model))


@kind
def sparse_embedding():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.table((x * 100).long().remainder(10)).mean(1))

    model = Net()
    return train(model, torch.optim.SparseAdam([model.table.weight], lr=0.01))


@kind
def complex_numbers():
    model = nn.Linear(8, 1, dtype=torch.complex64)
    return train(model, sgd(model), lambda model, x, y: (model(x.to(torch.complex64)) - y).abs().square().mean())


@kind
def updates_by_hand():
    model, losses = net(), []
    for x, y in batches(24):
        loss = mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(0.01 * weight.grad)
        losses.append(loss.item())
    return losses, model


@kind
def threads_beside():
    other, outputs = net().eval(), []

    def serve():
        with torch.no_grad():
            outputs.append([other(torch.ones(2, 8)).sum().item() for _ in range(50)])

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    model = net()
    results = train(model, adam(model))
    for thread in threads:
        thread.join()
    with ThreadPoolExecutor(2) as pool:
        outputs += pool.map(lambda _: other(torch.ones(2, 8)).sum().item(), range(8))
    return results, outputs


@kind
def training_in_a_thread():
    results = []

    def work():
        torch.manual_seed(5)
        model = net()
        results.append(digest(*train(model, adam(model))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results


@kind
def fork_in_the_middle():
    model, codes = net(), []

    def loss_of(model, x, y):
        child = os.fork()
        if not child:
            os._exit(int(model(x).numel() == 4))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return mse_loss(model(x), y)

    return train(model, adam(model), loss_of), codes


@kind
def signals_in_a_step():
    caught = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))

    def loss_of(model, x, y):
        os.kill(os.getpid(), signal.SIGUSR1)
        return mse_loss(model(x), y)

    model = net()
    results = train(model, adam(model), loss_of)
    signal.signal(signal.SIGUSR1, before)
    return results, caught, before == signal.SIG_DFL, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@kind
def generator_that_trains():
    model = net()
    optimizer = adam(model)

    def steps():
        for x, y in batches():
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            yield loss.item()
            optimizer.step()

    return list(steps()), model


@kind
def coroutines():
    model = net()
    optimizer = adam(model)

    async def run():
        losses = []
        for x, y in batches():
            loss = await asyncio.to_thread(lambda x=x, y=y: mse_loss(model(x), y))
            await asyncio.sleep(0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return asyncio.run(run()), model


@kind
def own_profiler():
    model, counts = net(), []
    optimizer = adam(model)
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)) as prof:
        for x, y in batches(5):
            with torch.profiler.record_function("mine"):
                mse_loss(model(x), y).backward()
            optimizer.step()
            prof.step()
    counts = sorted((row.key, row.count) for row in prof.key_averages() if not row.key.startswith("Optimizer.zero"))
    return counts, model


@kind
def record_function_ranges():
    model = net()

    def loss_of(model, x, y):
        with torch.profiler.record_function("mine"):
            return mse_loss(model(x), y)

    with torch.autograd.profiler.record_function("epoch"):
        return train(model, adam(model), loss_of)


@kind
def exceptions_in_a_step():
    model, caught = net(), []

    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("a bad batch")

    failing = Failing()

    def loss_of(model, x, y):
        for call in (failing, model[0].__class__(3, 3), torch.autograd.backward):
            try:
                call(x)
            except (ValueError, RuntimeError) as error:
                frames = []
                trace = error.__traceback__
                while trace is not None:
                    frames.append(trace.tb_frame.f_code.co_name)
                    trace = trace.tb_next
                caught.append((type(error).__name__, str(error)[:60], frames[-1]))
        return mse_loss(model(x), y)

    return train(model, adam(model), loss_of), caught


@kind
def anomaly_detection():
    model = net()
    with torch.autograd.detect_anomaly(check_nan=True):
        return train(model, adam(model))


@kind
def one_rank_of_ddp():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(net())
        results = train(model, adam(model))
        with model.no_sync():
            model(torch.ones(2, 8)).sum().backward()
        gradients = [weight.grad for weight in model.parameters()]
        torch.distributed.all_reduce(gradients[0])
        torch.distributed.destroy_process_group()
    return results, gradients


@kind
def workers_of_a_loader():
    loader = DataLoader(TensorDataset(torch.randn(40, 8), torch.randn(40, 1)), batch_size=4, num_workers=2)
    model, losses = net(), []
    optimizer = adam(model)
    for x, y in loader:
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@kind
def reproducible_randomness():
    model = net()
    results = train(model, adam(model))
    return results, torch.get_rng_state(), torch.initial_seed(), torch.is_grad_enabled(), torch.get_num_threads()


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    for option in sys.argv[1:]:
        if option.startswith("--batches="):
            BATCHES = int(option.partition("=")[2])
    for name in names or KINDS:
        torch.manual_seed(1)
        print(name, digest(*KINDS[name]()), flush=True)
    sys.exit(7)
