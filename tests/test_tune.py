"""`perfhooks tune`: changes of a training, their trials and the patch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import msgspec
import psutil
import pytest
import warm

import perfhooks
from perfhooks.analysis.findings import RULES
from perfhooks.analysis.findings.texts import changes
from perfhooks.cli.tuning import patch, results, session
from perfhooks.core.changes import Site
from perfhooks.record.launch.command_line import Request, environment
from perfhooks.report.page import findings_file, tuned_file
from perfhooks.report.page.findings_file import FindingRow
from perfhooks.report.page.tuned_file import TunedChange
from perfhooks.run.live import change_notes
from perfhooks.run.live.change_notes import Effects

BY_NAME = {change.name: change for change in changes.CHANGES}
SCRIPT = """import argparse
import torch
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
model = torch.nn.Linear(2, 1).float()  # \u00e9
optimizer = torch.optim.Adam(
    model.parameters(),
    lr=0.1,
)
loader = DataLoader([1, 2], num_workers=args.workers)
"""


@pytest.fixture
def patched(tmp_path):
    """Patches a script with changes at lines, and returns the patch."""
    file = tmp_path / "train.py"

    def make(text, *sites, words=("train.py",)):
        file.write_text(text)
        made = patch.Patch(folder=tmp_path, words=list(words))
        for name, line, *callees in sites:
            site = Site(change=name, lines=((str(file), line),), callees=tuple(callees), before={"device": "cpu"})
            made.add(BY_NAME[name], [site])
        return made

    return make


def test_changes_name_rules_and_unique_names():
    rules = {rule.__name__.replace("_", "-") for rule in RULES}
    assert {rule for change in changes.CHANGES for rule in change.rules} <= rules
    assert len(BY_NAME) == len(changes.CHANGES)
    assert all(bool(change.calls) + bool(change.setting) + bool(change.model) == 1 for change in changes.CHANGES)


def test_findings_select_changes_with_the_planned_values():
    fixes = {"optimizer-loop": "fused=True", "waiting-for-data": "DataLoader(..., num_workers=3)"}
    selected = changes.select(fixes, 8, all_changes=False)
    assert [change.name for change in selected][:3] == ["fused", "foreach", "workers"]
    assert selected[2].arguments == {"num_workers": 3, "persistent_workers": True}
    assert changes.select({}, 2, all_changes=False) == []
    assert {change.name for change in changes.select({}, 2, all_changes=True)} == set(BY_NAME)


def test_patch_adds_arguments_and_statements(patched, tmp_path):
    made = patched(SCRIPT, ("bf16", 8), ("compile", 8), ("matmul_precision", 0), ("fused", 9, "Adam", "__init__"))
    assert made.by_hand == []
    lines = made.after[tmp_path / "train.py"].splitlines()
    assert lines[3] == 'torch.set_float32_matmul_precision("high")'
    assert lines[9] == 'model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)'
    assert lines[10] == "model.compile()"
    assert "    lr=0.1, fused=True," in lines
    compile(made.after[tmp_path / "train.py"], "train.py", "exec")


@pytest.mark.process
def test_patch_applies_with_git(patched, tmp_path):
    made = patched(SCRIPT.rstrip("\n"), ("fused", 9, "Adam"), ("pin_memory", 13, "DataLoader"))
    (tmp_path / "tuned.patch").write_text(made.diff)
    subprocess.run(["git", "apply", "tuned.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == made.after[tmp_path / "train.py"]
    assert "num_workers=args.workers, pin_memory=True)" in made.diff


def test_option_of_the_command_is_changed_instead(patched):
    made = patched(SCRIPT, ("workers", 13, "DataLoader"), words=("train.py", "--workers", "0"))
    assert made.words == ["train.py", "--workers", "1"]
    assert made.new_options == ["--workers 1"]
    assert "persistent_workers=True" in made.diff


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("o = Adam(p, **options)\n", "dictionary"),
        ("o = Adam(p); q = Adam(p)\n", "several calls"),
        ("o = kind(p)\n", "no call of this name"),
        ("o = Adam(p, fused=config.fused)\n", "its value comes from config.fused"),
        ("o = Adam(p for p in q)\n", "unusual form"),
    ],
)
def test_unclear_calls_are_left_to_the_user(patched, text, reason):
    made = patched(text, ("fused", 1, "Adam"))
    assert made.diff == ""
    assert made.unpatched == [BY_NAME["fused"]]
    assert made.by_hand[0].startswith("train.py:1: Adam(..., fused=True) (")
    assert reason in made.by_hand[0]


KEEP = "keep the value on the device, and read it once every many steps"
LOOP = """for batch in loader:
    loss = train(batch)
    {}
