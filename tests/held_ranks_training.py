"""A training on several ranks that knows nothing of perfhooks; each prints its number and its loss."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(torch.randn(400, 16), batch_size=2):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
print(f"{dist.get_rank()} {loss.item()}\n", end="")
dist.destroy_process_group()
