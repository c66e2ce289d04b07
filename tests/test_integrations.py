"""The contract of all integrations: recorded steps and their parts, checkpoints, errors, results, and costs."""

import contextlib
import copy
import gc
import importlib
import signal
import sys

import pytest
import torch
from conftest import FRAMEWORKS
from face_files import TWO_WINDOWS, capture, events, parts, tables, windows
from integration_trainings import PAUSES_S, TRAININGS

import perfhooks
from perfhooks.adapters import Stages
from perfhooks.core.options import DEFAULTS

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"
    ),
]

BOTH = {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}
"""Steps of `TWO_WINDOWS`."""
SECOND = {"train-000007-000008": [7, 8]}


for module in FRAMEWORKS:  # before conftest.py freezes all objects
    with contextlib.suppress(ImportError):
        importlib.import_module(module)


def training_in(folder, name):
    pytest.importorskip("lightning" if name == "fabric" else name)
    return TRAININGS[name](folder)


@pytest.fixture(params=TRAININGS)
def training(request, tmp_path, monkeypatch):
    """A training in the test's folder."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mmengine's checkpoints on torch 2.6 and later
    made = training_in(tmp_path, request.param)
    yield made
    made.close()
    for number, handler in before.items():
        signal.signal(number, handler)


# --- construction ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"schedule": "wait=1 warmup=1 active=0"}, perfhooks.ScheduleError, "active must be an integer >= 1, got 0"),
        ({"schedule": {"train": None, "valid": None}}, perfhooks.OptionError, "'valid'"),
        ({"record_shapes": "yes"}, perfhooks.OptionError, "record_shapes"),
        ({"with_stacks": True}, TypeError, "with_stack"),
        ({"schedule_option": {"wait": 1}}, TypeError, "use schedule="),
        ({"step_unit": "epoch"}, perfhooks.OptionError, "step_unit must be 'batch' or 'optimizer', got 'epoch'"),
        ({"stage": "validate"}, perfhooks.OptionError, "stage"),
    ],
    ids=str,
)
def test_wrong_options_raise_at_construction(training, options, error, message):
    with pytest.raises(error, match=message):
        training.make(**options)


def test_integration_accepts_all_options_except_stage(training):
    given = {name: value for name, value in DEFAULTS.items() if name != "stage"} | {"on_trace_ready": []}
    callback = training.make(schedule=TWO_WINDOWS, **given)
    training.train(callback, 1)
    assert training.profilers(callback)["train"]._course.options == DEFAULTS


@pytest.mark.usefixtures("even_pace")
def test_defaults_record_one_small_window_into_the_log_folder(training):
    callback = training.make(background=False)
    training.train(callback, 16)
    folder = training.log_folder()
    assert windows(folder, "latest") == {"train-000012-000014": [12, 13, 14]}
    files = {path.name for path in (folder / "perf" / "latest" / "train-000012-000014").iterdir()}
    assert {"rank0.pt.trace.json.gz", "rank0.operators.csv"} <= files
    assert "wall" in training.summary(callback)


# --- one training with validations and a checkpoint ---


@pytest.fixture(scope="module", params=TRAININGS)
def whole(request, tmp_path_factory):
    """A training of ten updates, and the wrapped methods during each of its steps."""
    training = training_in(tmp_path_factory.mktemp(request.param), request.param)
    schedule = {"train": "wait=2 warmup=0 active=3 repeat=1", "validate": "wait=6 warmup=0 active=2 repeat=1"}
    options = {"step_unit": "optimizer", "on_trace_ready": ["steps", "trace"]}
    options |= {"module_names": True} if training.names_modules else {}
    callback = training.callback(schedule, **options)
    training.seen = {}

    def before(trains, index):
        if trains:
            training.seen[index] = training.wrapped()

    training.train(callback, validate_every=3, before=before)
    training.counts = {name: each.step_num for name, each in training.profilers(callback).items()}
    training.seen[10] = training.wrapped()
    yield training
    training.close()


def test_loops_have_separate_schedules_numbers_and_files(whole):
    assert windows(whole.folder) == {"train-000002-000004": [2, 3, 4], "validate-000006-000007": [6, 7]}
    assert whole.counts["train"] == 10
    assert whole.counts["validate"] in (15, 20), "transformers validates at the end, too"
    for name, rows in tables(whole.folder).items():
        assert {row["stage"] for row in rows} == {name.split("-")[0]}


def test_parts_of_a_step_have_times_and_sum_to_the_step(whole):
    rows = tables(whole.folder)["train-000002-000004"]
    expected = {step: set(whole.parts) for step in (2, 3, 4)}
    expected[whole.validated] |= {"validation"}
    expected[whole.checkpointed] |= {"checkpoint"}
    assert {int(row["step"]): parts(row) for row in rows} == expected
    for row in rows:
        assert sum(row[f"{part}_ms"] or 0 for part in (*parts(row), "other")) == pytest.approx(row["wall_ms"])


def test_validation_has_no_parts_of_the_training(whole):
    rows = tables(whole.folder)["validate-000006-000007"]
    assert [parts(row) for row in rows] == [{*whole.parts} - {"backward", "optimizer"}] * 2
    marks = [event["name"] for event in events(whole.folder, "train-000002-000004") if "name" in event]
    assert marks.count("forward") == 3
    assert ("[module] layer" in marks) == whole.names_modules
    names = {event.get("name") for event in events(whole.folder, "validate-000006-000007")}
    assert "Optimizer.step#SGD.step" not in names


def test_methods_are_wrapped_only_in_windows(whole):
    assert {step: bool(names) for step, names in whole.seen.items()} == {step: 2 <= step <= 4 for step in range(11)}


def test_results_are_in_the_log_of_the_framework(whole):
    for window, rows in tables(whole.folder).items():
        steps, logged = zip(*whole.logged(f"perf/{window.split('-')[0]}/wall_ms"), strict=True)
        walls = [row["wall_ms"] for row in rows]
        assert sum(logged) / len(logged) == pytest.approx(sum(walls) / len(walls))
        assert steps[-1] == whole.logged_steps[window.split("-")[0]]


def test_windows_name_their_framework(whole):
    for window in windows(whole.folder):
        assert capture(whole.folder, window)["circumstances"]["framework"] == whole.framework


# --- which steps ---


@pytest.mark.parametrize(("unit", "accumulate"), [("optimizer", 1), ("optimizer", 4), ("batch", 2)])
def test_scheduled_updates_or_batches_are_recorded(training, unit, accumulate):
    callback = training.callback(TWO_WINDOWS, step_unit=unit)
    training.train(callback, 5 if unit == "batch" else 10, accumulate=accumulate)
    assert windows(training.folder) == BOTH
    assert training.profilers(callback)["train"].step_num == 10
    rows = [row for rows in tables(training.folder).values() for row in rows]
    found = [tuple(int(row["step"]) for row in rows if part in parts(row)) for part in ("optimizer", "data")]
    assert found == ([training.updated, training.fetched] if unit == "batch" else [(3, 4, 7, 8)] * 2)


def test_time_counts_for_the_part_that_takes_the_time(training):
    callback = training.callback("wait=1 warmup=0 active=2 repeat=1", step_unit="optimizer", on_trace_ready="steps")
    training.train(callback, 6, is_slow=True)
    for row in tables(training.folder)["train-000001-000002"]:
        for part, pause_s in PAUSES_S.items():
            assert row[f"{part}_ms"] >= 1000 * pause_s, part


def test_training_is_the_same_bit_for_bit(training):
    alone = training.train(None)
    training.reached = 0
    assert torch.equal(alone, training.train(training.callback(TWO_WINDOWS)))


def test_training_without_a_window_logs_the_reason(training, caplog):
    training.train(training.callback("wait=100 warmup=1 active=1"), 4)
    assert "no window has been recorded: 4 steps ended; the first window is step 101" in caplog.text


def test_validation_window_inside_a_training_window_is_skipped(training, caplog):
    schedule = {"train": "wait=0 warmup=2 active=1 repeat=1", "validate": "wait=0 warmup=0 active=1 repeat=1"}
    training.train(training.callback(schedule), 4, validate_every=1)
    assert windows(training.folder) == {"train-000002-000002": [2]}
    assert "another profiler is recording" in caplog.text


def test_window_of_a_validation_ends_with_the_validation(training):
    callback = training.callback({"validate": "wait=3 warmup=0 active=4 repeat=1"})
    training.train(callback, validate_every=3)
    assert windows(training.folder) == {"validate-000003-000006": [3, 4]}
    assert capture(training.folder, "validate-000003-000006")["partial"] == "stopped before its last step"


def test_results_are_not_logged_without_log_results(training):
    training.train(training.callback(TWO_WINDOWS, log_results=False))
    assert windows(training.folder) == BOTH
    assert training.logged("perf/train/wall_ms") == []


# --- checkpoints ---


def resumed(training, stop, schedule, **how):
    """Train up to a checkpoint, and from there to the end with a new callback; return this callback."""
    options = {"step_unit": "optimizer"}
    training.train(training.callback(schedule, run="first", **options), stop, saves=True, **how)
    again = training.callback(schedule, run="again", **options)
    training.train(again, 10, resumes=True, **how)
    return again


@pytest.mark.parametrize(("stop", "expected"), [(2, BOTH), (4, SECOND), (6, SECOND), (9, {})])
def test_resumed_training_continues_its_schedule(training, caplog, stop, expected):
    again = resumed(training, stop, TWO_WINDOWS)
    assert windows(training.folder, "again") == expected
    assert training.profilers(again)["train"].step_num == 10
    assert ("no window has been recorded" in caplog.text) == (stop == 9)


def test_resumed_validation_continues_its_schedule(training):
    schedule = {"train": "wait=3 warmup=0 active=2 repeat=1", "validate": "wait=12 warmup=0 active=2 repeat=1"}
    resumed(training, 6, schedule, validate_every=3)
    assert windows(training.folder, "first") == {"train-000003-000004": [3, 4]}
    assert windows(training.folder, "again") == {"validate-000012-000013": [12, 13]}


def test_unreadable_counts_are_a_log_line_and_training_continues(training, monkeypatch, caplog):
    monkeypatch.setattr(Stages, "counts", lambda _: {"train": "three", "validate": -1})
    again = resumed(training, 2, TWO_WINDOWS)
    assert "cannot be read" in caplog.text
    assert training.profilers(again)["train"].step_num == (10 if training.counts_updates else 8)
    assert windows(training.folder, "again")["train-000003-000004"] == [3, 4]


@pytest.mark.parametrize(("training", "count"), [("lightning", 14), ("transformers", 9)], indirect=["training"])
def test_copy_of_the_callback_continues_its_schedule(training, count):
    """The Trainer of transformers counts from 0 in each training."""
    callback = training.callback(TWO_WINDOWS, step_unit="optimizer")
    training.train(callback, 5)
    again = copy.deepcopy(callback)
    training.train(again, 9)
    assert windows(training.folder) == BOTH
    assert [each.profilers["train"].step_num for each in (callback, again)] == [5, count]


# --- errors and costs ---


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_error_is_stored_with_the_window_and_ends_the_recorder(training, error):
    def fail(_, index):
        if index == 4:
            raise error

    callback = training.callback("wait=1 warmup=0 active=9 repeat=1", step_unit="optimizer")
    with pytest.raises((type(error), SystemExit)):
        training.train(callback, before=fail)
    assert not training.profilers(callback)["train"].in_window
    assert training.wrapped() == set()
    assert windows(training.folder) == {"train-000001-000009": [1, 2, 3]}
    assert capture(training.folder, "train-000001-000009")["partial"].startswith(type(error).__name__)


def test_error_in_a_validation_ends_both_profilers(training):
    def fail(trains, _):
        if not trains and training.profilers(callback)["train"].step_num:  # not in Lightning's sanity checking
            raise RuntimeError("no score")

    callback = training.callback(
        {"train": "wait=0 warmup=0 active=9 repeat=1", "validate": None}, step_unit="optimizer"
    )
    with pytest.raises(RuntimeError, match="no score"):
        training.train(callback, validate_every=2, before=fail)
    assert capture(training.folder, "train-000000-000008")["partial"] == "RuntimeError: no score"
    assert windows(training.folder) == {"train-000000-000008": list(range(training.validated - 1))}
    assert not any(each.in_window for each in training.profilers(callback).values())


def test_step_outside_of_windows_costs_few_calls(training):
    """Their number has no noise; `make bench` measures the time."""
    calls = []

    def count(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("perfhooks"):
            calls.append(f"{name}.{frame.f_code.co_name}")

    def before(_, index):
        sys.setprofile(count if index == 4 else None)

    gc.disable()  # whose listeners are called as well, whenever it comes
    try:
        training.train(training.callback("wait=1000000 warmup=1 active=1", step_unit="optimizer"), 6, before=before)
    finally:
        gc.enable()
    assert 0 < len(calls) <= training.idle_calls, calls
