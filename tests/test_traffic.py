"""The bytes that operators move: beside every tensor that they are given and give, looked at one by one."""

from __future__ import annotations

import numpy as np
import pytest

from perfhooks import testing
from perfhooks.trace import read
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import traffic

ROWS_OF_A_TABLE = {"embedding": 1, "index_select": 2, "gather": 2}
"""These read as many rows as they write, and not all of their first tensor; the place of their index."""
CALLED_BY_OTHERS = (
    *("aten::copy_", "aten::add_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::sum", "aten::index_select"),
)
"""Operators call these as well, below where the oracle looks."""
UNKNOWN = (
    *("randn", "ones_like", "expand", "lift_fresh", "select", "select_backward", "zeros", "detach", "transpose", "t"),
    *("new_empty_strided", "view", "arange", "empty", "clone", "_to_copy", "alias", "_unsafe_view", "bernoulli_"),
    *("convolution", "reshape", "unsqueeze", "squeeze", "full_like", "ones", "empty_like", "scalar_tensor", "add"),
)
"""They make, turn or cut tensors, or call what moves them; where somebody looks, gradients are added out of place."""
WRITTEN_ONLY = ("fill_", "zero_", "normal_", "uniform_", "bernoulli_")


def pointwise():
    import torch

    a, b, half = torch.randn(4, 5, requires_grad=True), torch.randn(5), torch.randn(4, 5).bfloat16()
    whole = torch.arange(20).reshape(4, 5)
    for value in (a + b, a * 2, half * a.detach(), a > 0, whole + whole, whole == 3, half + half, whole * b):
        value.detach()
    torch.where(a > 0, a, b).relu().sigmoid().sum().backward()
    torch.nn.functional.gelu(a).tanh().sum().backward()
    torch.nn.functional.dropout(a, 0.5).sum().backward()
    c = torch.empty(4, 5).normal_().zero_().fill_(3.0)
    c.add_(b).mul_(2).copy_(half)
    torch.add(c, c, out=torch.empty(4, 5))
    torch.addcmul(c, c, c).clamp(min=0).masked_fill(c > 0, 1.0).clone()
    half.float().to(torch.float64)


def reduced():
    import torch

    a = torch.randn(4, 6, 8, requires_grad=True)
    for value in (a.sum((0, 2)), a.sum(), a.mean(1, keepdim=True), a.amax((1,)), a.bfloat16().sum(0)):
        value.detach()
    a.softmax(-1).sum().backward()
    torch.log_softmax(a, 1).sum().backward()
    torch.nn.functional.layer_norm(a, (6, 8), torch.ones(6, 8, requires_grad=True)).sum().backward()
    torch.nn.functional.group_norm(a, 2, torch.ones(6, requires_grad=True)).sum().backward()
    norm = torch.nn.BatchNorm1d(6)
    norm(a).sum().backward()


def looked_up():
    import torch

    table = torch.randn(100, 8, requires_grad=True)
    index = torch.tensor([[1, 2, 3], [4, 5, 6]])
    torch.nn.functional.embedding(index, table).sum().backward()
    table.detach().index_select(0, index[0])
    table.detach().gather(0, torch.zeros(3, 8, dtype=torch.int64))


def multiplied():
    import torch
    from torch.nn import functional

    a, b = torch.randn(4, 5, 6, requires_grad=True), torch.randn(4, 6, 7, requires_grad=True)
    torch.bmm(a, b).sum().backward()
    torch.addmm(torch.randn(7), a[0], b[0]).sum().backward()
    torch.baddbmm(torch.randn(4, 5, 7), a, b)
    image = torch.randn(2, 4, 9, 9, requires_grad=True)
    weight = torch.randn(8, 4, 3, 3, requires_grad=True)
    functional.conv2d(image, weight, torch.randn(8, requires_grad=True), stride=2, padding=1).sum().backward()
    functional.conv2d(image.detach(), weight).sum().backward()
    functional.max_pool2d(image, (2, 2), (2, 2)).sum().backward()
    query, key = torch.randn(2, 4, 16, 8, requires_grad=True), torch.randn(2, 4, 12, 8, requires_grad=True)
    functional.scaled_dot_product_attention(query, key, key).sum().backward()
    functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