"""


@pytest.mark.parametrize(
    ("reader", "line", "expected"),
    [
        ("item", "total += loss.item()", "total += loss.detach()"),
        ("item", "total += loss.item() * len(batch)", "total += loss.detach() * len(batch)"),
        ("item", "right += (guess == batch).sum().item()", "right += (guess == batch).sum().detach()"),
        ("item", "losses.append(loss.detach().item())", "losses.append(loss.detach().clone())"),
        ("__float__", "self.total += float(a + loss) / 4", "self.total += (a + loss).detach() / 4"),
        ("item", "total += a.item() + b.item()", "total += a.detach() + b.detach()"),
    ],
)
def test_proposal_keeps_the_value_on_the_device(patched, tmp_path, reader, line, expected):
    made = patched(LOOP.format(line), ("item", 3, "Tensor", reader))
    assert made.by_hand == []
    assert made.after[tmp_path / "train.py"] == LOOP.format(expected)


@pytest.mark.parametrize(
    ("reader", "line", "reason"),
    [
        ("item", "if loss.item() > 3: break", "a condition depends on the value"),
        ("__bool__", "if loss > 3: break", "a condition depends on the value"),
        ("item", "print(loss.item())", "the value is printed or formatted as text"),
        ("item", "bar.set(f'{loss:.3f}')", "the value is printed or formatted as text"),
        ("item", "array[0] += loss.item()", "the code may need a number"),
        ("__int__", "total += int(loss)", "the code may need a number"),
        ("item", "report(loss.item())", "the code may need a number"),
    ],
)
def test_other_reads_are_left_to_the_user(patched, reader, line, reason):
    made = patched(LOOP.format(line), ("item", 3, "Tensor", reader))
    assert made.diff == ""
    assert made.by_hand == [f"train.py:3: {KEEP} ({reason})"]


def test_rare_reads_and_reads_by_libraries_are_ignored(patched):
    rare = "if step % 9 == 0:\n        total += loss.item()"
    for text, line in ((LOOP.format("scaler.step(optimizer)"), 3), (LOOP.format(rare), 4), ("x += y.item()", 1)):
        made = patched(text, ("item", line, "Tensor", "item"))
        assert (made.diff, made.by_hand) == ("", [])


def test_shadow_folder_links_all_other_files(patched, tmp_path):
    made = patched(SCRIPT, ("fused", 9, "Adam"))
    (tmp_path / "data").mkdir()
    folder = made.shadow(tmp_path.parent / "shadow")
    assert (folder / "data").is_symlink()
    assert "fused=True" in (folder / "train.py").read_text()
    assert (tmp_path / "train.py").read_text() == SCRIPT


def test_file_changed_meanwhile_is_not_written(patched, tmp_path):
    made = patched(SCRIPT, ("fused", 9, "Adam"))
    (tmp_path / "train.py").write_text("new")
    with pytest.raises(perfhooks.PerfhooksError, match="was changed during the trials"):
        made.write(tmp_path)


def unordered(schema):
    """The order of the types of a field depends on the version of msgspec."""
    return json.loads(
        schema,
        object_hook=lambda row: {name: sorted(row[name], key=str) if name == "anyOf" else row[name] for name in row},
    )


def test_schema_is_that_of_the_file():
    file = Path(perfhooks.__file__).with_name("tuned.schema.json")
    assert unordered(file.read_bytes()) == unordered(findings_file.schema(tuned_file.TunedFile, "tuned.json"))
    row = TunedChange(name="fused", rules=[], status="kept")
    content = tuned_file.TunedFile(
        perfhooks="1", run="r", command=[], new_command=[], is_interrupted=False, changes=[row], final=row, patch=None,
        by_hand=[],
    )  # fmt: skip
    jsonschema.validate(json.loads(findings_file.to_json(content)), json.loads(file.read_bytes()))


def test_losses_that_differ_between_originals_are_not_compared():
    assert session._largest([1.0, 2.0], [[1.0, 2.5], [1.0]]) == 0.5
    program = type("Program", (), {})

    def of(*losses):
        made = program()
        made.effects = session.change_notes.Effects(losses=losses)
        return made

    assert session._loss_difference([of(1.0), of(1.0)], [of(1.5)]) == 0.5
    assert session._loss_difference([of(1.0), of(1.1)], [of(1.5)]) is None


APPLIED = """
import sys
import torch
from torch.utils.data import DataLoader

