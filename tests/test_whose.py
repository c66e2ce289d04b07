"""Whose line a frame is: one definition, decided by what the machine that recorded knew."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

import perfhooks.record.loop.profiler
from perfhooks import testing
from perfhooks.analysis import findings, flames
from perfhooks.core.frames import display_path
from perfhooks.run.capture import Capture, Place
from perfhooks.run.installation import Installation
from perfhooks.testing import annotation, op, python_frame, step_mark
from perfhooks.trace import Kind, read
from perfhooks.trace.names import attribution
from perfhooks.trace.names.origins import Origin, origin
from perfhooks.trace.tables import functions, memory

MS = 1_000_000
LIBRARY = "framework/loops/fetch.py(341): __next__"
USER = "train.py(12): main"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (USER, Origin.USER),
        ("models/net.py(7): forward", Origin.USER),
        ("/home/me/project/models/net.py(7): forward", Origin.USER),
        ("/tmp/ipykernel_77/123.py(3): <module>", Origin.USER),
        ("<ipython-input-3-abc>(3): train", Origin.USER),
        ("lightning/pytorch/utilities/combined_loader.py(341): __next__", Origin.INSTALLED),
        ("/opt/venv/lib/python3.11/site-packages/odd/x.py(1): f", Origin.INSTALLED),
        ("threading.py(331): wait", Origin.STANDARD),
        ("concurrent/futures/thread.py(81): _worker", Origin.STANDARD),
        ("/usr/lib/python3.11/threading.py(331): wait", Origin.STANDARD),
        ("<frozen importlib._bootstrap>(1176): _find_and_load", Origin.STANDARD),
        ("<string>(2): __init__", Origin.STANDARD),
        ("torch/nn/modules/module.py(1): _call_impl", Origin.TORCH),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py(1): f", Origin.TORCH),
        ("/tmp/torchinductor_me/ab/cab.py(9): call", Origin.TORCH),
        ("torchinductor_me/ab/cab.py(9): call", Origin.TORCH),
        ("cache/fi/cfiat2w64ucx3x7ipcvrh4pcf5eyr7vjzocguoprftiaovr7sl3u.py(110): call", Origin.TORCH),
        ("<eval_with_key>.5(7): forward", Origin.TORCH),
        ("perfhooks/record/loop/loader.py(3): __next__", Origin.PERFHOOKS),
        ("perfhooks_lightning/callback.py(3): on_fit_start", Origin.PERFHOOKS),
        ("/opt/venv/lib/python3.11/site-packages/perfhooks/x.py(3): f", Origin.PERFHOOKS),
        ("/home/me/perfhooks/perfhooks/recording/loader.py(3): __next__", Origin.PERFHOOKS),
        ("<importlib._bootstrap>/home/me/perfhooks/perfhooks/record/loop/labelling.py(3): f", Origin.PERFHOOKS),
        (
            "<importlib._bootstrap>/opt/venv/lib/python3.11/site-packages/perfhooks_mmengine/x.py(3): f",
            Origin.PERFHOOKS,
        ),
        ("/home/me/perfhooks/examples/raw_loop.py(3): main", Origin.USER),
        ("<built-in method numpy of Tensor object at 0x7f>", Origin.NO_SOURCE),
        ("nn.Module: Linear_0", Origin.NO_SOURCE),
        ("loss (1): mean", Origin.NO_SOURCE),
    ],
)
def test_unknown_origins_are_guessed_by_well_known_names(name, expected):
    assert origin(name) is expected


def test_origins_of_the_recording_machine_decide():
    """A framework that nobody has heard of, and a file of the user's that is called as one of the standard library."""
    known = {"framework": "installed", "profile.py": "user"}
    assert origin(LIBRARY, known) is Origin.INSTALLED
    assert origin("profile.py(3): main", known) is Origin.USER
    assert origin("perfhooks/x.py(1): f", {"perfhooks": "user"}) is Origin.PERFHOOKS, "installed in editable mode"
    assert flames.kind(LIBRARY, known) == "library"
    assert flames.kind(LIBRARY) == "code"


@pytest.fixture
def machine(tmp_path):
    """A project, an editable package, a folder of packages and a standard library."""
    for file in ("project/train.py", "project/random.py", "work/mine/x.py", "site/framework/loops/fetch.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "std").mkdir()
    (tmp_path / "std" / "queue.py").touch()
    return Installation(
        path=tuple(str(tmp_path / each) for each in ("project", "std", "site", "work")),
        sites=(str(tmp_path / "site"),),
        standard=(str(tmp_path / "std"),),
    )


def trace_of(tmp_path, events):
    return read(testing.write_trace(tmp_path / "t.json", events))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("<eval_with_key>.3", Origin.NO_SOURCE),
        ("/opt/torch/nn/modules/linear.py", Origin.TORCH),
        (perfhooks.record.loop.profiler.__file__, Origin.PERFHOOKS),
        ("/opt/perfhooks_lightning/callback.py", Origin.PERFHOOKS),
        ("site/framework/loops/fetch.py", Origin.INSTALLED),
        ("std/queue.py", Origin.STANDARD),
        ("project/train.py", Origin.USER),
    ],
)
def test_file_of_this_process_is_known_by_its_full_path(machine, tmp_path, file, expected):
    assert machine.origin_of(file if file.startswith("<") else str(tmp_path / file)) is expected


