"""The same small training under each integration: updates of a linear layer, with validations and a checkpoint."""

import csv
import json
import logging
import os
import time
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import torch
from face_files import at_once
from torch.utils.data import DataLoader, Dataset

VALIDATION_BATCHES = 5
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


PAUSES_S = {"data": 0.02, "forward": 0.03, "backward": 0.04, "optimizer": 0.05}
"""The least that a slow training takes in each part of a step."""


class Layer(torch.nn.Module):
    """A linear layer. Before each pass it calls a function with its mode and the number of the training pass."""

    def __init__(self, before, pause):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.before = before
        self.pause = pause
        self.calls = 0

    def forward(self, batch):
        self.before(self.training, self.calls)
        self.calls += self.training
        loss = self.layer(batch).square().mean()
        if self.training:
            self.pause("forward")
            loss.register_hook(lambda _: self.pause("backward"))
        return loss


class Rows(Dataset):
    """Rows of four numbers."""

    def __init__(self, batches, convert, pause):
        self.numbers = torch.arange(8.0 * batches).reshape(-1, 4) % 7
        self.convert = convert
        self.pause = pause

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        self.pause("data")
        return self.convert(self.numbers[index])


class SGD(torch.optim.SGD):
    pause = None

    def step(self, closure=None):
        self.pause("optimizer")
        return super().step(closure)


class Training:
    """A training under one integration.

    A training with validations saves a checkpoint after the fourth update.
    """

    kind = "ProfilerCallback"
    parts = ("data", "forward", "backward", "optimizer")
    validated, checkpointed = 3, 4
    """Steps that contain the validation after the third and the checkpoint after the fourth update."""
    updated, fetched = (3, 7), (3, 4, 7, 8)
    """With batches as steps and updates after every second one: which of steps 3, 4, 7 and 8 update, and which wait."""
    logged_steps = MappingProxyType({"train": 4, "validate": 7})
    """Steps in the framework's log of the last recorded step."""
    names_modules = False
    counts_updates = False
    """Whether the framework's own checkpoint contains the number of updates."""

    def __init__(self, folder):
        self.folder = folder
        self.reached = 0
        self.make = getattr(import_module(f"perfhooks_{self.name}"), self.kind)

    @property
    def name(self):
        return type(self).__name__.lower()

    def callback(self, schedule, **options):
        """Return a callback that writes step tables to ``perf`` in the folder, without a worker."""
        return self.make(schedule=schedule, **at_once(self.folder) | options)

    def train(self, callback, steps=10, *, before=None, is_slow=False, **how):
        """Train up to an update, and return the weights.

        Options: ``accumulate`` batches in an update, ``validate_every`` so many updates, ``saves`` a checkpoint at the
        end, ``resumes`` from it.
        """
        torch.manual_seed(1)
        self.pause = (lambda part: time.sleep(PAUSES_S[part])) if is_slow else (lambda _: None)
        layer = Layer(before or (lambda *_: None), self.pause)
        how = {"accumulate": 1, "validate_every": 0, "saves": False, "resumes": False} | how
        self.run(callback, layer, steps, **how)
        self.reached = steps
        return layer.layer.weight.detach().clone()

    def rows(self, batches):
        return Rows(batches * RANKS, self.convert, self.pause)

    def loader(self, batches):
        return DataLoader(self.rows(batches), batch_size=2)

    def convert(self, numbers):
        """Return a row as the model takes it."""
        return (numbers,)

    def optimizer(self, layer):
        made = SGD(layer.parameters(), 0.01)
        made.pause = self.pause
        return made

    def profilers(self, callback):
        return callback.profilers

    def summary(self, callback):
        return callback.summary()

    def wrapped(self):
        """Return the methods that are wrapped now."""
        return {name for owner, *names in self.owners() for name in names if name in vars(owner)}

    def log_folder(self):
        return self.folder

    def close(self):
        """Close open files."""


class Lightning(Training):
    framework = "Lightning"
    logged_steps = MappingProxyType({"train": 4, "validate": 6})
    parts = (*Training.parts, "transfer")
    updated = (3, 4, 7, 8)  # the first batch of an update clears the gradients
    names_modules = True
    idle_calls = 12

    def run(self, callback, layer, steps, *, accumulate, validate_every, saves, resumes):
        import lightning.pytorch as pl
        from lightning.pytorch.callbacks import ModelCheckpoint
        from lightning.pytorch.loggers import CSVLogger

        optimizer = self.optimizer(layer)

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def training_step(self, batch, _):
                return self.layer(batch[0])

            def validation_step(self, batch, _):
                self.layer(batch[0])

            def configure_optimizers(self):
                return optimizer

        self.logger = CSVLogger(self.folder)
        callbacks = [callback] if callback else []
        callbacks += [ModelCheckpoint(self.folder, every_n_train_steps=4)] if validate_every else []
        self.trainer = pl.Trainer(
            accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto", logger=self.logger,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=bool(validate_every),
            default_root_dir=self.folder, callbacks=callbacks, max_steps=steps, max_epochs=-1,
            accumulate_grad_batches=accumulate, num_sanity_val_steps=2, log_every_n_steps=1,
            check_val_every_n_epoch=None, val_check_interval=(validate_every or 1000) * accumulate,
        )  # fmt: skip
        # an epoch has five updates
        data = self.loader(5 * accumulate), self.loader(VALIDATION_BATCHES) if validate_every else None
        checkpoint = self.folder / "state.ckpt"
        self.trainer.fit(Module(), *data, ckpt_path=checkpoint if resumes else None)
        if saves:
            self.trainer.save_checkpoint(checkpoint)

    def owners(self):
        return [(self.trainer.profiler, "start", "stop", "profile")]

    def log_folder(self):
        return Path(self.logger.log_dir)

    def logged(self, name):
        return logged_in(self.log_folder() / "metrics.csv", name)