model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.Flatten())
optimizer = torch.optim.Adam(model.parameters())
for batch in DataLoader(torch.ones(4, 3, 2, 2), batch_size=2):
    loss = model(batch).sum()
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
torch.compile(lambda x: 2 * x.sum().item(), backend="eager")(torch.ones(2))
print(optimizer.defaults["fused"], model[0].weight.is_contiguous(memory_format=torch.channels_last))
print(model[0].weight.grad is None, torch.get_float32_matmul_precision())
"""


@pytest.mark.parametrize("is_applied", [True, False])
def test_changes_are_applied_in_the_training(tmp_path, channel, is_applied):
    (tmp_path / "train.py").write_text(APPLIED)
    (tmp_path / "notes").mkdir()
    wanted = [
        BY_NAME[name] for name in ("fused", "set_to_none", "matmul_precision", "channels_last", "pin_memory", "item")
    ]
    request = Request(notes=str(tmp_path / "notes"), turns="none", changes=tuple(wanted), is_applied=is_applied)
    done = warm.command(channel, tmp_path, tmp_path / "train.py", environment=environment(request, os.environ))
    assert done.returncode == 0, done.stderr
    assert "get_ident" not in done.stderr, "torch.compile sees the wrapper of item"
    expected = "True True True high" if is_applied else "None False False highest"
    assert done.stdout.split() == expected.split()
    effects = change_notes.read(str(tmp_path / "notes"))
    assert len(effects.losses) == 2
    lines = {site.change: site.lines[0][1] for site in effects.sites if site.lines}
    assert {name: lines[name] for name in ("fused", "set_to_none")} == {"fused": 7, "set_to_none": 11}
    if not is_applied:
        assert lines["channels_last"] == 6
    assert msgspec.to_builtins(effects.sites)


TRAINING = """
import time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        {problem}
        time.sleep({seconds})
        return torch.full((8,), float(index % 3))


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Slow(), batch_size=2):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """`perfhooks tune` with a script in a git repository, and short programs."""
    from typer.testing import CliRunner

    from perfhooks.cli.app import app

    monkeypatch.setattr(session, "_SECONDS", 1.5)
    monkeypatch.chdir(tmp_path)

    def run(text, *options):
        script = tmp_path / "train.py"
        script.write_text(text)
        done = CliRunner().invoke(app, ["tune", *options, "train.py"])
        assert script.read_text() == text, "user files are not touched without --write"
        file = tmp_path / "perf" / "latest" / "tuned.json"
        return done, json.loads(file.read_text()) if file.exists() else None

    return run