def test_worker_looks_up_the_first_parts_of_names(machine, tmp_path):
    names = ("train.py(1): f", "random.py(1): f", "mine/x.py(1): f", LIBRARY, "queue.py(1): get", "gone.py(1): f")
    trace = trace_of(tmp_path, [python_frame(name, 10 * place, 10 * place + 5) for place, name in enumerate(names)])
    assert machine.owners(trace) == {
        "train.py": "user",
        "random.py": "user",
        "mine": "user",
        "framework": "installed",
        "queue.py": "standard",
    }


def test_installation_is_read_from_python_without_disk_access():
    here = Installation.current()
    assert here.folder == str(Path.cwd())
    assert here.prefix == sys.prefix
    assert any(Path(each, "torch").is_dir() for each in here.sites)
    assert any(Path(each, "threading.py").is_file() for each in here.standard)


def test_capture_stores_the_origins(tmp_path):
    place = Place(tmp_path)
    capture = Capture(installation=Installation.current(), owners={"framework": "installed"})
    place.save(capture)
    assert place.load() == capture


# --- what is named ---

CAPTURE = Capture(first=0, last=1, reached=2, owners={"framework": "installed"})


def loading():
    """Two steps of a framework that wait for data, started from a line of the user's."""
    yield python_frame(USER, 0, 200 * MS)
    for number in (0, 1):
        begin = 100 * number * MS
        yield step_mark(number, begin, begin + 100 * MS)
        yield python_frame(LIBRARY, begin + 1, begin + 50 * MS)
        yield python_frame("perfhooks/record/loop/loader.py(3): __next__", begin + 2, begin + 50 * MS)
        yield annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin + 3, begin + 50 * MS)


def test_evidence_names_the_user_line_above_the_waiting_library(tmp_path):
    finding = findings.find(CAPTURE, trace_of(tmp_path, loading()))[0]
    assert f"{USER}, in {LIBRARY}: 50 ms" in finding.lines
    assert "perfhooks" not in str(finding.lines)


@pytest.mark.recorder
def test_lines_of_many_slices_equal_lines_of_single_slices(tmp_path):
    """Of every slice of a recorded training, and -1: the fast way says what the slow one does."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with torch.profiler.profile(with_stack=True) as prof:
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read(tmp_path / "t.json")
    rows = np.append(trace.rows(Kind.OP, Kind.ANNOTATION), -1)
    owners = (("_pytest", "installed"), ("pluggy", "installed"))
    texts, place = attribution.of_rows(trace, rows, owners)
    lines = attribution.lines(trace, rows, owners)
    assert [texts[each] if each >= 0 else None for each in place.tolist()] == lines
    assert len(set(texts)) == len(texts) > 0
    assert lines[-1] is None


def test_library_without_user_code_is_named(tmp_path):
    frames = [python_frame(LIBRARY, 0, 100), python_frame("perfhooks/x.py(3): f", 1, 99), op("a", 2, 90)]
    trace = trace_of(tmp_path, [*frames, python_frame("perfhooks/x.py(3): f", 200, 300), op("b", 201, 290)])
    rows = trace.rows(Kind.OP)
    assert attribution.lines(trace, rows, (("framework", "installed"),), otherwise=True) == [LIBRARY, None]


def test_allocations_at_the_peak_belong_to_user_code(tmp_path):
    frames = [python_frame(USER, 0, 100), python_frame(LIBRARY, 1, 99), op("aten::mm", 2, 90)]
    allocation = testing.memory(10, 64, allocated=64)
    trace = trace_of(tmp_path, [*frames, allocation])
    table = memory.alive_at_peak(trace, owners=(("framework", "installed"),))
    assert table["source"].to_list() == [f"{USER}, in {LIBRARY}"]
    assert CAPTURE.tables(trace).alive_at_peak.equals(table)


def test_frames_open_at_the_start_have_no_line(tmp_path):
    """``optimizer.step()`` of line 94 would be blamed for all that the script does at its top level."""
    begun = [("train.py(94): <module>", 900), ("torch/optim/optimizer.py(5): wrapper", 300)]
    begun += [
        ("torch/profiler/profiler.py(577): start_trace", 250),
        ("torch/autograd/profiler.py(423): _start_trace", 200),
    ]
    frames = [python_frame(name, place, end) for place, (name, end) in enumerate(begun)]
    later = [python_frame("train.py(12): forward", 400, 500), python_frame("train.py(94): <module>", 1000, 1100)]
    events = [*frames, *later, op("a", 310, 320), op("b", 410, 420), op("c", 1010, 1020)]
    trace = trace_of(tmp_path, events)
    rows = trace.rows(Kind.OP)
    assert attribution.lines(trace, rows) == ["train.py: <module>", "train.py(12): forward", "train.py(94): <module>"]
    texts, place = attribution.of_rows(trace, rows)
    assert [texts[each] for each in place.tolist()] == attribution.lines(trace, rows)
    known = {row["function"]: row["line"] for row in functions.table(trace).to_dicts()}
    assert (known["wrapper"], known["forward"], known["_start_trace"]) == (None, 12, 423)
    assert known["<module>"] == 94, "the other call has it as its first line"


def test_top_level_code_of_a_script_has_no_wrong_line(run_script, tmp_path):
    script = """
    import torch, perfhooks
    def add():
        torch.ones(2).add(1)
    options = dict(schedule="wait=1 warmup=1 active=2", out=".", run="r", with_stack=True, background=False)
    with perfhooks.Profiler(**options) as prof:
        for _ in range(4):
            torch.ones(2).mul(2)
            add()
            prof.step()
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("r/train-*/*.pt.trace.json.gz")
    trace = read(path)
    said = [set(attribution.lines(trace, trace.named(Kind.OP, names=(name,)))) for name in ("aten::mul", "aten::add")]
    assert [{line.rpartition("/")[2] for line in lines} for lines in said] == [
        {"script.py: <module>"},
        {"script.py(3): add"},
    ]


