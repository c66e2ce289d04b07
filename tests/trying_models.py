"""Tiny trainings for the tests of what is run again: each records three steps into a plain trace."""

import torch
import torchvision
from torch import nn
from torch.nn import functional

from perfhooks import Profiler


class Block(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.inputs, self.output = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, size = x.shape
        shaped = self.inputs(self.before(x)).view(batch, length, 3, self.heads, size // self.heads)
        query, key, value = shaped.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.output(found.transpose(1, 2).reshape(batch, length, size)))
        return x + self.dropout(self.wide(self.between(x)))


class Gpt(nn.Module):
    def __init__(self, words=128, size=64, length=32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(length, size)
        self.blocks = nn.Sequential(Block(size, 4), Block(size, 4))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, words, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.words(x) + self.places(torch.arange(x.shape[1])))))


def resnet():
    model = torchvision.models.resnet18(num_classes=10)
    x, y = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))
    return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), lambda: functional.cross_entropy(model(x), y)


def vit():
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
    model = torchvision.models.VisionTransformer(**sizes, dropout=0.1, num_classes=10)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    return torch.optim.AdamW(model.parameters(), 1e-3), lambda: functional.cross_entropy(model(x), y)


def gpt():
    model = Gpt()
    x = torch.randint(0, 128, (4, 32))
    return torch.optim.AdamW(model.parameters(), 1e-3), lambda: functional.cross_entropy(
        model(x).view(-1, 128), x.view(-1)
    )


def step(optimizer, loss):
    loss().backward()
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()


def record(make, path):
    torch.manual_seed(0)
    optimizer, loss = make()
    with Profiler(
        schedule="wait=1 warmup=1 active=3 repeat=1", record_shapes=True, background=False, out=path.parent
    ) as profiler:
        for _ in range(5):
            step(optimizer, loss)
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path
