"""accelerate's own idiom with our profiler: which steps it records, what is in them, and how it ends."""

import pytest

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from accelerate.utils import ProjectConfiguration
from face_files import TWO_WINDOWS, at_once, calls, capture, parts, run_readme, tables, windows
from torch.utils.data import DataLoader, TensorDataset

import perfhooks
from perfhooks.core.options import DEFAULTS
from perfhooks_accelerate import ProfileKwargs

pytestmark = [
    pytest.mark.recorder,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


def kwargs(folder, schedule, **options):
    """A handler that writes to a folder, at once, and only step tables unless told otherwise."""
    return ProfileKwargs(schedule, **at_once(folder) | options)


def prepared(accelerator, batches=10, models=1):
    """A loader, and some models with an optimizer each."""
    data = TensorDataset(torch.randn(2 * batches, 4))
    layers = [torch.nn.Linear(4, 2) for _ in range(models)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in layers]
    return accelerator.prepare(DataLoader(data, batch_size=2), *layers, *optimizers)


def train(accelerator, prof, loader, model, optimizer, *, at=None):
    """One epoch in accelerate's own form."""
    updates = 0
    for index, (batch,) in enumerate(prof.steps(loader)):
        with accelerator.accumulate(model):
            with prof.region("forward"):
                loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        updates += accelerator.sync_gradients
        if at is not None:
            at(index)
    return updates


# --- arguments ---


def test_wrong_options_raise_before_training():
    with pytest.raises(perfhooks.ScheduleError, match="active"):
        ProfileKwargs("wait=1 warmup=1 active=0")
    with pytest.raises(TypeError, match="use schedule="):
        ProfileKwargs(schedule_option={"wait": 1})
    with pytest.raises(perfhooks.OptionError, match="step_unit"):
        ProfileKwargs(step_unit="epoch")
    with pytest.raises(perfhooks.OptionError, match="stage"):
        ProfileKwargs(stage="validate")
    with pytest.raises(perfhooks.OptionError, match="record_shapes"):
        ProfileKwargs(record_shapes="yes")


def test_profile_kwargs_accept_all_profiler_options_except_stage():
    given = {name: value for name, value in DEFAULTS.items() if name != "stage"}
    accelerator = Accelerator(cpu=True)
    with accelerator.profile(ProfileKwargs(**given, schedule=TWO_WINDOWS, on_trace_ready=[])) as prof:
        assert prof._course.options == DEFAULTS


@pytest.mark.usefixtures("even_pace")
def test_defaults_record_one_small_window_into_the_log_folder(tmp_path):
    """Which is the project's unless it has one of its own."""
    folders = ProjectConfiguration(str(tmp_path / "project"), logging_dir=str(tmp_path / "logs"))
    accelerator = Accelerator(cpu=True, project_config=folders)
    with accelerator.profile(ProfileKwargs(background=False)) as prof:
        train(accelerator, prof, *prepared(accelerator, 16))
    assert windows(tmp_path / "logs", "latest") == {"train-000012-000014": [12, 13, 14]}


def test_the_blocks_of_its_readme_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(DEFAULTS, "background", False)
    accelerator = Accelerator(cpu=True, project_dir=str(tmp_path))
    layer = torch.nn.Linear(4, 2)
    model, optimizer, loader = accelerator.prepare(
        layer, torch.optim.SGD(layer.parameters(), lr=0.01), DataLoader(torch.randn(56, 4))
    )
    names = {"accelerator": accelerator, "model": model, "optimizer": optimizer}
    run_readme("perfhooks_accelerate", names | {"loader": loader, "validation_loader": loader})
    found = [path.parent.name for path in (tmp_path / "perf").glob("*/*/rank0.steps.csv")]
    assert {"train-000052-000054", "validate-000011-000013"} <= set(found)


@pytest.mark.parametrize("how", ["argument", "handler"])
def test_profile_and_accelerator_accept_the_kwargs(tmp_path, how):
    ours = kwargs(tmp_path, TWO_WINDOWS)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[ours] if how == "handler" else None)
    with accelerator.profile(ours if how == "argument" else None) as prof:
        train(accelerator, prof, *prepared(accelerator))
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}
    assert not {"backward", "save_state"} & set(vars(accelerator))