# --- environments on top of others ---

LAYERS = """
import sys
from perfhooks.run.installation import Installation
import helper, here.net, loose_library, targeted, torchvision
installation = Installation.current()
for module in (helper, here.net, loose_library, targeted, torchvision):
    print(module.__name__, installation.origin_of(module.__file__).value)
"""


def package(folder, name, record=None):
    """A package of one file; with a record, as ``pip install --target`` leaves one."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    if record:
        (folder / f"{name}-1.0.dist-info").mkdir()
        (folder / f"{name}-1.0.dist-info" / "RECORD").write_text(f"{name}/__init__.py,,\n")


@pytest.fixture
def layered(tmp_path):
    """A virtual environment on top of another one, a target folder, a library's sources and a project."""
    base, top, project = tmp_path / "base", tmp_path / "top", tmp_path / "project"
    for each in (base, top):
        venv.create(each, system_site_packages=each == top)
    (base_site,), (top_site,) = (each.glob("lib/python3*/site-packages") for each in (base, top))
    package(base_site, "loose_library")
    package(tmp_path / "vision", "torchvision")
    package(tmp_path / "target", "targeted", record=True)
    package(project, "here")
    (project / "here" / "net.py").touch()
    (project / "helper.py").touch()
    here = Path(perfhooks.__file__).parents[1]
    ours = [path for path in sys.path if "site-packages" in path]
    paths = [str(base_site), str(tmp_path / "vision"), str(here), *ours]
    (top_site / "layers.pth").write_text("\n".join(paths) + "\n")
    return tmp_path


@pytest.mark.process
@pytest.mark.parametrize(("folder", "torchvision"), [("project", "installed"), ("vision", "user")])
def test_layered_environments_separate_project_and_libraries(layered, folder, torchvision):
    """The library with sources on the path, as in editable mode, is the user's only if the training runs there."""
    (layered / "project" / "layers.py").write_text(LAYERS)
    done = subprocess.run(
        [layered / "top" / "bin" / "python", layered / "project" / "layers.py"],
        cwd=layered / folder,
        env={**os.environ, "PYTHONPATH": str(layered / "target")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    origins = dict(line.split() for line in done.stdout.splitlines())
    assert origins == {
        "helper": "user",
        "here.net": "user",
        "loose_library": "installed",
        "targeted": "installed",
        "torchvision": torchvision,
    }


def test_target_folder_with_the_script_is_recognized(tmp_path):
    package(tmp_path, "targeted", record=True)
    (tmp_path / "train.py").touch()
    here = Installation(path=(str(tmp_path),), folder=str(tmp_path))
    trace = trace_of(tmp_path, [python_frame(f"{name}(1): f", 0, 5) for name in ("train.py", "targeted/__init__.py")])
    assert here.owners(trace) == {"train.py": "user", "targeted": "installed"}


def test_a_library_that_an_import_hook_found_is_installed(tmp_path):
    """Editable installs with a finder are not below ``sys.path``: a trace has their whole path."""
    package(tmp_path / "vision", "torchvision")
    file = tmp_path / "vision" / "torchvision" / "__init__.py"
    here = Installation(folder=str(tmp_path / "project"))
    trace = trace_of(tmp_path, [python_frame(f"{file}(1): f", 0, 5)])
    assert here.owners(trace) == {str(file): "installed"}
    assert origin(f"{file}(1): f", here.owners(trace)) is Origin.INSTALLED


def test_shown_path_is_the_name_of_the_recorder(monkeypatch, tmp_path):
    from torch.profiler.python_tracer import _prefix_regex

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "my exp"), "", "lib", "/other", *sys.path])
    for name in ("my exp/train.py", "lib/a/b.py", "main.py", "/other/x.py", "/absolute/y.py"):
        file = str(tmp_path / name)
        prefix = next((prefix for prefix in _prefix_regex() if file.startswith(prefix)), "")
        assert display_path(file) == file.removeprefix(prefix)
