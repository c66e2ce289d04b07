"""What the model calls its modules, in a trace whose recorder knows only their classes; against labels of hooks."""

import gc
import importlib
import threading
import weakref

import pytest
import torch

import perfhooks
from perfhooks import testing
from perfhooks.core import labels
from perfhooks.record.loop import module_order
from perfhooks.trace import Kind, read
from perfhooks.trace.tables import modules


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.first = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.unused = torch.nn.Linear(4, 4)

    def forward(self, x):
        """Not in the order in which they were made, and one of them twice."""
        return self.last(self.first(self.first(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.shared = self.blocks[1].last
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.shared(self.blocks[1](self.blocks[0](x))))


def labelled(model):
    """A model whose modules write their names into the trace, inside of their calls."""
    for name, module in model.named_modules():
        open_ = []

        def enter(*_, name=name, open_=open_):
            open_.append(torch.profiler.record_function(f"[{name}]"))
            open_[-1].__enter__()

        def leave(*_, open_=open_):
            open_.pop().__exit__(None, None, None)

        if name:
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    return model


def recorded(folder, step, **options):
    with perfhooks.Profiler(
        schedule="wait=1 warmup=1 active=2 repeat=1", out=folder, run="r", background=False,
        **{"with_stack": True, "on_trace_ready": "trace", **options},
    ) as prof:  # fmt: skip
        for _ in range(5):
            step()
            prof.step()
    return read(next((folder / "r").glob("*/rank0.pt.trace.json.gz")))


def said_and_true(trace):
    """For each module that a hook named: what the table calls it, and what the hook did."""
    table = dict(modules.table(trace).select("path", "qualified_name").iter_rows())
    paths, place = modules.of_slices(trace)
    rows = [row for row in trace.rows(Kind.ANNOTATION).tolist() if trace.names[trace.name[row]].startswith("[")]
    return [(table[paths[place[row]]], trace.names[trace.name[row]][1:-1]) for row in rows if place[row] >= 0]


@pytest.mark.recorder
def test_modules_have_the_names_of_the_model(tmp_path):
    """Whatever the order of calls; the loss is no model, a module of two names has the first, the root has none."""
    net, loss = labelled(Net()), torch.nn.MSELoss()

    def step():
        with torch.no_grad():
            net.head(torch.randn(1, 4))  # a part of the model that is called by itself is still that part
        loss(net(torch.randn(3, 4)), torch.zeros(3, 2)).backward()

    trace = recorded(tmp_path, step)
    found = said_and_true(trace)
    assert {true for _, true in found} == {
        *("blocks.0", "blocks.1", "blocks.0.first", "blocks.0.last", "blocks.1.first", "blocks.1.last", "head"),
    }
    assert all(said == true for said, true in found)
    names = dict(modules.table(trace).select("path", "qualified_name").iter_rows())
    assert names["Net_0"] is names["MSELoss_0"] is None
    assert perfhooks.record.loop.labelling._state.order.seen == {}, "nothing is kept after the window"


@pytest.mark.recorder
def test_modules_of_two_models_have_their_class_as_prefix(tmp_path):
    net, other = Net(), torch.nn.Sequential(torch.nn.Linear(4, 4))
    trace = recorded(tmp_path, lambda: (net(torch.randn(3, 4)), other(torch.randn(3, 4))))
    names = {name for name in modules.table(trace)["qualified_name"] if name}
    assert {"Net.head", "Net.blocks.0.first", "Sequential.0"} <= names


@pytest.mark.recorder
def test_unobserved_call_leaves_its_class_without_names(tmp_path):
    """On another thread, which has a recorder of Python too but not our labels: no name is better than a wrong one."""
    net, elsewhere = labelled(Net()), torch.nn.Linear(4, 4)
    asked, done, over = threading.Semaphore(0), threading.Semaphore(0), []

    def serve():
        while asked.acquire() and not over:
            elsewhere(torch.randn(1, 4))
            done.release()

    def step():
        asked.release()
        done.acquire()
        net(torch.randn(3, 4)).sum().backward()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        trace = recorded(tmp_path, step)
    finally:
        over.append(True)
        asked.release()
        thread.join()
    assert all(said in (None, true) for said, true in said_and_true(trace))
    assert "blocks.0" in modules.table(trace)["qualified_name"].to_list()


@pytest.mark.recorder
@pytest.mark.parametrize("options", [{"with_stack": False}, {"labels": False}])
def test_names_are_written_only_if_useful(tmp_path, options):
    net = Net()
    trace = recorded(tmp_path, lambda: net(torch.randn(3, 4)), **options)
    assert labels.MODULE_NAMES not in trace.metadata


@pytest.mark.recorder
def test_modules_are_not_kept_alive(tmp_path):
    made = []

    def step():
        module = torch.nn.Linear(4, 4)
        made.append(weakref.ref(module))
        module(torch.randn(1, 4))

    recorded(tmp_path, step)
    gc.collect()
    assert [each for each in made if each() is not None] == []


@pytest.mark.parametrize(
    "said", [None, [], "x", {"A": "x"}, {"A": [1]}, {"A": ["x", "y"]}, {"A": []}, {"A": {"0": "x"}}]
)
def test_invalid_list_of_names_is_ignored(tmp_path, said):
    """A trace is data of others."""
    events = [testing.python_frame("nn.Module: A_0", 0, 10, Python_module_id=0)]
    trace = read(testing.write_trace(tmp_path / "t.json", events, **{labels.MODULE_NAMES: said}))
    assert modules.qualified_names(trace) == {}
    good = testing.write_trace(tmp_path / "good.json", events, **{labels.MODULE_NAMES: {"A": ["net.a"], "B": ["b"]}})
    assert modules.qualified_names(read(good)) == {"A_0": "net.a"}


@pytest.fixture
def annotate():
    """Gives nodes of CUDA graphs annotations as torch keeps them while it records a graph, which needs a GPU."""
    kept = pytest.importorskip("torch.cuda._graph_annotations")
    if hasattr(kept, "_merge_annotation"):  # since torch 2.15
        yield kept._merge_annotation
        kept._reset_kernel_annotations()
    else:
        importlib.import_module("torch.cuda.graph_annotations")
        yield lambda node, annotation: kept._kernel_annotations[node].append(annotation)
        kept.clear_kernel_annotations()


@pytest.mark.recorder
def test_parts_of_cuda_graphs_have_the_names_of_torch(tmp_path, annotate):
    """By Kineto, which writes the numbers of the nodes alone; beside them, ours are in the metadata."""
    for node, annotation in (
        (1, {"name": "mlp"}),
        (2, {"name": "mlp", "autograd_phase": "backward"}),
        (3, {"dtype": 1}),
    ):
        annotate((9 << 32) + node, annotation)
    kept = recorded(tmp_path, lambda: torch.ones(2) + 1, with_stack=False).metadata[labels.GRAPH_REGIONS]
    replay = [testing.launch(5, 1, 2, name="cudaGraphLaunch"), testing.launch(6, 3, 4)]
    work = [testing.kernel(5, 10 * node, 10 * node + node, graph_node_id=(9 << 32) + node) for node in (1, 2, 3)]
    path = testing.write_trace(
        tmp_path / "t.json", [*replay, *work, testing.kernel(6, 50, 60)], **{labels.GRAPH_REGIONS: kept}
    )
    (row,) = modules.table(read(path)).select("path", "forward_device_ms", "backward_device_ms").rows()
    assert row == ("mlp", 1e-6, 2e-6)
    path = testing.write_trace(tmp_path / "t.json", [*replay, *work], **{labels.GRAPH_REGIONS: [["a", 1, 2]]})
    assert not modules.table(read(path)).height, "a trace is data, and may say anything"
    nobody = [testing.launch(6, 3, 4), testing.kernel(6, 50, 60)]
    path = testing.write_trace(tmp_path / "t.json", nobody, **{labels.GRAPH_REGIONS: [["a", "", [-1, 0]]]})
    assert not modules.table(read(path)).height, "what is in no graph has no number"
    path = testing.write_trace(tmp_path / "t.json", [testing.op("aten::x", 0, 9)], **{labels.GRAPH_REGIONS: kept})
    assert not modules.table(read(path)).height, "no device worked"


@pytest.mark.recorder
def test_without_named_cuda_graphs_no_names_are_written(tmp_path):
    assert labels.GRAPH_REGIONS not in recorded(tmp_path, lambda: torch.ones(2) + 1).metadata


def test_deleted_module_leaves_all_without_names():
    """The recorder numbered it, and nobody knows any more among which class."""
    order, model = module_order.ModuleOrder(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    order.add(model, is_outermost=True)
    order.add(model[0], is_outermost=False)
    assert order.names() == {"Linear": ["0"]}
    gone = torch.nn.Linear(2, 2)
    order.add(gone, is_outermost=False)
    del gone
    gc.collect()
    assert order.names() == {}


def test_too_many_modules_leave_all_without_names(monkeypatch):
    """The recorder goes on numbering them, so that later names would be those of others."""
    monkeypatch.setattr(module_order, "_MAX_MODULES", 3)
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(4)))
    named = []
    for count in (2, 4):
        order = module_order.ModuleOrder()
        order.add(model, is_outermost=True)
        for layer in model[:count]:
            order.add(layer, is_outermost=False)
        named.append(sum(map(len, order.names().values())))
    assert named == [2, 0]