def logged_in(path, name):
    """Return the steps and values of a metric in the file of a CSVLogger."""
    lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
    return [(int(line["step"]), float(line[name])) for line in lines if line.get(name)]


class Transformers(Training):
    framework = "the Trainer"
    counts_updates = True
    logged_steps = MappingProxyType({"train": 5, "validate": 6})
    fetched = (4, 8)  # all batches of an update are fetched before the first one
    names_modules = True
    idle_calls = 12

    def convert(self, numbers):
        return {"x": numbers, "labels": torch.zeros(2)}

    def run(self, callback, layer, steps, *, accumulate, validate_every, saves, resumes):
        from transformers_training import trainer

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, x, labels=None):
                loss = self.layer(x)
                return {"loss": loss, "logits": loss.reshape(1)}

        options = {"gradient_accumulation_steps": accumulate}
        if RANKS > 1:
            options["ddp_backend"] = "gloo"
        if validate_every or saves:
            options |= {"save_strategy": "steps", "save_steps": steps if saves else 4}
        if validate_every:
            options |= {"eval_strategy": "steps", "eval_steps": validate_every}
        callbacks = [callback] if callback else []
        self.trainer = trainer(self.folder, *callbacks, model=Model(), steps=steps, **options)
        self.trainer.train_dataset = self.rows(10 * accumulate)
        self.trainer.optimizer = self.optimizer(layer)
        checkpoint = next(self.folder.glob("checkpoint-*"), None)
        self.trainer.train(resume_from_checkpoint=str(checkpoint) if resumes else None)

    def owners(self):
        trainer = self.trainer
        methods = ("compute_loss", "get_batch_samples", "prediction_step")
        return [(trainer, *methods), (trainer.accelerator, "backward")]

    def logged(self, name):
        return [(line["step"], line[name]) for line in self.trainer.state.log_history if name in line]


class Loop(Training):
    """A loop of the user: validation and checkpoint belong to the step of the update before them."""

    validated, checkpointed = 2, 3

    def loop(self, batches, accumulate, validate_every, *, update, validate, save):
        for index, (batch,) in enumerate(batches, 1):
            update(batch, index % accumulate == 0)
            updates = self.reached + index // accumulate
            if validate_every and updates % validate_every == 0:
                validate()
            if validate_every and updates == 4:
                save("between")