@pytest.mark.process
def test_failed_trial_is_a_row_with_its_reason(tune):
    done, file = tune(TRAINING.format(problem="assert get_worker_info() is None, 'no workers'", seconds=0.02))
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row for row in file["changes"]}
    assert rows["workers"]["status"] == "failed"
    assert "AssertionError: no workers" in rows["workers"]["reason"]
    assert (file["final"], file["patch"]) == (None, None)
    assert "nothing is kept" in done.output


READING = """
import torch


class OnDevice(torch.Tensor):
    device = torch.device("cuda")


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first, total = model(torch.ones(1, 8)).item(), 0.0
for step in range(1_000_000):
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.as_subclass(OnDevice).item()
    if float(loss.as_subclass(OnDevice)) > 1e9:
        break
"""


@pytest.mark.process
def test_waits_of_a_finding_become_a_proposal(tune, tmp_path, monkeypatch):
    """A class that claims to be on a device stands for a device."""
    facts = {"title": "", "evidence": [], "fix": "", "values": {}, "ranks": [], "doubts_others": False}
    facts |= {"rule": "synchronisation", "confidence": "none"}
    planted = FindingRow(**{**dict.fromkeys(FindingRow.__struct_fields__), **facts})
    from_data = findings_file.from_data
    replace = msgspec.structs.replace
    monkeypatch.setattr(findings_file, "from_data", lambda data: replace(from_data(data), findings=[planted]))
    done, file = tune(READING)
    assert done.exit_code == 0, done.output
    (row,) = file["changes"]
    assert (row["name"], row["status"], row["rules"]) == ("item", "proposed", ["synchronisation"])
    assert (file["final"], file["patch"]) == (None, None)
    by_hand = f"train.py:18: {KEEP} (a condition depends on the value)"
    assert file["by_hand"] == [by_hand]
    assert f"Change by hand: {by_hand}" in done.output
    assert file["proposal"] in done.output
    assert not (tmp_path / "perf/latest/tuned.patch").exists()
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=file["proposal"].encode(), check=True)
    new = READING.replace("(OnDevice).item()", "(OnDevice).detach()")
    assert (tmp_path / "train.py").read_text() == new


@pytest.mark.process
def test_failing_training_is_an_error(tune):
    done, file = tune("raise SystemExit('the disk is full')")
    assert file is None
    assert "nothing was recorded" in str(done.exception)
    assert "the disk is full" in str(done.exception)


@pytest.mark.process
@pytest.mark.nightly
def test_faster_loader_becomes_a_patch(tune, tmp_path):
    """Waits do not need a CPU, so two workers halve the step on any machine."""
    done, file = tune(TRAINING.format(problem="", seconds=0.02))
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row for row in file["changes"]}
    assert rows["workers"]["status"] == "kept", done.output
    assert rows["workers"]["loss_difference"] == 0
    assert file["final"]["interval"][1] < 1
    subprocess.run(["git", "apply", "perf/latest/tuned.patch"], cwd=tmp_path, check=True)
    assert "num_workers=" in (tmp_path / "train.py").read_text()


@pytest.mark.process
@pytest.mark.nightly
def test_healthy_training_keeps_nothing(tune):
    done, file = tune(TRAINING.format(problem="", seconds=0), "--all", "--minutes", "3")
    assert done.exit_code == 0, done.output
    assert [row for row in file["changes"] if row["status"] == "kept"] == []
    assert file["patch"] is None


@pytest.mark.process
def test_write_needs_a_clean_git_tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def checked():
        with pytest.raises(perfhooks.PerfhooksError) as error:
            results._check_clean()
        return str(error.value)

    assert "--write needs a git repository" in checked()
    (tmp_path / "train.py").touch()
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], check=True)
    results._check_clean()
    (tmp_path / "train.py").write_text("changed")
    assert "--write needs a clean git tree" in checked()


