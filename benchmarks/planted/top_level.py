"""A training that is one script from top to bottom."""

import os
import threading

import parts
import torch

train_loader, test_loader, images = parts.loaders()
model = parts.network()
loss_function = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
plants = parts.plan(parts.NAMES, parts.times)
neighbours, lock = parts.Neighbours(), threading.Lock()
step, last = 0, max(plants) + parts.GAP
words, bins = {}, {}

while step < last:
    for inputs, labels in train_loader:
        plant = plants.get(step)
        if plant:
            parts.say(step, plant)
        if plant == "neighbour":
            neighbours.come()
        outputs = model(inputs)
        loss = loss_function(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if plant == "neighbour":
            neighbours.leave()
        done = parts.long_enough()
        if plant == "evaluation":
            model.eval()
            correct = 0
            for test_inputs, test_labels in test_loader:
                predicted = model(test_inputs).argmax(1)
                correct += (predicted == test_labels).sum().item()
                if done():
                    break
            model.train()
        elif plant == "rollouts":
            game, seen = parts.Environment(), torch.randn(1, 256)
            while not done():
                with torch.no_grad():
                    action = model(seen).argmax()
                seen, reward = game.step(action)
        elif plant in ("wait", "read"):
            images.slow = plant
        elif plant == "collection":
            parts.clean_up()
        elif plant == "checkpoint":
            while not done():
                torch.save(parts.state, f"{parts.folder.name}/a.pt")
        elif plant == "fsync":
            with open(f"{parts.folder.name}/log.txt", "ab") as file:
                while not done():
                    file.write(b"loss 0.1\n" * 4000)
                    file.flush()
                    os.fsync(file.fileno())
        elif plant == "lock":
            lock.acquire()
            threading.Timer(parts.SLOW_S, lock.release).start()
            lock.acquire()
            lock.release()
        elif plant == "allocation":
            kept = []
            while not done():
                kept = [*kept[-3:], torch.ones(16_000_000)]
        elif plant == "loop":
            while not done():
                for number in range(1000):
                    key = str(number * number % 997)
                    words[key] = words.get(key, 0) + 1
        elif plant == "items":
            values = model[0].weight.detach().flatten()
            while not done():
                for place in range(100):
                    value = round(values[place].item(), 2)
                    bins[value] = bins.get(value, 0) + 1
        elif plant == "compilation":
            parts.specialize(model)
        step += 1
        if step >= last:
            break
