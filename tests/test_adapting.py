"""What integrations share: stages with schedules of their own, their counts, and what goes around foreign methods."""

import copy
import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch

import perfhooks
from perfhooks import adapters
from perfhooks.adapters import ModuleNames, OpenLabels, Parts, Stage, Stages, WrappedMethods
from perfhooks.adapters import parts as adapting_parts
from perfhooks.run.capture import Capture

ONE = "wait=1 warmup=0 active=1 repeat=1"


def run(stage, steps, **begin):
    stage.begin(**begin)
    for _ in range(steps):
        stage.step()
    stage.stop()


# --- schedules ---


def test_schedule_is_for_training_and_mapping_for_each_stage():
    stages = ("train", "validate")
    usual = "when settled"
    assert adapters.schedules(None, stages) == {"train": usual}
    assert adapters.schedules(ONE, stages) == {"train": ONE}
    assert adapters.schedules({"wait": 1, "active": 1}, stages) == {"train": {"wait": 1, "active": 1}}
    assert adapters.schedules({"validate": ONE}, stages) == {"validate": ONE}
    assert adapters.schedules({"val": None}, {"val": "validate"}) == {"validate": usual}
    with pytest.raises(perfhooks.OptionError, match="'valid'"):
        adapters.schedules({"train": ONE, "valid": ONE}, stages)


# --- what a checkpoint holds ---


@pytest.mark.parametrize(
    "state", [7, [1], {"train": "3"}, {"train": -1}, {"train": True}, {3: 3}, {"train": None}], ids=str
)
def test_unreadable_counts_cost_only_a_log_line(state, caplog):
    assert adapters.read_counts(state) == {}
    assert "cannot be read" in caplog.text


def test_readable_counts_survive_beside_unreadable_counts(caplog):
    assert adapters.read_counts({"train": 3, "test": "x"}) == {"train": 3}
    assert adapters.read_counts({"train": 3}) == {"train": 3}
    assert len(caplog.records) == 1


@pytest.mark.recorder
@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda stages: pickle.loads(pickle.dumps(stages))], ids=["copy", "pickle"]
)
def test_copied_stages_have_not_begun_and_continue_counting(tmp_path, again):
    stages = Stages.of({"train": ONE}, "steps", options={"out": tmp_path, "background": False})
    run(stages["train"], 3, run="first")
    copied = again(stages)
    assert copied["train"].profiler is not stages["train"].profiler
    assert copied.counts() == stages.counts() == {"train": 3}
    run(copied["train"], 2, run="second")
    assert copied.counts() == {"train": 5}
    assert stages.counts() == {"train": 3}


# --- a stage ---


class Noting:
    """Labels that note when they are put and taken off."""

    def __init__(self, profiler, name):
        self.notes = []
        self.profiler = profiler

    def put(self, loop, *, waiting):
        self.notes.append((self.profiler.step_num, loop, "waiting" if waiting else "at once"))

    def take_off(self, loop):
        self.notes.append((self.profiler.step_num, loop, "off"))


@pytest.mark.recorder
@pytest.mark.parametrize(
    ("schedule", "notes"),
    [
        ("wait=2 warmup=1 active=1 repeat=1", [(2, "loop", "waiting"), (4, "loop", "off")]),
        ("wait=0 warmup=0 active=1 repeat=2", [(0, "loop", "at once"), (2, "loop", "off")]),
        ("wait=5 warmup=0 active=9", [(5, "loop", "waiting"), (6, "loop", "off")]),
    ],
)
def test_labels_are_put_while_windows_are_open(schedule, notes):
    stage = Stage("train", schedule, [], options={}, labels=Noting)
    run(stage, 6, loop="loop")
    assert stage.labels.notes == notes


@pytest.mark.recorder
def test_stage_records_nothing_before_begin():
    """Sanity checks and the like step as well, and are no steps of the training."""
    seen = []
    schedule = "wait=0 warmup=0 active=2 repeat=1"
    stage = Stage("train", schedule, lambda window: seen.append(window.step_num), options={})
    for _ in range(3):
        stage.step()
    assert (seen, stage.count) == ([], 0)
    run(stage, 3)
    assert (seen, stage.count) == ([2], 3)


@pytest.mark.recorder
def test_failing_labels_cost_one_log_line(caplog):
    class Failing(Noting):
        def put(self, loop, *, waiting):
            raise RuntimeError("no such seam")

    stage = Stage("train", "wait=0 warmup=0 active=3 repeat=1", [], options={}, labels=Failing)
    run(stage, 6)
    assert stage.profiler.step_num == 6
    assert caplog.text.count("no such seam") == 1


