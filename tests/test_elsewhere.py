"""Runs and traces that are elsewhere: brought as far as needed, reduced where an engine runs."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from dying import die_of
from finished_runs import windows_of
from test_loose import RANKS, folder_of

import perfhooks
from perfhooks import testing
from perfhooks.cli import app
from perfhooks.cli.actions import mirror
from perfhooks.core.errors import OptionError, PerfhooksError, TraceError
from perfhooks.report.finishing import engines
from perfhooks.report.finishing.share import unpacked
from perfhooks.report.page.data import read_run
from perfhooks.run import remote
from perfhooks.run.finished import FinishedRun
from perfhooks.run.layout import PAGE_DATA

FIRST, LAST = "train-000001-000002", "train-000005-000006"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mirror._base.cache_clear()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two windows, the first one of two ranks."""
    windows_of(run := tmp_path_factory.mktemp("finished") / "r", (FIRST, 0, 10.0), (FIRST, 1, 11.0), (LAST, 0, 20.0))
    return run


@pytest.fixture
def there(finished, tmp_path):
    """The URL of a copy of it."""
    shutil.copytree(finished, tmp_path / "there" / "r")
    return f"file://{tmp_path}/there/r"


@pytest.fixture
def call(monkeypatch, capfdbinary, tmp_path):
    """Runs the command line in this process, in an empty folder: exit code, standard output, standard error."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["perfhooks", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capfdbinary.readouterr()
        return ended.value.code or 0, out.decode(), err.decode()

    return run


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_mirror_has_all_but_traces_and_pages(there, tmp_path):
    run = mirror.mirror(there)
    missing = names(tmp_path / "there" / "r") - names(run)
    hidden = {name for name in missing if name.startswith(".")}
    traces = {f"{window}/rank{rank}.pt.trace.json.gz" for window, rank in ((FIRST, 0), (FIRST, 1), (LAST, 0))}
    assert missing - hidden == traces | {"report.html", "report.json", "findings.json"}
    assert [window.name for window in FinishedRun(run).windows] == [FIRST, LAST]


@pytest.mark.slow
def test_unchanged_files_are_not_copied_again(there, tmp_path, monkeypatch):
    mirror.mirror(there)
    brought = []
    monkeypatch.setattr(mirror, "_get", brought.extend)
    mirror.mirror(there)
    assert brought == []
    (tmp_path / "there" / "r" / "rank0.timeline.csv").write_text("changed")
    mirror.mirror(there)
    assert [url.rpartition("/")[2] for url in brought] == ["rank0.timeline.csv"]


@pytest.mark.slow
def test_files_deleted_at_the_url_are_deleted_in_the_mirror(there, tmp_path):
    run = mirror.mirror(there)
    shutil.rmtree(tmp_path / "there" / "r" / LAST)
    assert [window.name for window in FinishedRun(mirror.mirror(there)).windows] == [FIRST]
    assert run.exists()


@pytest.mark.slow
def test_unused_mirrors_are_deleted_after_a_week(there, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "there" / "r", other)
    run = mirror.mirror(there)
    os.utime(run.parent, (0, time.time() - 8 * 86_400))
    kept = mirror.mirror(f"file://{other}")
    assert not run.exists()
    assert kept.exists()
    assert mirror.forget() > 1000
    assert not kept.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "a/b/outside"])
def test_a_name_that_leads_out_of_a_mirror_is_not_written(name, there, monkeypatch, tmp_path):
    """A store may call a file anything."""
    with remote.reaching(there) as (system, path):
        found = system.find(path, detail=True)
        content = f"{path}/run.json"
        evil = found | {f"{path}/{name}": found[content] | {"name": f"{path}/{name}"}}
        monkeypatch.setattr(type(system), "find", lambda *_, **__: evil)

        def get(_, _ours, paths, **__):
            return [Path(each).write_bytes(b"") for each in paths]

        monkeypatch.setattr(type(system), "get", get)
    before = names(tmp_path)
    assert (mirror.mirror(there) / "run.json").exists()
    assert not [each for each in names(tmp_path) - before if "outside" in each]


@pytest.mark.slow
def test_ranks_of_one_run_can_be_at_two_urls(there, tmp_path, call):
    second = tmp_path / "second" / "r"
    (second / FIRST).mkdir(parents=True)
    for path in (tmp_path / "there" / "r" / FIRST).glob("rank1.*"):
        path.rename(second / FIRST / path.name)
    shutil.copy(tmp_path / "there" / "r" / "run.json", second)
    code, out, _ = call("report", f"{there},file://{second}", "-o", "page.html")
    assert (code, Path(out.splitlines()[-1])) == (0, Path("page.html"))
    run = mirror.mirror(f"{there},file://{second}")
    assert FinishedRun(run).ranks == [0, 1]
    assert {each.rank for each in read_run(run / PAGE_DATA).windows[0].ranks} == {0, 1}


@pytest.mark.slow
def test_urls_of_two_runs_are_rejected(there, tmp_path):
    shutil.copytree(tmp_path / "there" / "r", tmp_path / "second")
    with pytest.raises(PerfhooksError, match="they are two runs: pass URLs of one run"):
        mirror.mirror(f"{there},file://{tmp_path}/second")


@pytest.mark.slow
def test_folder_of_runs_lists_the_runs(there):
    with pytest.raises(PerfhooksError, match=r"contains 1 run; pass one of them: r"):
        mirror.mirror(there.removesuffix("/r"))


def test_missing_url_is_one_line(call, tmp_path):
    code, _, errors = call("report", f"file://{tmp_path}/nothing")
    assert code == 2
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_verbs_treat_remote_and_local_runs_equally(there, tmp_path, call):
    here = tmp_path / "there" / "r"
    for arguments in (["-t", "steps", "--csv"], ["-t", "operators", "--csv"], ["-f", "markdown"]):
        (code, out, errors), other = call("show", there, *arguments), call("show", here, *arguments)
        assert (code, errors) == (0, "")
        assert out.partition("## Files")[0] == other[1].partition("## Files")[0]
    code, out, _ = call("show", f"{there}/{FIRST}", "-t", "steps", "--csv")
    assert (code, out) == call("show", here / FIRST, "-t", "steps", "--csv")[:2]
    assert call("compare", there, here, "--shares")[0] == call("compare", here, here, "--shares")[0] == 0
    code, out, _ = call("top", there)
    assert code == 0
    code, out, _ = call("merge", f"{there}/{FIRST}", "-o", "merged.json")
    assert (code, "ranks 0 and 1" in out or "ranks 0-1" in out) == (0, True), out
    call("merge", here / FIRST, "-o", "here.json")
    assert Path("merged.json").read_bytes() == Path("here.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rank-{}.json", "rank{}.pt.trace.json.gz"])
def test_url_of_a_single_trace_is_a_trace(name, tmp_path, call):
    folder_of(tmp_path / "traces", name, inside=False)
    url = f"file://{tmp_path}/traces/{name.format(0)}"
    assert call("show", url, "-t", "steps", "--csv")[0] == 0
    code, out, _ = call("report", url)
    page = f"{name.format(0).split('.json')[0]}.report.html"
    assert (code, out.strip()) == (0, page)
    assert Path(page).stat().st_size > 10_000


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_run_of_two_ranks_in_two_buckets_is_one_run(s3, tmp_path, call):
    import s3fs

    windows_of(tmp_path / "r", (FIRST, 0, 10.0), (FIRST, 1, 11.0))
    system = s3fs.S3FileSystem(skip_instance_cache=True)
    for rank, bucket in enumerate(("one", "two")):
        system.mkdir(bucket)
        for path in (tmp_path / "r" / FIRST).glob(f"rank{rank}.*"):
            system.put_file(str(path), f"{bucket}/r/{FIRST}/{path.name}")
        system.put_file(str(tmp_path / "r" / "run.json"), f"{bucket}/r/run.json")
    code, out, errors = call("show", "s3://one/r,s3://two/r", "-t", "steps", "--csv")
    assert (code, errors) == (0, "")
    assert {line.split(",")[0] for line in out.splitlines()[1:]} == {"0", "1"}


# --- engines ---


def pages(call, folder, *options):
    code, _, errors = call("report", folder, "-o", "page.html", *options)
    return code, Path("page.html").read_bytes(), errors


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "traces", "rank-{}.json", inside=False)


@pytest.mark.process
def test_local_processes_make_the_same_report(call, folder):
    """Also with a damaged trace, which does not affect the others."""
    (folder / "rank-7.json").write_text('{"traceEvents": [{"ph": 3')
    alone = code, page, errors = pages(call, folder)
    assert (code, errors.count("\n")) == (1, 1)
    assert "rank-7.json" in errors
    assert b"rank-7.json contains no event" in page
    assert pages(call, folder, "--on", "local") == alone


@pytest.mark.slow
def test_remote_folder_makes_the_same_report(call, folder):
    assert pages(call, f"file://{folder}") == pages(call, folder)


@pytest.mark.process
def test_share_files_of_an_array_job_become_the_report(call, folder, tmp_path):
    """What runs on Spark, or as an array of jobs, writes a file for each trace."""
    (folder / "notes.json").unlink()
    shares = tmp_path / "shares" / "traces"
    script = Path(__file__).parents[1] / "examples" / "many_traces" / "slurm_array.sh"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for turn in range(2):
        task = {"SLURM_ARRAY_TASK_ID": str(turn), "SLURM_ARRAY_TASK_COUNT": "2"}
        subprocess.run([script, folder, shares], check=True, env=os.environ | task | {"PATH": path}, timeout=300)
    assert pages(call, shares) == pages(call, folder)


@pytest.mark.slow
def test_share_file_is_small_and_reproducible(folder):
    path = folder / "rank-2.json"
    made = perfhooks.share(path)
    assert made == perfhooks.share(f"file://{path}")
    assert len(made) < 100_000
    assert unpacked(made, "it").rank == 2


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"\x90", b"\x85\xa6format\x02"])
def test_invalid_share_file_is_reported(content, call, folder, tmp_path):
    with pytest.raises(TraceError, match=r"not a \.share file"):
        unpacked(content, "it")
    (folder / "other.share").write_bytes(content)
    code, page, errors = pages(call, folder)
    assert (code, errors.count("\n")) == (1, 1)
    assert b"other.share: not a .share file" in page


def test_share_of_another_format_names_its_version(folder):
    made = perfhooks.share(folder / "rank-0.json")
    other = made.replace(b"\xa6format\x01", b"\xa6format\x02")
    with pytest.raises(TraceError, match=rf"format 2, written by perfhooks {perfhooks.__version__}"):
        unpacked(other, "it")


@pytest.mark.process
def test_dying_process_loses_only_one_trace():
    found = dict(engines.map_unordered("local:2", partial(die_of, named="1"), ["0", "1", "2", "3"]))
    assert str(found.pop(1)) == "the process that read it died"
    assert found == {number: str(number).encode() for number in (0, 2, 3)}


@pytest.mark.process
def test_process_that_dies_between_two_results_loses_only_its_trace():
    results = engines.map_unordered("local:1", partial(die_of, named="1"), ["0", "1", "2"])
    first = next(results)
    while multiprocessing.active_children():
        time.sleep(0.01)
    found = dict([first, *results])
    assert str(found.pop(1)) == "the process that read it died"
    assert found == {0: b"0", 2: b"2"}


@pytest.mark.parametrize("on", ["slurm", "dask", "ray:", "local:0", "local:many", "dask://"])
def test_unknown_engine_is_rejected(on):
    with pytest.raises(OptionError, match="on must be local, local:8"):
        list(engines.map_unordered(on, perfhooks.share, []))


def test_missing_engine_explains_the_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match=r"dask is not installed: pip install 'perfhooks\[dask\]'"):
        list(engines.map_unordered("dask://127.0.0.1:1", perfhooks.share, ["a"]))


@pytest.mark.slow
def test_on_is_for_folders_of_traces(there, call, folder):
    for target in (there, folder / "rank-0.json"):
        code, _, errors = call("report", target, "--on", "local")
        assert (code, "--on needs a folder of traces" in errors) == (2, True)


@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_dask_makes_the_same_report(call, folder):
    distributed = pytest.importorskip("distributed")
    (folder / "rank-7.json").write_text('{"traceEvents": [{"ph": 3')
    alone = pages(call, folder)
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, processes=True)
    with cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        found = pages(call, folder, "--on", f"dask://{address}")
        with distributed.Client(cluster):
            died = dict(engines.map_unordered(f"dask://{address}", partial(die_of, named="1"), ["0", "1", "2"]))
    assert found[:2] == alone[:2]
    # Dask may give up on what a worker that dies again and again had done before as well
    assert (sorted(died), type(died[1]).__name__) == ([0, 1, 2], "KilledWorker")


@pytest.fixture
def ray_node(monkeypatch):
    """This machine is a node of a cluster of its own."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [Path(sys.executable).parent / "ray", "start", "--head", f"--port={port}", "--num-cpus=1"]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # what dies is in here
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # a token of another cluster may be in the home folder
    node = subprocess.Popen(
        [*command, "--include-dashboard=false", "--disable-usage-stats", "--block"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert any("Ray runtime started" in line for line in node.stdout)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)  # Ray's client leaves its own behind, which other tests would meet
    node.terminate()
    node.communicate(timeout=300)


@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_ray_makes_the_same_report(call, folder, ray_node):
    (folder / "rank-7.json").write_text('{"traceEvents": [{"ph": 3')
    alone = pages(call, folder)
    there = pages(call, folder, "--on", "ray://auto")
    assert there[:2] == alone[:2], there
    died = dict(engines.map_unordered("ray://auto", partial(die_of, named="1"), ["0", "1", "2"]))
    assert (died[0], died[2], type(died[1]).__name__) == (b"0", b"2", "WorkerCrashedError")


@pytest.mark.slow
def test_ranks_are_summarized_from_their_share_files(call, tmp_path):
    """As for a job that a SLURM array reduces: each of its processes knows one trace."""
    assert RANKS > 1
    folder = folder_of(tmp_path / "more", "host{}.json", inside=True)
    shares = [perfhooks.share(path) for path in sorted(folder.glob("host*.json"))]
    assert [unpacked(each, "it").rank for each in shares] == list(range(RANKS))
    testing.write_trace(tmp_path / "alone.json", [])
    with pytest.raises(TraceError):
        perfhooks.share(tmp_path / "alone.json")
