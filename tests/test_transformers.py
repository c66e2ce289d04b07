"""The transformers callback in real trainings: which steps it records, what is in them, and how it ends."""

import copy

import pytest

pytest.importorskip("transformers")

import torch
from face_files import TWO_WINDOWS, calls, capture, parts, run_readme, tables, windows, wrong_options_raise
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from transformers_training import Numbers, Tiny, profiler, trainer

import perfhooks
from perfhooks.core.options import DEFAULTS
from perfhooks_transformers import ProfilerCallback

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"
    ),
]

UPDATE = {"data", "forward", "backward", "optimizer"}


# --- arguments ---


def test_wrong_options_raise_before_training():
    wrong_options_raise(ProfilerCallback)
    with pytest.raises(perfhooks.OptionError, match="'eval'"):
        ProfilerCallback({"train": None, "eval": None})


def test_callback_accepts_all_profiler_options_except_stage():
    given = {name: value for name, value in DEFAULTS.items() if name != "stage"}
    assert ProfilerCallback(**given).profilers["train"]._course.options == DEFAULTS


@pytest.mark.usefixtures("even_pace")
def test_defaults_record_one_small_window_into_the_output_folder(tmp_path):
    callback = ProfilerCallback(background=False)
    trainer(tmp_path, callback, steps=16).train()
    assert windows(tmp_path, "latest") == {"train-000012-000014": [12, 13, 14]}
    found = {path.name for path in (tmp_path / "perf" / "latest" / "train-000012-000014").iterdir()}
    assert {"rank0.pt.trace.json.gz", "rank0.operators.csv"} <= found
    assert callback.summary()._repr_html_().startswith("<pre>")
    assert "wall" in callback.summary()
    assert callback.summary(format="markdown")._repr_markdown_().count("## Where the step goes") == 1


def test_the_blocks_of_its_readme_run(tmp_path, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "background", False)
    names = {"Trainer": lambda _, callbacks: trainer(tmp_path, *callbacks, steps=56).train()}
    run_readme("perfhooks_transformers", names)
    assert windows(tmp_path, "latest") == {"train-000052-000054": [52, 53, 54]}


# --- which steps, and what is in them ---


@pytest.mark.parametrize("accumulate", [1, 4])
def test_step_is_an_update_counted_by_global_step(tmp_path, accumulate):
    callback = profiler(tmp_path, TWO_WINDOWS)
    made = trainer(tmp_path, callback, steps=10, gradient_accumulation_steps=accumulate)
    made.train()
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}
    assert callback.profilers["train"].step_num == made.state.global_step == 10
    assert made.model.calls == 10 * accumulate


