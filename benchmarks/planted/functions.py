"""A training as many are written: train(), test(), and main() that calls both in every epoch."""

import parts
import torch
import torch.nn.functional as F

EPOCH = parts.GAP // 2
"""Steps."""


def train(model, loader, optimizer, first, plants, neighbours, queue):
    model.train()
    actions = {
        "rollouts": parts.collect_episodes, "checkpoint": parts.keep, "fsync": parts.record_results,
        "lock": queue.publish, "allocation": parts.grow_buffer, "loop": parts.count_words, "items": parts.histogram,
        "compilation": parts.specialize, "collection": lambda _: parts.clean_up(),
    }  # fmt: skip
    for step, (data, target) in enumerate(loader, first):
        plant = plants.get(step)
        if plant and plant != "evaluation":
            parts.say(step, plant)
        if plant == "neighbour":
            neighbours.come()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        if plant == "neighbour":
            neighbours.leave()
        if plant in ("wait", "read"):
            loader.dataset.slow = plant
        if plant in actions:
            actions[plant](model)
        if step == first + EPOCH - 1:
            break


def test(model, loader):
    model.eval()
    correct, done = 0, parts.long_enough()
    with torch.no_grad():
        while not done():
            for data, target in loader:
                correct += (model(data).argmax(1) == target).sum().item()
                if done():
                    break
    return correct


def main():
    train_loader, test_loader, _ = parts.loaders()
    model = parts.network()
    optimizer = torch.optim.Adam(model.parameters())
    plants = parts.plan(parts.NAMES, parts.times)
    neighbours, queue = parts.Neighbours(), parts.Queue()
    for first in range(0, max(plants) + parts.GAP, EPOCH):
        train(model, train_loader, optimizer, first, plants, neighbours, queue)
        if plants.get(first) == "evaluation":
            parts.say(first + EPOCH, "evaluation")
            test(model, test_loader)


if __name__ == "__main__":
    main()
