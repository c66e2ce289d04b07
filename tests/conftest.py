"""What all tests share: no profiler left running, reproducible property tests, traces to read."""

import fnmatch
import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import browser
import hypothesis
import levels
import pace
import pytest
import twins
import typer.main
import typer.testing
import warm

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=200)
# for a longer search with a seed of its own: HYPOTHESIS_PROFILE=search make test
hypothesis.settings.register_profile("search", deadline=None, database=None, max_examples=20_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# several tests share the machine, and threads that wait for each other's part of a product burn what the others need:
# an example took 14 seconds of a processor with two, and 8 with one
os.environ.setdefault("OMP_NUM_THREADS", "1")

# all verbs with their options are made from the signatures only once, and not for each command
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)

# else each program that a test starts compiles all modules of perfhooks again, for 0.4 s
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ROOT = Path(__file__).parents[1]

if threading.current_thread() is threading.main_thread():
    # a shell that starts us in the background has us ignore Ctrl-C, and nohup SIGHUP, and all our children with us
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_addoption(parser):
    parser.addoption("--level", choices=levels.LEVELS, help="run the tests of one level, see tests/levels.py; else all")
    parser.addoption("--update", action="store_true", help="write tests/data/golden instead of comparing with it")


def pytest_configure(config):
    for kind, what in levels.KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {what}")
    config.addinivalue_line("markers", "nightly: takes long, and runs before a release or the end of an issue")
    config.pluginmanager.register(levels.Levels(config.getoption("--level")))


def _torch_profiler_running() -> bool:
    torch = sys.modules.get("torch")
    # a module that is only half imported has no profiler yet
    autograd = getattr(getattr(torch, "_C", None), "_autograd", None)
    return autograd is not None and bool(autograd._profiler_enabled())


@pytest.fixture(autouse=True)
def no_profiler_left_running():
    """No test may leave a profiler running: it would silently change what the next one records."""
    assert not _torch_profiler_running(), "a torch profiler was running before this test"
    yield
    assert not _torch_profiler_running(), "this test left a torch profiler running"


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_not_collected():
    """Garbage is looked for only in what the tests of a file make: a trial collects it, which took 0.4 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_costs_of_earlier_windows(monkeypatch):
    """A window beside many programs makes later windows of its process shorter, which no test may depend on."""
    if (budget := sys.modules.get("perfhooks.record.loop.limits.budget")) is not None:
        monkeypatch.setattr(budget, "_corrections", budget._Corrections())


@pytest.fixture(autouse=True)
def loops_end_with_their_last_status(monkeypatch):
    """A training waits a second for the watcher, which other programs may keep from a CPU for longer."""
    if (watcher := sys.modules.get("perfhooks.record.watch.watcher")) is not None:
        monkeypatch.setattr(watcher, "_WAIT_S", 60.0)


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    """Python keeps an ended process of multiprocessing until it is asked for, and a window beside one has a sampler.

    A progress bar leaves a thread, and beside threads of the program a run folder is opened by another thread.
    """
    yield
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.active_children()
    if (bars := sys.modules.get("tqdm.std")) is not None and bars.tqdm.monitor is not None:
        bars.tqdm.monitor.exit()
        bars.tqdm.monitor = None


@pytest.fixture(autouse=True)
def no_worker_has_failed(request):
    """What goes wrong in a worker costs no training anything, and would cost no test anything either."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    # a worker that still lives may delete a folder meanwhile, over which `rglob` fails
    for place, _, names in os.walk(folder) if folder else ():
        for log in (Path(place, name) for name in names if fnmatch.fnmatch(name, "rank*.worker.log")):
            text = log.read_text(errors="replace") if log.is_file() else ""
            assert "Traceback" not in text or request.node.get_closest_marker("failing_worker"), text


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """What all tests and their frameworks are made of stays: to look at it again took a second of each collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Tests that need whole recordings are skipped in one line, however many they are."""
    skipped = terminalreporter.stats.get("skipped", [])
    ours = [report for report in skipped if isinstance(report.longrepr, tuple) and NO_RECORDINGS in report.longrepr[2]]
    if ours:
        terminalreporter.stats["skipped"] = [report for report in skipped if report not in ours]
        terminalreporter.write_line(f"SKIPPED [{len(ours)}] {NO_RECORDINGS}; set PERFHOOKS_TRACES", yellow=True)