def test_a_step_may_be_a_batch(tmp_path):
    callback = profiler(tmp_path, "wait=4 warmup=0 active=4 repeat=1", step_unit="batch")
    trainer(tmp_path, callback, steps=3, gradient_accumulation_steps=4).train()
    (rows,) = tables(tmp_path).values()
    assert callback.profilers["train"].step_num == 12
    assert [row["step"] for row in rows if "optimizer" in parts(row)] == [7]
    assert [row["step"] for row in rows if "data" in parts(row)] == [4], "all batches of an update are fetched before"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that evaluates, saves and logs, and a prediction; its folder, callback and Trainer."""
    folder = tmp_path_factory.mktemp("whole")
    schedule = {
        "train": "wait=2 warmup=0 active=4 repeat=1",
        "validate": "wait=6 warmup=0 active=2 repeat=1",
        "predict": "wait=1 warmup=0 active=2 repeat=1",
    }
    callback = profiler(folder, schedule, module_names=True, on_trace_ready=["steps", "trace"])
    made = trainer(
        folder, callback, eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=4, logging_steps=2,
        logging_strategy="steps", report_to=["tensorboard"], logging_first_step=True,
    )  # fmt: skip
    made.train()
    made.predict(Numbers(10))
    return folder, callback, made


def test_parts_of_a_step_sum_to_the_step(whole):
    rows = tables(whole[0])["train-000002-000005"]
    # a step goes from one update to the next: what comes after the third and the fourth is in what follows
    more = {3: {"validation"}, 4: {"checkpoint"}}
    assert {row["step"]: parts(row) for row in rows} == {step: UPDATE | more.get(step, set()) for step in (2, 3, 4, 5)}
    for row in rows:
        total = sum(row[f"{part}_ms"] or 0 for part in (*parts(row), "other"))
        assert total == pytest.approx(row["wall_ms"])


def test_evaluations_and_predictions_have_windows_of_their_own(whole):
    folder = whole[0]
    # two evaluations of five batches, and one when all is over
    assert windows(folder)["validate-000006-000007"] == [6, 7]
    assert windows(folder)["predict-000001-000002"] == [1, 2]
    rows = [*tables(folder)["validate-000006-000007"], *tables(folder)["predict-000001-000002"]]
    assert all(parts(row) == {"data", "forward"} for row in rows)


def test_results_are_in_the_log_and_the_reports_of_the_trainer(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, made = whole
    logged = [line for line in made.state.log_history if "perf/train/wall_ms" in line]
    walls = [row["wall_ms"] for row in tables(folder)["train-000002-000005"]]
    assert [line["perf/train/wall_ms"] for line in logged] == [pytest.approx(sum(walls) / len(walls))]
    files = sorted(folder.rglob("events.out.tfevents.*"))
    tags = {tag for file in files for tag in EventAccumulator(str(file)).Reload().Tags()["scalars"]}
    assert any(tag.endswith("perf/train/forward_ms") for tag in tags)


def test_trainer_logs_at_its_usual_steps(whole):
    lines = [line["step"] for line in whole[2].state.log_history if "loss" in line]
    assert lines == [1, 2, 4, 6, 8]


def test_methods_are_not_wrapped_between_windows(whole):
    made = whole[2]
    assert not {"compute_loss", "get_batch_samples", "prediction_step"} & set(vars(made))
    assert "backward" not in vars(made.accelerator)
    assert sum(len(module._forward_hooks) for module in made.model.modules()) == 0


def test_training_is_the_same_bit_for_bit(tmp_path):
    def weights(*callbacks):
        torch.manual_seed(3)
        made = trainer(tmp_path, *callbacks, steps=10, seed=5)
        made.train()
        return made.model.layer.weight.detach()

    assert torch.equal(weights(), weights(profiler(tmp_path, TWO_WINDOWS)))


def test_a_compiled_model_trains_and_keeps_its_parts(tmp_path):
    callback = profiler(tmp_path, "wait=3 warmup=0 active=2 repeat=1")
    trainer(tmp_path, callback, torch_compile=True, torch_compile_backend="eager").train()
    (rows,) = tables(tmp_path).values()
    assert [parts(row) for row in rows] == [UPDATE, UPDATE]


# --- resuming ---


def halfway(tmp_path, make, save, steps=10, beside=(), **options):
    """Train to a checkpoint, and go on from it to the end with another callback; give the second Trainer."""
    saves = {"save_strategy": "steps", "save_steps": save}
    first = trainer(tmp_path, make("first"), steps=steps, **saves, **options)
    for each in (Stop(save), *beside):
        first.add_callback(each)
    first.train()
    again = trainer(tmp_path, make("again"), steps=steps, **options)
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{save}"))
    return again


class Stop(TrainerCallback):
    """Ends the training after a number of updates."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


@pytest.mark.parametrize(
    ("save", "first", "again"),
    [
        (2, {}, {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}),
        (6, {"train-000003-000004": [3, 4]}, {"train-000007-000008": [7, 8]}),
        (8, {"train-000003-000004": [3, 4], "train-000007-000008": [7]}, {}),
    ],
)
def test_resumed_training_continues_its_schedule(tmp_path, save, first, again):
    made = halfway(tmp_path, lambda run: profiler(tmp_path, TWO_WINDOWS, run=run), save)
    assert made.state.global_step == 10
    assert windows(tmp_path, "first") == first
    assert windows(tmp_path, "again") == again


