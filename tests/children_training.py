"""A training in child processes: ``python children_training.py HOW METHOD RANKS [END]``."""

import concurrent.futures
import multiprocessing
import sys

import torch
from torch import distributed


def train(rank, ranks, meeting, end):
    if ranks > 1:
        distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.randn(100, 8), batch_size=4):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item()!r}", flush=True)
    if end == "raise":
        raise ValueError("the training failed")
    if end == "exit":
        sys.exit(3)
    if ranks > 1:
        distributed.destroy_process_group()


def predict(*_):
    with torch.no_grad():
        print(f"sum {torch.nn.Linear(8, 1)(torch.zeros(4, 8)).shape}", flush=True)


def main(how, method, ranks, end=""):
    act, meeting = predict if end == "predict" else train, f"{sys.argv[0]}.{method}{ranks}.meeting"
    arguments, context = (int(ranks), meeting, end), multiprocessing.get_context(method)
    if how == "torch":
        torch.multiprocessing.start_processes(act, arguments, nprocs=int(ranks), start_method=method)
    elif how == "process":
        children = [context.Process(target=act, args=(rank, *arguments)) for rank in range(int(ranks))]
        for child in children:
            child.start()
        for child in children:
            child.join()
        sys.exit(max(child.exitcode for child in children))
    elif how == "pool":
        with context.Pool(1) as pool:
            pool.apply(act, (0, *arguments))
    elif how == "executor":
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            pool.submit(act, 0, *arguments).result()
    elif how == "after":
        train(0, 1, meeting, "")
        child = context.Process(target=act, args=(0, *arguments))
        child.start()
        child.join()
        sys.exit(child.exitcode)


if __name__ == "__main__":
    main(*sys.argv[1:])
