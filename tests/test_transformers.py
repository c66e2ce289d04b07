"""The transformers callback, beyond the contract of all integrations: retries, reports, rebuilt callbacks, Trainers."""

import pytest

pytest.importorskip("transformers")

from face_files import TWO_WINDOWS, capture, parts, run_readme, tables, windows
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from transformers_training import Numbers, Tiny, profiler, trainer

from perfhooks.core.options import DEFAULTS

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"
    ),
]

UPDATE = {"data", "forward", "backward", "optimizer"}


def test_the_blocks_of_its_readme_run(tmp_path, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "background", False)
    names = {"Trainer": lambda _, callbacks: trainer(tmp_path, *callbacks, steps=56).train()}
    run_readme("perfhooks_transformers", names)
    assert windows(tmp_path, "latest") == {"train-000052-000054": [52, 53, 54]}


# --- which steps, and what is in them ---


def test_a_step_may_be_a_batch(tmp_path):
    callback = profiler(tmp_path, "wait=4 warmup=0 active=4 repeat=1", step_unit="batch")
    trainer(tmp_path, callback, steps=3, gradient_accumulation_steps=4).train()
    (rows,) = tables(tmp_path).values()
    assert callback.profilers["train"].step_num == 12
    assert [row["step"] for row in rows if "optimizer" in parts(row)] == [7]
    assert [row["step"] for row in rows if "data" in parts(row)] == [4], "all batches of an update are fetched before"


def test_results_are_in_reports_and_the_trainer_logs_at_its_usual_steps(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = {"report_to": ["tensorboard"], "logging_strategy": "steps", "logging_steps": 2}
    callback = profiler(tmp_path, "wait=2 warmup=0 active=4 repeat=1")  # ends with an update that is logged
    made = trainer(tmp_path, callback, **options, logging_first_step=True)
    made.train()
    assert [line["step"] for line in made.state.log_history if "loss" in line] == [1, 2, 4, 6, 8]
    files = tmp_path.rglob("events.out.tfevents.*")
    tags = {tag for file in files for tag in EventAccumulator(str(file)).Reload().Tags()["scalars"]}
    assert any(tag.endswith("perf/train/forward_ms") for tag in tags)


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


def test_rebuilt_callbacks_keep_their_arguments(tmp_path):
    seen, made = [], []

    def make(run):
        made.append(profiler(tmp_path, TWO_WINDOWS, run=run, on_trace_ready=["steps", lambda _: seen.append(run)]))
        return made[-1]

    halfway(tmp_path, make, 6, restore_callback_states_from_checkpoint=True)
    assert seen == ["first", "again"]
    assert windows(tmp_path, "again") == {"train-000007-000008": [7, 8]}
    assert made[1].profilers["train"].step_num == 10, "the one that the user holds is the one that trained"


def test_batches_and_evaluations_of_two_callbacks_continue_from_the_checkpoint(tmp_path):
    """The checkpoint has a list: the state of each callback at the beginning and at each save."""
    schedule = {"train": "wait=16 warmup=0 active=2 repeat=1", "validate": "wait=12 warmup=0 active=2 repeat=1"}

    def make(run):
        return profiler(tmp_path, schedule, run=run, step_unit="batch")

    options = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    halfway(tmp_path, make, 6, beside=[make("other")], **options)
    assert windows(tmp_path, "first") == {}
    # two evaluations of five batches were before; the third has batches 10 to 14
    assert windows(tmp_path, "again") == {"train-000016-000017": [16, 17], "validate-000012-000013": [12, 13]}


# --- the ends ---


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
    made = trainer(tmp_path, steps=5)
    made.add_callback(profiler(tmp_path, TWO_WINDOWS))
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