# --- which steps, and what is in them ---


@pytest.mark.parametrize("accumulate", [1, 4])
def test_step_can_be_an_optimizer_update_of_several_batches(tmp_path, accumulate):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    with accelerator.profile(kwargs(tmp_path, TWO_WINDOWS, step_unit="optimizer")) as prof:
        updates = train(accelerator, prof, *prepared(accelerator, 10 * accumulate))
        assert prof.step_num == updates == 10
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}


def test_an_update_that_was_skipped_ends_no_step(tmp_path, monkeypatch):
    accelerator = Accelerator(cpu=True)
    loader, model, optimizer = prepared(accelerator)
    skipped = iter([True, False] * 5)
    monkeypatch.setattr(type(accelerator), "optimizer_step_was_skipped", property(lambda _: next(skipped)))
    with accelerator.profile(kwargs(tmp_path, TWO_WINDOWS, step_unit="optimizer")) as prof:
        train(accelerator, prof, loader, model, optimizer)
        assert prof.step_num == 5


def test_step_parts_including_validation_have_times(tmp_path):
    accelerator = Accelerator(cpu=True, project_dir=tmp_path)
    loader, model, optimizer = prepared(accelerator)
    schedule = {"train": "wait=2 warmup=0 active=3 repeat=1", "validate": "wait=3 warmup=0 active=2 repeat=1"}

    def between(index):
        if index in {3, 8}:
            with prof.stage("validate") as val:
                for (batch,) in val.steps(loader):
                    model(batch)
        if index == 4:
            accelerator.save_state(tmp_path / "state")

    with accelerator.profile(kwargs(tmp_path, schedule)) as prof:
        train(accelerator, prof, loader, model, optimizer, at=between)
    update = {"data", "forward", "backward", "optimizer"}
    found = {int(row["step"]): parts(row) for row in tables(tmp_path)["train-000002-000004"]}
    assert found == {2: update, 3: update | {"validation"}, 4: update | {"checkpoint"}}
    # the first validation has ten batches, and its window lies inside of the training's
    assert set(windows(tmp_path)) == {"train-000002-000004"}


@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_clipping_gradients_counts_as_update_from_the_first_step(tmp_path, clip):
    accelerator = Accelerator(cpu=True)
    loader, model, _ = prepared(accelerator, 3)
    with accelerator.profile(kwargs(tmp_path, "wait=0 warmup=0 active=2 repeat=1")) as prof:
        for (batch,) in prof.steps(loader):
            accelerator.backward(model(batch).square().mean())
            getattr(accelerator, clip)(model.parameters(), 1.0)
    found = [parts(row) for row in tables(tmp_path)["train-000000-000001"]]
    assert found == [{"data", "forward", "backward", "optimizer"}] * 2


def test_other_loops_have_windows_of_their_own(tmp_path):
    accelerator = Accelerator(cpu=True)
    loader, model, _ = prepared(accelerator, 4)
    one = "wait=1 warmup=0 active=2 repeat=1"
    with accelerator.profile(kwargs(tmp_path, {"validate": one, "predict": one})) as prof:
        for name in ("validate", "predict", "test"):
            with prof.stage(name) as loop:
                for (batch,) in loop.steps(loader):
                    model(batch)
    assert windows(tmp_path) == {"predict-000001-000002": [1, 2], "validate-000001-000002": [1, 2]}