def result_of(a, b, outcome="faster", failed=None):
    """The result of a comparison with these effects of programs A and B."""
    ratio = SimpleNamespace(ratio=0.5, low=0.4, high=0.6, a=2.0, b=1.0, outcome=outcome)
    programs = [
        SimpleNamespace(
            command=SimpleNamespace(name=name),
            effects=effects,
            last_lines=[name],
            is_ended=False,
            blocks=9,
            memory_bytes=5,
        )
        for name, side in (("A", a), ("B", b))
        for effects in side
    ]
    verdict = SimpleNamespace(outcome=outcome, decisive=ratio)
    return SimpleNamespace(programs=programs, failed=failed, judgement=SimpleNamespace(verdict=verdict))


def judged(a, b, *, is_numeric_allowed=False, **how):
    row = TunedChange(name="fused", rules=[], status="not measured")
    return session._judged(row, result_of(a, b, **how), is_numeric_allowed=is_numeric_allowed)


def test_changed_losses_are_kept_only_if_allowed():
    a, b = [Effects(losses=[1.0])] * 2, [Effects(losses=[1.25])] * 2
    assert judged(a, a).status == "faster"
    assert judged(a, a).reason == "new output: B"
    assert judged(a, b).status == "rejected"
    assert judged(a, b).reason == "losses differ by 0.25; --allow-numerics keeps it"
    assert judged(a, b, is_numeric_allowed=True).status == "faster"
    uneven = [Effects(losses=[1.0]), Effects(losses=[1.5])]
    assert judged(uneven, a).status == "rejected", "the original does not repeat its losses"
    assert judged(uneven, a).reason == "losses cannot be compared; --allow-numerics keeps it"
    assert judged(uneven, a, is_numeric_allowed=True).status == "faster"


def test_other_number_of_steps_is_rejected():
    done = judged([Effects(steps=100)], [Effects(steps=200)])
    assert (done.status, done.reason) == ("rejected", "the training makes 200 steps instead of 100")
    ended = Effects(losses=[1.0])
    assert judged([Effects(losses=[1.0], steps=100)], [ended]).status == "faster", "B was ended"


@pytest.mark.parametrize("is_repeated", [True, False])
def test_trial_with_too_few_steps_is_longer_the_second_time(monkeypatch, is_repeated):
    seconds, measured = [], SimpleNamespace(shortage="", interrupted=0, failed=None)

    def measure(*_, **how):
        seconds.append(how["seconds"])
        if is_repeated or len(seconds) == 1:
            raise perfhooks.PerfhooksError("B made too few steps to compare")
        return measured

    monkeypatch.setattr(session.turns, "measured", measure)
    options = dict.fromkeys(("is_numeric_allowed", "all_changes", "is_copied"), False)
    made = session.Session(words=["train.py"], minutes=1, out=None, **options)
    result = made._trial("fused", (BY_NAME["fused"],), made.ends)
    assert result == ("B made too few steps to compare" if is_repeated else measured)
    assert seconds == [5, 20]


