"""Which part each moment is, in traces whose steps nobody labelled."""

from __future__ import annotations

import pytest

from perfhooks import testing
from perfhooks.core import labels
from perfhooks.testing import annotation, kernel, launch, op, python_frame, step_mark
from perfhooks.trace import read
from perfhooks.trace.names import part_names
from perfhooks.trace.nesting.validations import classify
from perfhooks.trace.tables import steps

NODE = "autograd::engine::evaluate_function: MulBackward0"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
UPDATE = "Optimizer.step#SGD.step"


def parts(tmp_path, events):
    """The nanoseconds of each part of the one step from 0 to 1000."""
    trace = read(testing.write_trace(tmp_path / "t.json", [step_mark(0, 0, 1000), *events]))
    (row,) = steps.table(trace).rows(named=True)
    found = {part: row[f"{part}_ms"] for part in (*labels.PARTS, "other")}
    return {part: round(value * 1e6) for part, value in found.items() if value}


def forward(start, end, sequence):
    """An operator that makes a node of autograd."""
    return op("aten::mul", start, end, Sequence_number=sequence, Fwd_thread_id=0)


def backward(start, end, sequence, tid=9):
    """The node that it makes, on a thread of autograd's own."""
    return op(NODE, start, end, tid=tid, Sequence_number=sequence, Fwd_thread_id=1)


def test_passes_last_from_first_to_last_operator(tmp_path):
    """What lies between belongs to them; before, between and after is other."""
    events = [
        *(forward(100, 150, 1), op("aten::to", 160, 170), forward(200, 300, 2)),
        *(backward(400, 450, 2), backward(500, 600, 1)),
    ]
    assert parts(tmp_path, events) == {"forward": 200, "backward": 200, "other": 600}


@pytest.mark.parametrize("tid", [9, testing.PID])
def test_pass_ends_at_another_part(tmp_path, tid):
    """An update lies between two passes, a fetch between two batches."""
    events = [
        *(forward(0, 100, 1), backward(100, 200, 1, tid), annotation(UPDATE, 220, 300)),
        *(forward(310, 400, 2), annotation(LOADER, 410, 450), forward(460, 500, 3)),
        *(backward(500, 560, 3, tid), op("aten::item", 570, 580), backward(600, 700, 2, tid)),
    ]
    found = {"forward": 230, "backward": 260, "optimizer": 80, "data": 40, "other": 390}
    assert parts(tmp_path, events) == found


def test_a_closure_is_no_part_of_its_optimizer(tmp_path):
    """In recordings of others as well."""
    events = [annotation(UPDATE, 100, 900), forward(200, 300, 1), backward(300, 500, 1), op("aten::add_", 800, 850)]
    assert parts(tmp_path, events) == {"optimizer": 500, "forward": 100, "backward": 200, "other": 200}


def test_stacks_extend_parts_to_full_calls(tmp_path):
    """Of modules, of the backward pass and of what saves a checkpoint."""
    events = [
        *(python_frame("nn.Module: Net_0", 0, 100), python_frame("nn.Module: Linear_0", 10, 50)),
        python_frame("/env/torch/autograd/__init__.py(250): backward", 200, 400),
        *(backward(250, 300, 1), python_frame("nn.Module: Linear_0", 310, 330)),
        python_frame("torch/serialization.py(880): save", 500, 600),
    ]
    assert parts(tmp_path, events) == {"forward": 100, "backward": 200, "checkpoint": 100, "other": 600}


def test_operators_that_copy_to_the_device_are_transfer(tmp_path):
    """Whole operators, copies the other way not, and neither what a pass copies by itself."""

    def copy(number, start, name):
        call = launch(number, start + 5, start + 10, name="cudaMemcpyAsync")
        work = kernel(number, start + 20, start + 30, name=name, category="gpu_memcpy")
        return [op("aten::to", start, start + 100), op("aten::copy_", start + 1, start + 90), call, work]

    events = [
        *(*copy(1, 0, "Memcpy HtoD (Pageable -> Device)"), *copy(2, 200, "Memcpy DtoH (Device -> Pageable)")),
        *(forward(400, 410, 1), *copy(3, 420, "Memcpy HtoD (Pageable -> Device)"), forward(600, 700, 2)),
        *(backward(700, 750, 2), backward(750, 800, 1)),
    ]
    assert parts(tmp_path, events) == {"transfer": 100, "forward": 300, "backward": 100, "other": 500}


def test_compiled_code_without_updates_is_forward(tmp_path):
    events = [
        annotation("Torch-Compiled Region: 0/0", 0, 100),
        *(annotation(UPDATE, 200, 300), annotation("Torch-Compiled Region: 1/0", 210, 290)),
    ]
    assert parts(tmp_path, events) == {"forward": 100, "optimizer": 100, "other": 800}


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


def test_perfhooks_labels_are_complete_and_not_joined(tmp_path):
    """Operators outside of modules, such as a loss, count by themselves."""
    events = [
        *(annotation(labels.AUTOMATIC["forward"], 0, 300), forward(10, 20, 1), forward(400, 450, 2)),
        *(annotation(labels.AUTOMATIC["backward"], 500, 800), backward(510, 520, 2), backward(600, 610, 1)),
    ]
    assert parts(tmp_path, events) == {"forward": 350, "backward": 300, "other": 350}


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


@pytest.mark.parametrize("zeroed", [150, 350])
def test_zeroed_gradients_do_not_make_a_teacher_a_validation(tmp_path, zeroed):
    teacher, student = (labels.AUTOMATIC[part] for part in ("validation", "forward"))
    events = [annotation(LOADER, 0, 100), annotation(teacher, 100, 140), annotation(student, 200, 300)]
    events += [annotation("Optimizer.zero_grad#SGD.zero_grad", zeroed, zeroed + 10)]
    events += [annotation(labels.AUTOMATIC["backward"], 400, 500), annotation("Optimizer.step#SGD.step", 500, 600)]
    assert parts(tmp_path, events) == {"data": 100, "forward": 140, "backward": 100, "optimizer": 110, "other": 550}


def test_labels_of_the_user_stay_unchanged(tmp_path):
    """A fetch that was labelled is data, whatever follows."""
    events = [annotation("data", 0, 100), annotation(labels.AUTOMATIC["validation"], 200, 300)]
    assert parts(tmp_path, events) == {"data": 100, "validation": 100, "other": 800}


def test_modules_of_a_data_set_do_not_classify_the_fetch(tmp_path):
    """Transforms may be modules: in evaluation mode for a batch to train on, in training mode for one to validate."""
    training, validation = (labels.AUTOMATIC[part] for part in ("forward", "validation"))
    fetch, inside = annotation(LOADER, 0, 300), (100, 200)
    events = [fetch, annotation(validation, *inside), annotation(training, 400, 500)]
    assert parts(tmp_path, events) == {"data": 300, "forward": 100, "other": 600}
    events = [fetch, annotation(training, *inside), annotation(validation, 400, 500)]
    assert parts(tmp_path, events) == {"validation": 400, "other": 600}