def test_loop_without_a_window_is_reported_once_at_the_end(tmp_path, caplog):
    accelerator = Accelerator(cpu=True)
    loader, model, _ = prepared(accelerator, 3)
    with accelerator.profile(kwargs(tmp_path, {"validate": "wait=50 warmup=0 active=1 repeat=1"})) as prof:
        for _ in range(2):
            with prof.stage("validate") as loop:
                for (batch,) in loop.steps(loader):
                    model(batch)
            assert "no window has been recorded" not in caplog.text
    assert "6 steps ended; the first window is step 50" in caplog.text


def test_advice_for_every_loop_is_in_the_words_of_accelerate(tmp_path):
    accelerator = Accelerator(cpu=True)
    loader, model, optimizer = prepared(accelerator, 3)
    one = "wait=1 warmup=0 active=1 repeat=1"
    with accelerator.profile(kwargs(tmp_path, {"train": one, "test": one})) as prof:
        train(accelerator, prof, loader, model, optimizer)
        with prof.stage("test") as loop:
            for (batch,) in loop.steps(loader):
                model(batch)
    for window in ("train-000001-000001", "test-000001-000001"):
        assert capture(tmp_path, window)["circumstances"]["framework"] == "accelerate"


def test_batch_with_several_models_and_optimizers_is_one_step(tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader, one, two, first, second = prepared(accelerator, models=2)
    with accelerator.profile(kwargs(tmp_path, "wait=1 warmup=0 active=2 repeat=1", step_unit="optimizer")) as prof:
        for (batch,) in prof.steps(loader):
            with accelerator.accumulate(one, two):
                accelerator.backward(one(batch).mean() + two(batch).mean())
                for optimizer in (first, second):
                    optimizer.step()
                    optimizer.zero_grad()
        assert prof.step_num == 5
    assert windows(tmp_path) == {"train-000001-000002": [1, 2]}


class Tracker(GeneralTracker):
    """One that keeps what it is told."""

    name = "list"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.seen = []

    @property
    def tracker(self):
        return self.seen

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **kwargs):
        self.seen.append((step, values))


def tracked():
    """An accelerator and its tracker."""
    tracker = Tracker()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("test")
    return accelerator, tracker


def test_results_are_with_the_trackers(tmp_path):
    accelerator, tracker = tracked()
    with accelerator.profile(kwargs(tmp_path, TWO_WINDOWS)) as prof:
        train(accelerator, prof, *prepared(accelerator))
    assert [(step, values["perf/train/wall_ms"] > 0) for step, values in tracker.seen] == [(4, True), (8, True)]


def test_results_of_other_loops_are_with_the_trackers(tmp_path):
    accelerator, tracker = tracked()
    loader, model, _ = prepared(accelerator, 4)
    handler = kwargs(tmp_path, {"validate": "wait=1 warmup=0 active=2 repeat=1"})
    with accelerator.profile(handler) as prof, prof.stage("validate") as loop:
        for (batch,) in loop.steps(loader):
            model(batch)
    assert [(step, values["perf/validate/wall_ms"] > 0) for step, values in tracker.seen] == [(2, True)]


def test_trackers_get_no_results_without_log_results(tmp_path):
    accelerator, tracker = tracked()
    with accelerator.profile(kwargs(tmp_path, TWO_WINDOWS, log_results=False)) as prof:
        train(accelerator, prof, *prepared(accelerator))
    assert len(windows(tmp_path)) == 2
    assert tracker.seen == []


# --- made by hand ---


class Handing(Accelerator):
    """One that hands out a profiler which has not begun."""

    def made(self, handler):
        return handler.build()


def test_folder_and_run_of_start_override_the_logging_folder(tmp_path):
    accelerator = Handing(cpu=True, project_dir=tmp_path / "project")
    prof = accelerator.made(ProfileKwargs(TWO_WINDOWS, ["steps"], background=False))
    prof.start(out=tmp_path / "perf", run="run")
    train(accelerator, prof, *prepared(accelerator))
    prof.stop()
    assert set(windows(tmp_path)) == {"train-000003-000004", "train-000007-000008"}
    assert not (tmp_path / "project").exists()