def looked_at(job):
    """By operator, the bytes of each of its calls: every tensor that comes in or out, each once."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found = {}

    def size(tensors):
        return sum(each.numel() * each.element_size() for each in tensors if each.dim())

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            given = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, torch.Tensor)]
            result = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
            read = [] if name in WRITTEN_ONLY else given
            if name in ROWS_OF_A_TABLE:
                read = [args[ROWS_OF_A_TABLE[name]], *result]
            if name == "copy_":
                read = read[1:]
            if (kwargs or {}).get("out") is not None:
                read = read[:-1]
            found.setdefault(f"aten::{name}", []).append(size(read) + size(result))
            return made

    with Looking():
        job()
    return found


@pytest.mark.recorder
@pytest.mark.parametrize("job", [pointwise, reduced, looked_up, multiplied])
def test_bytes_equal_all_input_and_output_tensors(tmp_path, job):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        job()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read(tmp_path / "t.json")
    rows = trace.rows(Kind.OP)
    ours = {}
    for row, size in zip(rows.tolist(), traffic.per_call(trace, rows).tolist(), strict=True):
        if size > 0:
            ours.setdefault(trace.name_of(row), set()).add(size)
    theirs = {name: set(sizes) for name, sizes in looked_at(job).items()}
    known = {name: sizes - {0} for name, sizes in theirs.items() if name in ours}
    for name in set(known) & set(CALLED_BY_OTHERS):
        known[name] |= ours[name] if known[name] <= ours[name] else set()
    assert {name: ours[name] for name in known} == known
    assert set(theirs) - set(ours) <= {f"aten::{name}" for name in UNKNOWN}


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        (("[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "False"), 4 * 81 + (4 + 8) * 16),
        (("[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "True"), None),
        (("[2, 2]", "[2, 2]", "[0]", "[1, 1]", "False"), None),
        (("[2, 2]", "[]", "[0, 0]", "[1, 1]", "False"), None),
    ],
)
def test_output_of_pooling_with_rounding_is_unknown(tmp_path, options, moved):
    given = {"Input_Dims": [[1, 1, 9, 9], *[[]] * 5], "Input_type": ["float", *["ScalarList"] * 4, "Scalar"]}
    call = testing.op("aten::max_pool2d_with_indices", 0, 9, Concrete_Inputs=["", *options], **given)
    found = traffic.per_call(read(testing.write_trace(tmp_path / "t.json", [call])), np.array([0]))
    assert found.tolist() == [-1 if moved is None else moved]


@pytest.mark.parametrize("has_bias", [True, False])
def test_convolution_moves_image_weight_bias_and_output(tmp_path, has_bias):
    dims = [[2, 4, 9, 9], [8, 4, 3, 3], [8] if has_bias else []]
    given = {
        "Input_Dims": [*dims, *[[]] * 4],
        "Input_type": ["float", "float", "float" if has_bias else "", *["ScalarList"] * 3, "Scalar"],
    }
    options = ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]
    call = testing.op("aten::mkldnn_convolution", 0, 9, Concrete_Inputs=options, **given)
    found = traffic.per_call(read(testing.write_trace(tmp_path / "t.json", [call])), np.array([0]))
    assert found.tolist() == [4 * (2 * 4 * 81 + 8 * 4 * 9 + 8 * has_bias + 2 * 8 * 25)]


def test_cudnn_batch_norm_backward_writes_three_gradients(tmp_path):
    image, channels = [2, 4, 3, 3], [4]
    given = {"Input_Dims": [image, image, *[channels] * 5, []], "Input_type": [*["float"] * 7, "Scalar"]}
    call = testing.op("aten::cudnn_batch_norm_backward", 0, 9, Concrete_Inputs=[*[""] * 7, "1e-05"], **given)
    found = traffic.per_call(read(testing.write_trace(tmp_path / "t.json", [call])), np.array([0]))
    assert found.tolist() == [4 * (72 + 72 + 5 * 4) + 4 * (72 + 4 + 4)]


def updated():
    import torch

    weights = [torch.nn.Parameter(torch.ones(4, 5)), torch.nn.Parameter(torch.ones(5))]
    for way in ("foreach", "fused"):
        optimizer = torch.optim.AdamW(weights, **{way: True})
        for each in weights:
            each.grad = torch.ones_like(each)
        optimizer.step()


@pytest.mark.recorder
def test_bytes_of_tensor_lists_are_unknown(tmp_path):
    """Half of what an update in float32 moves would be as good a guess."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        updated()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read(tmp_path / "t.json")
    rows = trace.searched("_foreach_|_fused_adamw", Kind.OP)
    assert {trace.name_of(row) for row in rows.tolist()} >= {"aten::_foreach_lerp_", "aten::_fused_adamw_"}
    assert (traffic.per_call(trace, rows) == -1).all()
    types = trace.argument("types")[rows]
    assert {str(trace.text(int(each))[0]) for each in types.tolist()} == {"TensorList"}