class Accelerate(Loop):
    kind = "ProfileKwargs"
    framework = "accelerate"
    idle_calls = 6

    def accelerator(self, accumulate=1):
        import accelerate
        from accelerate.tracking import GeneralTracker

        lines = self.lines = []

        class Tracker(GeneralTracker):
            name = "list"
            requires_logging_directory = False
            tracker = lines

            def store_init_configuration(self, values):
                pass

            def log(self, values, step=None, **_):
                lines.append((step, values))

        folders = accelerate.utils.ProjectConfiguration(str(self.folder / "project"), str(self.log_folder()))
        self.made = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, log_with=Tracker(), project_config=folders
        )
        self.made.init_trackers("test")
        return self.made

    def run(self, callback, layer, steps, *, accumulate, validate_every, saves, resumes):
        accelerator = self.accelerator(accumulate)
        data = self.loader((steps - self.reached) * accumulate), self.loader(VALIDATION_BATCHES)
        model, optimizer, batches, evaluated = accelerator.prepare(layer, self.optimizer(layer), *data)

        def update(batch, _):
            with accelerator.accumulate(model):
                with prof.region("forward") if prof else nullcontext():
                    loss = model(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

        def validate():
            model.eval()
            with prof.stage("validate") as stage:
                for (batch,) in stage.steps(evaluated):
                    model(batch)
            model.train()

        def save(name):
            accelerator.save_state(self.folder / name)

        with accelerator.profile(callback) if callback else nullcontext() as prof:
            self.prof = prof
            if saves or resumes:
                accelerator.register_for_checkpointing(prof)
            if resumes:
                accelerator.load_state(self.folder / "state")
            steps_of = prof.steps(batches) if prof else batches
            self.loop(steps_of, accumulate, validate_every, update=update, validate=validate, save=save)
            if saves:
                save("state")

    def profilers(self, callback):
        return {"train": self.prof, **self.prof._stages.profilers}

    def summary(self, callback):
        return self.prof.summary()

    def owners(self):
        return [(self.made, "backward", "clip_grad_norm_", "clip_grad_value_", "save_state")]

    def log_folder(self):
        return self.folder / "logs"

    def logged(self, name):
        return [(step, values[name]) for step, values in self.lines if name in values]


class Fabric(Loop):
    framework = "the program"
    idle_calls = 10

    def run(self, callback, layer, steps, *, accumulate, validate_every, saves, resumes):
        from lightning.fabric import Fabric
        from lightning.fabric.loggers import CSVLogger

        self.logger = CSVLogger(self.folder / "logs", flush_logs_every_n_steps=1)
        callbacks = [callback] if callback else []
        how = {"strategy": "ddp"} if RANKS > 1 else {}
        fabric = Fabric(accelerator="cpu", devices=RANKS, callbacks=callbacks, loggers=[self.logger], **how)
        fabric.launch()
        self.made = fabric
        model, optimizer = fabric.setup(layer, self.optimizer(layer))
        data = self.loader((steps - self.reached) * accumulate), self.loader(VALIDATION_BATCHES)
        batches, evaluated = fabric.setup_dataloaders(*data)
        state = {"model": model, "profiler": callback}

        def update(batch, is_last):
            with callback.region("forward") if callback else nullcontext():
                loss = model(batch)
            fabric.backward(loss)
            if is_last:
                optimizer.step()
                optimizer.zero_grad()

        def validate():
            model.eval()
            for (batch,) in callback.steps(evaluated, stage="validate"):
                model(batch)
            model.train()

        def save(name):
            fabric.save(self.folder / name, state)

        if resumes:
            fabric.load(self.folder / "state", state)
        try:
            steps_of = callback.steps(batches) if callback else batches
            self.loop(steps_of, accumulate, validate_every, update=update, validate=validate, save=save)
        except BaseException as error:
            fabric.call("on_exception", exception=error)
            raise
        if saves:
            save("state")
        fabric.call("on_train_end")

    def owners(self):
        return [(self.made, "backward", "clip_gradients", "save")]

    def log_folder(self):
        return Path(self.logger.log_dir)

    def logged(self, name):
        return logged_in(self.log_folder() / "metrics.csv", name)


class Mmengine(Training):
    kind = "ProfilerHook"
    framework = "mmengine"
    counts_updates = True
    parts = (*Training.parts, "transfer")
    checkpointed = 3
    idle_calls = 9

    def convert(self, numbers):
        return numbers, 0

    def run(self, callback, layer, steps, *, accumulate, validate_every, saves, resumes):
        import mmengine_training as tiny
        from mmengine.optim import OptimWrapper
        from mmengine.runner import Runner

        class Model(tiny.Tiny):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, inputs, labels, mode="loss"):
                loss = self.layer(inputs)
                return {"loss": loss} if mode == "loss" else list(inputs)

        checkpoint = self.folder / "state.pth"
        options = {
            "model": Model(),
            "train_cfg": {"by_epoch": False, "max_iters": steps * accumulate},
            "optim_wrapper": OptimWrapper(self.optimizer(layer), accumulative_counts=accumulate),
            "train_dataloader": self.loader(steps * accumulate),
        }
        if validate_every:
            options["train_cfg"]["val_interval"] = validate_every * accumulate
            options["default_hooks"] = {"checkpoint": {"type": "CheckpointHook", "interval": 4, "by_epoch": False}}
            options |= tiny.validation(VALIDATION_BATCHES)
        if resumes:
            options |= {"load_from": str(checkpoint), "resume": True}
        self.made = Runner(**tiny.settings(self.folder, *([callback] if callback else []), **options))
        self.made.train()
        if saves:
            self.made.save_checkpoint(str(self.folder), checkpoint.name)

    def owners(self):
        optimizer, made = self.made.optim_wrapper, self.made
        return [
            (made, "call_hook", "save_checkpoint"), (made.model.data_preprocessor, "forward"),
            (optimizer, "optim_context", "backward", "step", "zero_grad"),
        ]  # fmt: skip

    def log_folder(self):
        return Path(self.made.log_dir)

    def logged(self, name):
        path = self.folder / self.made.timestamp / "vis_data" / "perfhooks.json"
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.exists() else ())
        return [(line["step"], line[name]) for line in lines if name in line]

    def close(self):
        from mmengine.logging import MMLogger

        for logger in MMLogger._instance_dict.values():
            for handler in [each for each in logger.handlers if isinstance(each, logging.FileHandler)]:
                handler.close()
                logger.removeHandler(handler)


TRAININGS = {kind.__name__.lower(): kind for kind in (Lightning, Transformers, Accelerate, Fabric, Mmengine)}
