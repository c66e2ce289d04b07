"""A training beside threads of its own; prints which files its main thread opened below a folder, before a step.

It also prints the number of recorded steps. Arguments: the folder, the number of threads, the step, and the pause of
the threads in seconds.
"""

import sys
import threading
import time

import torch

folder, number, until, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
early, requested, other_threads = (
    sys.modules[f"perfhooks.record.{name}"] for name in ("launch.early", "loop.requested", "loop.limits.other_threads")
)
# this training may take long on a busy machine
early.SHORTEST_WAIT_S = requested.SHORTEST_WAIT_S = early._LONGEST_S = 1e9


def is_busy(_seconds):
    load = other_threads.ThreadLoad()
    while not load.is_busy():
        time.sleep(0.005)
    return True


if not pause:  # on a busy machine, threads that compute may use little of a CPU, and none of it for a while
    other_threads._SHARE = 0.001
    other_threads._is_busy_for = is_busy
torch.set_num_threads(1)
torch.manual_seed(0)
main, opened, recorded, is_over = threading.get_ident(), [], [], threading.Event()


def note(event, arguments):
    if event in ("open", "os.mkdir", "os.rename", "os.symlink", "subprocess.Popen") and threading.get_ident() == main:
        text = f"{event} {arguments}"
        if folder in text or event == "subprocess.Popen":
            opened.append(text)


def compute():
    while not (is_over.wait(pause) if pause else is_over.is_set()):
        torch.ones(4, 4).tanh()


threads = [threading.Thread(target=compute) for _ in range(number)]
for thread in threads:
    thread.start()
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sys.addaudithook(note)
for step, batch in enumerate(torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=2)):
    if step == until:
        print(len(opened), flush=True)
        print(*opened, sep="\n", file=sys.stderr)
    model(batch).square().mean().backward()
    recorded.append(torch._C._autograd._profiler_enabled())
    optimizer.step()
    optimizer.zero_grad()
is_over.set()
for thread in threads:
    thread.join()
print(sum(recorded))
print(sum(each.double().sum().item() for each in model.parameters()))
