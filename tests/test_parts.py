"""Which part each moment is, in traces whose steps nobody labelled."""

from __future__ import annotations

import pytest

from perfhooks import testing
from perfhooks.core import labels
from perfhooks.testing import op, step_mark
from perfhooks.trace import read
from perfhooks.trace.names import part_names
from perfhooks.trace.nesting.validations import classify
from perfhooks.trace.tables import steps


def parts(tmp_path, events):
    """The nanoseconds of each part of the one step from 0 to 1000."""
    trace = read(testing.write_trace(tmp_path / "t.json", [step_mark(0, 0, 1000), *events]))
    (row,) = steps.table(trace).rows(named=True)
    found = {part: row[f"{part}_ms"] for part in (*labels.PARTS, "other")}
    return {part: round(value * 1e6) for part, value in found.items() if value}


@pytest.mark.parametrize(
    ("name", "spent"),
    [
        *((name, 200) for name in ("nccl:all_reduce", "gloo:all_reduce", "mpi:barrier", "ucc:broadcast", "hccl:send")),
        *((name, 200) for name in ("c10d::allreduce_", "record_param_comms", "_c10d_functional::wait_tensor")),
        *((name, 0) for name in ("_c10d_functional::all_reduce", "symm_mem::one_shot_all_reduce", "aten::add")),
    ],
)
def test_thread_communicates_in_collectives_that_it_starts(tmp_path, name, spent):
    """Not in functional ones, which return at once, nor in those that kernels do alone."""
    assert parts(tmp_path, [op(name, 100, 300)]).get("communication", 0) == spent


def test_module_call_that_differentiates_contains_a_backward_pass(tmp_path):
    """As in meta-learning, and in models that compute forces."""
    call = testing.annotation(labels.AUTOMATIC[labels.FORWARD], 0, 900)
    node = "autograd::engine::evaluate_function: MulBackward0"
    inside = [op("aten::mul", 100, 200), op(node, 300, 400), op(node, 420, 500), op("aten::mul", 600, 650)]
    assert parts(tmp_path, [call, *inside]) == {"forward": 700, "backward": 200, "other": 100}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("## forward ##", "forward"),
        ("Forward", "forward"),
        ("optimizer_step", "optimizer"),
        ("## copy_batch_to_gpu ##", "transfer"),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "data"),
        ("[pl][profile][Strategy]DDPStrategy.validation_step", "validation"),
        ("[pl][profile]run_training_batch", None),
        ("item_forward", None),
        ("forward (auto)", None),
    ],
)
def test_names_are_known_in_all_spellings(name, part):
    assert part_names.of_label(name) == part


LETTERS = {
    "F": "data",
    "X": "transfer",
    "T": "forward",
    "V": "validation",
    "B": "backward",
    "O": "optimizer",
    "L": "loss",
}


@pytest.mark.parametrize(
    ("marks", "found"),
    [
        ("FXTBO FXVFXVF FXTBO", "FXTBO VVVVVVV FXTBO"),  # a validation between two updates, to its end
        ("FTBO FVFV TBO", "FTBO VVVV TBO"),  # one that is left early
        ("FVTBO FVTBO", "FTTBO FTTBO"),  # a teacher
        ("FVTB FVTBO", "FTTB FTTBO"),  # and with accumulation
        ("VVV TBO VVV TBO", "TTT TBO TTT TBO"),  # a rollout: neither a loader nor a loss
        ("VLVL TLBO VL TLBO", "VLVL TLBO VL TLBO"),  # without a loader, but with a loss
        ("TVLBO TVLBO", "TTLBO TTLBO"),  # a target network
        ("FTLBO V FTLBO V", "FTLBO T FTLBO T"),  # acting, after an update from stored experience
        ("FFFF TBTBTBTBO", "FFFF TBTBTBTBO"),  # all batches fetched first
        ("FTBO FFVFVV", "FTBO VVVVVV"),  # a loader that fetches ahead
    ],
)
def test_fetches_and_calls_belong_to_validation_or_to_training(marks, found):
    def spelled(text):
        return [LETTERS[letter] for letter in text.replace(" ", "")]

    assert classify(spelled(marks), [0] * len(spelled(marks))) == spelled(found)