def test_without_accelerator_a_step_is_a_batch_without_parts(tmp_path, caplog):
    prof = kwargs(tmp_path, "wait=1 warmup=0 active=1 repeat=1", step_unit="optimizer").build()
    with prof:
        for _ in prof.steps(range(3)):
            torch.ones(2).sum()
    assert "not called by an Accelerator" in caplog.text
    (row,) = tables(tmp_path)["train-000001-000001"]
    assert parts(row) == {"data"}


# --- checkpoints, ends, cost ---


def test_resumed_training_continues_its_schedule(tmp_path):
    for run, batches in (("first", 6), ("again", 4)):
        accelerator = Accelerator(cpu=True)
        loader, model, optimizer = prepared(accelerator, batches)
        with accelerator.profile(kwargs(tmp_path, TWO_WINDOWS, run=run)) as prof:
            accelerator.register_for_checkpointing(prof)
            if run == "again":
                accelerator.load_state(tmp_path / "state")
            train(accelerator, prof, loader, model, optimizer)
            accelerator.save_state(tmp_path / "state")
            assert prof.step_num == {"first": 6, "again": 10}[run]
    assert windows(tmp_path, "first") == {"train-000003-000004": [3, 4]}
    assert windows(tmp_path, "again") == {"train-000007-000008": [7, 8]}


def test_resumed_validation_continues_its_schedule(tmp_path):
    schedule = {"validate": "wait=5 warmup=0 active=1 repeat=1"}
    state = {}
    for run in ("first", "again"):
        accelerator = Accelerator(cpu=True)
        loader, model, _ = prepared(accelerator, 3)
        with accelerator.profile(kwargs(tmp_path, schedule, run=run)) as prof:
            if run == "again":
                prof.load_state_dict(state)
            with prof.stage("validate") as loop:
                for (batch,) in loop.steps(loader):
                    model(batch)
            state = prof.state_dict()
    assert state == {"steps": {"train": 0, "validate": 6}}
    assert windows(tmp_path, "again") == {"validate-000005-000005": [5]}


def test_window_that_a_checkpoint_shortens_is_marked_partial(tmp_path):
    accelerator = Accelerator(cpu=True)
    with accelerator.profile(kwargs(tmp_path, "wait=1 warmup=0 active=9 repeat=1")) as prof:
        for index, _ in enumerate(prof.steps(range(4))):
            if index == 2:
                prof.load_state_dict({"steps": {"train": 20}})
        assert prof.step_num == 22
    assert "resumed" in capture(tmp_path, "train-000001-000009")["partial"]


@pytest.mark.parametrize("state", [{}, {"steps": "nonsense"}, {"steps": {"train": "three"}}], ids=str)
def test_unreadable_state_raises_nothing(tmp_path, state):
    accelerator = Accelerator(cpu=True)
    with accelerator.profile(kwargs(tmp_path, TWO_WINDOWS)) as prof:
        prof.load_state_dict(state)
        assert prof.step_num == 0


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), KeyboardInterrupt()], ids=repr)
def test_end_of_a_training_is_stored_with_the_window(tmp_path, error):
    accelerator = Accelerator(cpu=True)

    def fail(index):
        if index == 3:
            raise error

    def run():
        with accelerator.profile(kwargs(tmp_path, "wait=1 warmup=0 active=9 repeat=1")) as prof:
            train(accelerator, prof, *prepared(accelerator), at=fail)

    with pytest.raises(type(error)):
        run()
    assert capture(tmp_path, "train-000001-000009")["partial"].startswith(type(error).__name__)
    assert "backward" not in vars(accelerator)


@pytest.mark.parametrize("unit", ["batch", "optimizer"])
def test_idle_step_costs_little(tmp_path, unit):
    accelerator = Accelerator(cpu=True)
    with accelerator.profile(kwargs(tmp_path, "wait=1000000 warmup=1 active=1", step_unit=unit)) as prof:
        assert calls(prof.step) <= 6