@pytest.mark.recorder
def test_listener_gets_the_window_and_the_framework_step(tmp_path):
    heard = []

    def listen(capture, place):
        heard.append((place.folder.name, stage.global_step_of(capture), adapters.last_step(capture)))
        assert adapters.scalars(capture)["perf/train/wall_ms"] > 0
        assert [step for step, row in adapters.step_rows(place) if row["wall_ms"] > 0] == [2]
        assert "| wall_ms |" in adapters.markdown(capture, place)
        assert capture.circumstances.framework == "Frame"

    options = {"out": tmp_path, "background": False, "on_error": "raise"}
    schedule = "wait=2 warmup=0 active=1 repeat=1"
    stage = Stage("train", schedule, "steps", options=options, listener=listen, framework="Frame")
    run(stage, 4, global_step=lambda: 10 * stage.profiler.step_num)
    assert heard == [("train-000002-000002", 20, 2)]


@pytest.mark.recorder
def test_step_that_is_no_number_raises_nothing(caplog):
    stage = Stage("train", ONE, [], options={})
    stage.begin(step="three")
    stage.step()
    stage.stop()
    assert "must be an integer" in caplog.text


def test_shortened_window_ends_at_its_last_complete_step():
    assert adapters.last_step(Capture(first=2, last=5, reached=6)) == 5
    assert adapters.last_step(Capture(first=2, last=5, reached=3, partial="ValueError")) == 3
    assert adapters.last_step(Capture(first=2, reached=7)) == 7


@pytest.mark.recorder
def test_stage_keeps_no_window_results_by_default(tmp_path):
    for options, is_held in (({}, False), ({"keep_results": True}, True)):
        stage = Stage("train", ONE, "steps", options={"out": tmp_path, "background": False, **options})
        run(stage, 4)
        try:
            stage.profiler.events()
        except perfhooks.NothingRecordedError:
            assert not is_held
        else:
            assert is_held


def test_runs_that_start_in_the_same_moment_have_different_names():
    assert len({adapters.new_run_name() for _ in range(5)}) == 5


def test_loop_without_a_schedule_has_an_inactive_stage(tmp_path):
    """So that no face asks whether there is one: it counts, records, writes and keeps nothing."""
    stages = Stages.of({"train": ONE}, "steps", options={"out": tmp_path, "background": False})
    for stage in (stages["validate"], copy.deepcopy(stages)["validate"]):
        with stage.running("loop", step=7, out=tmp_path), stage.parts.validation():
            for _ in range(5):
                stage.data_arrived()
                stage.parts.begin("forward")
                stage.step()
                stage.parts.end("forward")
        assert stage.count == 0
    assert stages.counts() == {"train": 0}
    assert "validate" not in stages
    assert list(stages.profilers) == ["train"]
    assert list(tmp_path.iterdir()) == []


# --- causes ---


