"""Two ranks that average their gradients, one of which comes late now and then."""

import os
import subprocess
import sys
import time

import parts
import torch
import torch.distributed as dist

rank = int(os.environ.get("RANK", "0"))
if not rank:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERFHOOKS")}
    other = subprocess.Popen([sys.executable, *sys.argv], env=kept | {"RANK": "1"})
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
loader, _, _ = parts.loaders()
model = parts.network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
plants = parts.plan(["rank"], parts.times)
step, last = 0, max(plants) + parts.GAP
while step < last:
    for images, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        if step in plants:
            if rank:
                time.sleep(parts.SLOW_S)
            else:
                parts.say(step, "rank")
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        step += 1
        if step >= last:
            break
if not rank:
    other.wait()
dist.destroy_process_group()
