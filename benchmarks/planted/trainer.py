"""A training with a class of its own."""

import parts
import torch


class Trainer:
    def __init__(self):
        self.train_loader, self.test_loader, self.images = parts.loaders()
        self.model = parts.network()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.plants = parts.plan(parts.NAMES, parts.times)
        self.neighbours, self.queue = parts.Neighbours(), parts.Queue()
        self.step = 0

    def batches(self):
        while True:
            yield from self.train_loader

    def fit(self):
        for batch in self.batches():
            self.training_step(batch)
            self.after_step(self.plants.get(self.step))
            self.step += 1
            if self.step > max(self.plants) + parts.GAP:
                break

    def training_step(self, batch):
        plant = self.plants.get(self.step)
        if plant:
            parts.say(self.step, plant)
        if plant == "neighbour":
            self.neighbours.come()
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if plant == "neighbour":
            self.neighbours.leave()

    def after_step(self, plant):
        if plant == "evaluation":
            self.score()
        elif plant in ("wait", "read"):
            self.images.slow = plant
        elif plant == "collection":
            parts.clean_up()
        elif plant is not None and plant != "neighbour":
            {
                "rollouts": parts.collect_episodes, "checkpoint": parts.keep, "fsync": parts.record_results,
                "lock": self.queue.publish, "allocation": parts.grow_buffer, "loop": parts.count_words,
                "items": parts.histogram, "compilation": parts.specialize,
            }[plant](self.model)  # fmt: skip

    @torch.inference_mode()
    def score(self):
        done, wrong = parts.long_enough(), 0
        while not done():
            for images, labels in self.test_loader:
                wrong += int((self.model(images).argmax(1) != labels).sum())
                if done():
                    break
        return wrong


if __name__ == "__main__":
    Trainer().fit()