def test_rebuilt_callbacks_keep_their_arguments(tmp_path):
    seen, made = [], []

    def make(run):
        made.append(profiler(tmp_path, TWO_WINDOWS, run=run, on_trace_ready=["steps", lambda _: seen.append(run)]))
        return made[-1]

    halfway(tmp_path, make, 6, restore_callback_states_from_checkpoint=True)
    assert seen == ["first", "again"]
    assert windows(tmp_path, "again") == {"train-000007-000008": [7, 8]}
    assert made[1].profilers["train"].step_num == 10, "the one that the user holds is the one that trained"


@pytest.mark.parametrize("count", [1, 2])
def test_batches_and_evaluations_continue_from_the_checkpoint(tmp_path, count):
    """Also where it has a list, of what each of several callbacks kept at the beginning and whenever it was saved."""
    schedule = {"train": "wait=16 warmup=0 active=2 repeat=1", "validate": "wait=12 warmup=0 active=2 repeat=1"}

    def make(run):
        return profiler(tmp_path, schedule, run=run, step_unit="batch")

    options = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    halfway(tmp_path, make, 6, beside=[make("other") for _ in range(count - 1)], **options)
    assert windows(tmp_path, "first") == {}
    # two evaluations of five batches were before; the third has batches 10 to 14
    assert windows(tmp_path, "again") == {"train-000016-000017": [16, 17], "validate-000012-000013": [12, 13]}


@pytest.mark.parametrize("state", ["nonsense", {"train": "three"}, {"train": -1}, 7], ids=str)
def test_unreadable_state_is_a_log_line_and_training_continues(tmp_path, monkeypatch, caplog, state):
    monkeypatch.setattr(ProfilerCallback, "state", lambda self: {"args": {"steps": state}, "attributes": {}})
    halfway(tmp_path, lambda run: profiler(tmp_path, TWO_WINDOWS, run=run), 6)
    assert windows(tmp_path, "again") == {"train-000007-000008": [7, 8]}
    assert "cannot be read" in caplog.text


def test_callback_can_be_copied_after_a_training(tmp_path):
    callback = profiler(tmp_path, TWO_WINDOWS)
    trainer(tmp_path, callback, steps=5).train()
    copied = copy.deepcopy(callback)
    trainer(tmp_path, copied, steps=9).train()
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}


# --- the ends ---


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_end_of_a_training_is_stored_and_stops_the_recorder(tmp_path, error):
    def fail(model):
        if model.calls == 4:
            raise error

    callback = profiler(tmp_path, "wait=1 warmup=0 active=9 repeat=1")
    with pytest.raises(type(error)):
        trainer(tmp_path, callback, model=Tiny(fail), steps=10).train()
    assert not callback.profilers["train"].in_window
    assert capture(tmp_path, "train-000001-000009")["partial"].startswith(type(error).__name__)
    assert windows(tmp_path) == {"train-000001-000009": [1, 2]}


def test_early_stop_keeps_the_recording(tmp_path):
    callback = profiler(tmp_path, "wait=1 warmup=0 active=20 repeat=1")
    stop = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0)
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    made = trainer(
        tmp_path, callback, stop, steps=12, metric_for_best_model="loss", load_best_model_at_end=True, **options
    )
    made.train()
    assert made.state.global_step == 4
    assert windows(tmp_path) == {"train-000001-000020": [1, 2, 3]}
    assert capture(tmp_path, "train-000001-000020")["partial"] == "stopped before its last step"


def test_trainer_is_restored_when_the_callback_moves_on(tmp_path):
    callback = profiler(tmp_path, TWO_WINDOWS)
    first, second = (trainer(tmp_path, callback, steps=1) for _ in range(2))
    for made in (first, second):
        made.train()
        assert {"train", "evaluate", "predict"} <= vars(made).keys()
    assert not {"train", "evaluate", "predict"} & vars(first).keys()


def test_further_attempt_with_smaller_batches_restarts(tmp_path):
    def fail(model):
        if model.calls == 4:
            raise RuntimeError("CUDA out of memory.")

    callback = profiler(tmp_path, TWO_WINDOWS)
    made = trainer(tmp_path, callback, model=Tiny(fail), steps=10, auto_find_batch_size=True)
    made.train()
    assert made.state.global_step == 10
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}