def test_interrupted_combination_leaves_no_patch(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    options = dict.fromkeys(("is_numeric_allowed", "all_changes", "is_copied"), False)
    made = session.Session(words=["train.py"], minutes=1, out=None, **options)

    def choose():
        made.rows["fused"] = TunedChange(name="fused", rules=[], status="faster", ratio=0.5)
        made._changes["fused"] = BY_NAME["fused"]
        made._sites["fused"] = [Site(change="fused", lines=((str(tmp_path / "train.py"), 9),), callees=("Adam",))]

    def trial(label, changes, ends, patch):
        assert "fused=True" in patch.diff
        raise session.ComparisonEndError(signal.SIGINT)

    for name, function in (("_record", bool), ("_choose", choose), ("_trial", trial)):
        monkeypatch.setattr(made, name, function)
    made.tune()
    assert (made.patch.diff, made.interrupted) == ("", signal.SIGINT)


@pytest.mark.parametrize("outcome", ["slower", "same", "undecided"])
def test_only_decided_gains_are_kept(outcome):
    assert judged([Effects()], [Effects()], outcome=outcome).status == "rejected"


def test_failure_has_the_last_line_as_reason():
    failed = SimpleNamespace(code=-9, last_lines=["allocating", "out of memory"])
    assert judged([Effects()], [Effects()], failed=failed).reason == "signal 9: out of memory"


def test_measured_gain_is_next_to_the_estimate():
    facts = {"outcome": "faster", "ratio": 0.5, "interval": [0.4, 0.8], "gain_ms": 10}
    row = TunedChange(name="fused", rules=["optimizer-loop"], status="kept", **facts)
    (advice,) = tuned_file.tuned_advice(row)
    assert (advice.saved_ms, advice.most.saved_ms) == pytest.approx((4, 12))
    assert (advice.times, advice.most.times) == pytest.approx((1.25, 2.5))
    assert list(tuned_file.tuned_advice(msgspec.structs.replace(row, outcome="same"))) == []


def test_table_shows_small_differences_of_losses():
    facts = {"status": "rejected", "outcome": "faster", "ratio": 0.83, "interval": [0.8, 0.9], "gain_ms": 120.0}
    row = TunedChange(name="fused", rules=[], **facts, memory_bytes=-(5 << 20), loss_difference=7.4e-9)
    (line,) = session.lines_of([row])
    assert list(line.values()) == ["fused", "rejected", "-17% (-20% to -10%)", "120 ms", "-5 MiB", "7e-09"]
    (line,) = session.lines_of([msgspec.structs.replace(row, loss_difference=0.0)])
    assert line["losses"] == "equal"


@pytest.mark.parametrize(("outcome", "result"), [("faster", "rejected"), ("undecided", "undecided")])
def test_rejected_change_shows_the_reason(capsys, outcome, result):
    row = judged([Effects(losses=[1.0])], [Effects(losses=[1.25])], outcome=outcome)
    results._tell(SimpleNamespace(rows={"fused": row}, final=None, patch=None))
    output = capsys.readouterr().out
    assert f"fused   {result} " in output
    assert ("fused is faster, but losses differ by 0.25; --allow-numerics keeps it." in output) == (outcome == "faster")
    assert ("No change is certainly faster" in output) == (outcome != "faster")


def test_time_limit_before_a_result_is_named(capsys):
    row = TunedChange(name="fused", rules=[], status="not measured")
    results._tell(SimpleNamespace(rows={"fused": row}, final=None, patch=None))
    assert "The time limit ended the trials before all results" in capsys.readouterr().out


@pytest.mark.process
def test_hanging_trial_ends_with_the_time_limit_and_changes_only_its_copy(tune, tmp_path):
    wait = "time.sleep(1e6 if get_worker_info() else 0), open(str(__import__('os').getpid()) + '.run', 'w').close()"
    done, file = tune(TRAINING.format(problem=wait, seconds=0.02), "--cwd-copy", "--minutes", "0.3")
    assert done.exit_code == 0, done.output
    (row,) = (row for row in file["changes"] if row["name"] == "workers")
    assert row["status"] != "kept", row
    assert (file["final"], file["patch"]) == (None, None)
    assert len(list(tmp_path.glob("*.run"))) == 1, "only the recording runs in the working directory"


@pytest.mark.process
def test_interrupt_prints_the_results_so_far_and_leaves_no_process(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING.format(problem="", seconds=0.02))
    process = subprocess.Popen(
        [sys.executable, "-m", "perfhooks", "tune", "--all", "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while len(_trainings(tmp_path)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 130, errors
    assert "workers" in output
    assert not _trainings(tmp_path)


def _trainings(folder):
    """The trainings, without children that have their command line until they become another program."""
    found = {
        process.pid: process.info["ppid"]
        for process in psutil.process_iter(["cwd", "cmdline", "ppid"])  # None of a process that has ended meanwhile
        if process.info["cwd"] == str(folder)
        and (process.info["cmdline"] or [])[-1:] == ["train.py"]
        and "tune" not in process.info["cmdline"]
    }
    return [pid for pid, parent in found.items() if parent not in found]