NO_RECORDINGS = "no folder of traces that were recorded on real machines"


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """A folder of all processes that share the tests."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def channel(shared_folder):
    """To a process that has imported torch, from which warm.py forks trainings: another start costs it 3.5 s of CPU."""
    with warm.warm(shared_folder / "warm") as channel:
        yield channel


FRAMEWORKS = ("lightning.pytorch", "lightning.fabric", "mmengine.runner", "torchvision", "transformers.trainer")


@pytest.fixture(scope="session")
def frameworks(shared_folder):
    """To one that has imported the frameworks as well, which takes 15 s of CPU."""
    with warm.warm(shared_folder / "frameworks", *FRAMEWORKS) as channel:
        yield channel


@pytest.fixture(scope="session")
def chromium():
    """A browser; another start costs it a second of CPU."""
    if browser.find() is None:
        pytest.skip("no Chromium here; Debian has it as chromium")
    with browser.Browser() as opened:
        yield opened


@pytest.fixture
def run_script(channel, tmp_path):
    """Runs a script in a process forked from that one, in the test's folder; gives what ``subprocess.run`` does."""

    def run(script, *arguments, timeout=300, **how):
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(script))
        return warm.run(channel, file, *arguments, timeout=timeout, **how)

    return run


@pytest.fixture
def launch(channel, tmp_path):
    """`perfhooks run` in the test's folder, in such a process; gives what ``subprocess.run`` does."""
    return functools.partial(warm.command, channel, tmp_path, "run")


@pytest.fixture
def launch_framework(frameworks, tmp_path):
    """The same of a script that imports a framework."""
    return functools.partial(warm.command, frameworks, tmp_path, "run")


@pytest.fixture
def even_pace(monkeypatch):
    """A window that nobody planned has steps 12 to 14, however uneven and fast steps are on this machine."""
    pace.make_even(monkeypatch)


@pytest.fixture(scope="session")
def traces(tmp_path_factory) -> Path:
    """A folder with a twin of each recorded trace, of the same dialect."""
    folder = tmp_path_factory.mktemp("twins")
    twins.write(folder)
    return folder


@pytest.fixture
def recordings() -> Path:
    """The recorded traces themselves, too large for the repository, for what a twin cannot show."""
    folder = Path(os.environ.get("PERFHOOKS_TRACES", ROOT.parent / "shared" / "traces"))
    if not any(folder.glob("*.json.gz")):
        pytest.skip(f"{NO_RECORDINGS} at {folder}")
    return folder


@pytest.fixture
def golden(request):
    """Compares a text with a file of tests/data/golden; ``--update`` writes the file, and git shows the difference."""

    def compare(name, text):
        file = ROOT / "tests/data/golden" / name
        if request.config.getoption("--update"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), f"pytest --update writes {name}, if this change is intended"

    return compare


@pytest.fixture
def nothing_compiled():
    """What other tests of this process had compiled is not told in this one, nor the other way round."""
    import torch
    import torch._dynamo.utils as dynamo

    def forget():
        torch.compiler.reset()
        dynamo.clear_compilation_metrics()
        dynamo.graph_break_reasons.clear()

    forget()
    yield
    forget()


@pytest.fixture
def s3(monkeypatch):
    """A bucket of a local server that answers like Amazon's."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    code = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"  # a port that is free
    server = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    address = next(line for line in server.stderr if "Running on" in line).split()[-1]
    # it writes a line for each request, and waits for somebody to read it when the pipe is full
    reader = threading.Thread(target=server.stderr.read, daemon=True)
    reader.start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    importlib.import_module("s3fs").S3FileSystem.clear_instance_cache()  # those of other tests ask their own server
    yield "s3://bucket/runs"
    server.kill()
    server.wait()
    reader.join()
    server.stderr.close()