def test_single_evaluation_is_profiled_with_its_error(tmp_path):
    def fail(model):
        if model.calls == 8:
            raise RuntimeError("in the second evaluation")

    callback = profiler(tmp_path, {"validate": "wait=1 warmup=0 active=1 repeat=4"})
    made = trainer(tmp_path, callback, model=Tiny(fail))
    made.evaluate()
    with pytest.raises(RuntimeError):
        made.evaluate()
    assert windows(tmp_path) == {f"validate-00000{step}-00000{step}": [step] for step in (1, 3, 5, 7)}
    assert capture(tmp_path, "validate-000007-000007")["partial"] == "RuntimeError: in the second evaluation"


def test_several_data_sets_are_one_evaluation(tmp_path):
    callback = profiler(tmp_path, {"validate": "wait=7 warmup=0 active=2 repeat=1"})
    made = trainer(tmp_path, callback)
    made.eval_dataset = {"one": Numbers(10), "two": Numbers(10)}
    assert {"eval_one_loss", "eval_two_loss"} <= set(made.evaluate())
    assert windows(tmp_path) == {"validate-000007-000008": [7, 8]}


def test_callback_that_is_added_later_works(tmp_path):
    callback = profiler(tmp_path, TWO_WINDOWS)
    made = trainer(tmp_path, steps=5)
    made.add_callback(callback)
    made.train()
    assert windows(tmp_path) == {"train-000003-000004": [3, 4]}


# --- other Trainers ---


def test_seq2seq_trainer(tmp_path):
    class Named(Seq2SeqTrainer):
        """One that takes the Trainer's arguments from our maker of Trainers."""

        def __init__(self, args, **kwargs):
            given = {name: value for name, value in args.to_dict().items() if name in {"output_dir", "max_steps"}}
            super().__init__(
                args=Seq2SeqTrainingArguments(**given, report_to=[], use_cpu=True, disable_tqdm=True), **kwargs
            )

    callback = profiler(tmp_path, {"train": TWO_WINDOWS, "predict": "wait=0 warmup=0 active=1 repeat=1"})
    made = trainer(tmp_path, callback, steps=5, kind=Named)
    made.train()
    made.predict(Numbers(10))
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "predict-000000-000000": [0]}


@pytest.mark.nightly
def test_trls_sft_trainer(tmp_path):
    trl = pytest.importorskip("trl", minversion="0.19")
    datasets = pytest.importorskip("datasets")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", model_max_length=32
    )
    config = GPT2Config(vocab_size=len(words), n_positions=32, n_embd=8, n_layer=1, n_head=1)
    callback = profiler(tmp_path, TWO_WINDOWS)
    made = trl.SFTTrainer(
        model=GPT2LMHeadModel(config),
        args=trl.SFTConfig(
            output_dir=str(tmp_path),
            max_steps=6,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            save_strategy="no",
            max_length=16,
            logging_steps=1,
            gradient_checkpointing=False,
        ),
        train_dataset=datasets.Dataset.from_dict({"text": ["a b c a b c"] * 16}),
        processing_class=fast,
        callbacks=[callback],
    )
    made.train()
    assert windows(tmp_path) == {"train-000003-000004": [3, 4]}
    assert all(parts(row) == UPDATE for row in tables(tmp_path)["train-000003-000004"])
    lines = [line for line in made.state.log_history if "loss" in line]
    assert all("mean_token_accuracy" in line for line in lines), "ours takes nothing of TRL's own numbers"


# --- cost ---


def test_idle_update_costs_little(tmp_path):
    callback = profiler(tmp_path, "wait=1000000 warmup=1 active=1")
    made = trainer(tmp_path, callback)
    args, state, control = made.args, made.state, made.control
    callback.on_train_begin(args, state, control)

    def update():
        callback.on_step_begin(args, state, control)
        callback.on_pre_optimizer_step(args, state, control)
        callback.on_step_end(args, state, control)

    assert calls(update) <= 12
    callback.profilers["train"].stop()