def test_exception_with_a_broken_str_is_shown_by_its_type():
    class MuteError(Exception):
        def __str__(self):
            raise ValueError("no text")

    assert adapters.cause_of(MuteError()) == "MuteError"
    assert adapters.cause_of(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert adapters.cause_of(ValueError("no")) == "ValueError: no"
    assert len(adapters.cause_of(ValueError("x" * 20_000_000))) < 2000


def test_error_of_a_loader_worker_is_shown_by_its_last_line():
    try:
        {}["no image\n"]
    except KeyError:
        wrapped = torch._utils.ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(KeyError) as raised:
        wrapped.reraise()
    assert adapters.cause_of(raised.value) == "KeyError: 'no image\\n'"


# --- labels, and methods of others ---


@pytest.fixture
def seen():
    """What the labels of a `region` did, as tags."""
    return []


@pytest.fixture
def region(seen):
    class Region:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            seen.append(f"<{self.name}>")

        def __exit__(self, *_):
            seen.append(f"</{self.name}>")

    return Region


def test_end_of_a_label_closes_the_labels_inside(seen, region):
    labels = OpenLabels(region)
    labels.begin("outer")
    labels.begin("inner")
    labels.end("nothing")
    labels.end("outer")
    labels.begin("last", key="by another name")
    assert labels.has("by another name")
    labels.close()
    assert seen == ["<outer>", "<inner>", "</inner>", "</outer>", "<last>", "</last>"]


def test_repeated_begin_of_a_part_has_no_effect(seen, region, monkeypatch):
    """As with a hook that comes for every micro-batch."""
    monkeypatch.setattr(adapting_parts, "LabelledRange", region)
    pulse = SimpleNamespace(is_recording=True, set_aside=lambda *_: None)
    parts = Parts(SimpleNamespace(pulse=pulse), {})
    parts.begin("optimizer")
    parts.put(None, waiting=False)
    parts.begin("optimizer")
    parts.begin("optimizer")
    parts.end("optimizer")
    assert seen == ["<optimizer>", "</optimizer>"]


def test_module_labels_end_after_exceptions_too(seen, region):
    class Broken(torch.nn.Module):
        def forward(self, given):
            raise ValueError("no")

    model = torch.nn.Sequential(torch.nn.ReLU(), Broken())
    names = ModuleNames(model, region)
    with pytest.raises(ValueError, match="no"):
        model(torch.ones(1))
    assert seen == ["<[module] 0>", "</[module] 0>", "<[module] 1>", "</[module] 1>"]
    names.remove()
    model[0](torch.ones(1))
    assert len(seen) == 4


class Duck:
    def speak(self, times=1):
        return "quack" * times


def loudly(method):
    return lambda *args, **kwargs: method(*args, **kwargs).upper()


def test_unwrapping_restores_all_methods():
    duck, own, methods = Duck(), Duck(), WrappedMethods()
    own.speak = lambda: "moo"
    before = own.speak
    for one in (duck, duck, own):
        methods.wrap(one, "speak", loudly)
        methods.wrap(one, "swim", loudly)
    assert (duck.speak(2), own.speak()) == ("QUACKQUACK", "MOO")
    methods.unwrap()
    assert (vars(duck), own.speak) == ({}, before)


def test_methods_wrapped_again_by_other_code_stay_wrapped():
    duck, methods = Duck(), WrappedMethods()
    methods.wrap(duck, "speak", loudly)
    ours = duck.speak
    duck.speak = theirs = lambda: ours() + "!"
    methods.unwrap()
    assert duck.speak is theirs
    assert duck.speak() == "QUACK!"


def test_caller_is_found_on_the_stack():
    class Goose(Duck):
        def speak(self):
            return adapters.caller(Duck)

    goose = Goose()
    assert goose.speak() is goose
    assert adapters.caller(Duck) is None
    assert copy.deepcopy(WrappedMethods()) is not None


def test_search_for_a_caller_keeps_no_variables_of_the_program():
    """Until Python 3.13, all of them would live as long as the frame that was searched."""

    class State:
        pass

    state = State()
    alive = weakref.ref(state)
    assert adapters.caller(State) is None
    del state
    assert alive() is None


# --- parts ---


@pytest.mark.recorder
def test_parts_and_validations_are_labelled_in_open_windows(tmp_path):
    class Model:
        def __init__(self):
            self.inner = Duck()

        def save(self):
            return "saved"

    model = Model()
    methods = {"inner.speak": "forward", "save": "checkpoint", "inner.swim": "optimizer"}
    options = {"out": tmp_path, "run": "run", "background": False, "on_error": "raise"}
    stage = Stage(
        "train", "wait=1 warmup=0 active=2 repeat=1", "steps", options=options,
        labels=lambda profiler, _: adapters.Parts(profiler, methods, waits=True),
    )  # fmt: skip
    with stage.running(model):
        for step in range(4):
            model.inner.speak()
            if step == 2:
                with stage.parts.validation():
                    model.inner.speak()
                    model.save()
            stage.step()
            stage.parts.wait()
    assert vars(model.inner) == {}
    rows = dict(adapters.step_rows(next(iter(stage.profiler._course.windows.handover.places))))
    found = {step: {name for name in ("data", "forward", "validation", "checkpoint") if row.get(f"{name}_ms")}
             for step, row in rows.items()}  # fmt: skip
    assert found == {1: {"data", "forward"}, 2: {"data", "forward", "validation", "checkpoint"}}


@pytest.mark.recorder
@pytest.mark.parametrize(("wait", "waited"), [(1, True), (0, False)])
def test_window_after_a_step_begins_with_a_wait_for_data(tmp_path, wait, waited):
    options = {"out": tmp_path, "run": "run", "background": False, "on_error": "raise"}
    stage = Stage(
        "train", f"wait={wait} warmup=0 active=1 repeat=1", "steps", options=options,
        labels=lambda profiler, _: Parts(profiler, {"speak": "forward"}, waits=True),
    )  # fmt: skip
    with stage.running(duck := Duck()):
        for _ in range(2):
            torch.ones(3).sum()
            duck.speak()
            stage.step()
    rows = dict(adapters.step_rows(next(iter(stage.profiler._course.windows.handover.places))))
    assert {step: bool(row.get("data_ms")) for step, row in rows.items()} == {wait: waited}
    assert rows[wait]["forward_ms"]


@pytest.mark.recorder
def test_an_error_inside_ends_all_stages_with_its_cause(tmp_path, caplog):
    stages = Stages.of(
        {"train": "wait=0 warmup=0 active=9 repeat=1"}, "steps", options={"out": tmp_path, "background": False}
    )

    def fail():
        with stages.until_error():
            stages["train"].begin()
            stages["train"].step()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert "ValueError: no" in caplog.text
    assert not stages["train"].profiler.in_window
