"""Advice is given in the words of the face that recorded, and by the settings of the loader that was read."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from test_findings_truth import WHOLE, found, half_named, loading, trace_of

from perfhooks.analysis.findings import frameworks, texts
from perfhooks.run.circumstances import Circumstances, Loader, _quota

ROOT = Path(__file__).parents[1]
LAUNCHED = Circumstances(is_launched=True)
MANY = "_MultiProcessingDataLoaderIter"


def told(rule, trace, **circumstances):
    """One finding of a window that was recorded under these circumstances."""
    known = {"cores": 16, "threads": 1, **circumstances}
    capture = dataclasses.replace(
        WHOLE, circumstances=Circumstances(**known), options={"with_stack": known.pop("with_stack", False)}
    )
    return found(capture, trace)[rule]


# --- words ---


def test_integrations_and_messages_use_equal_framework_names():
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("integrations/*/*.py")]
    named = {name for text in sources for name in re.findall(r'(?:framework=|speak_as\()"([^"]+)"', text)}
    known = {frameworks.LIGHTNING, frameworks.MMENGINE, frameworks.TRAINER, frameworks.FABRIC, frameworks.ACCELERATE}
    assert named == known == frameworks.PACKAGES.keys()


def arguments(framework, head):
    """The names that lines of a framework give to a call of it."""
    package = frameworks.package(framework)
    files = [texts.of_rule(path.stem) for path in texts.FOLDER.glob("*.toml") if path.stem != texts.SHARED]
    codes = [version.code for file in files for version in (file, *file.versions.values())]
    own = [code[package] for code in codes if isinstance(code, dict) and package in code]
    trees = [ast.parse(re.sub(r"\{\w+\}", "Adam", code)) for code in own]
    nodes = (node for tree in trees for node in ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == head]
    return {given.arg for call in calls for given in call.keywords}


@pytest.mark.slow
def test_transformers_takes_the_arguments_that_are_advised():
    transformers = pytest.importorskip("transformers")
    taken = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    loader = {f"dataloader_{field}" for field in ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")}
    advised = arguments(frameworks.TRAINER, "TrainingArguments") | loader
    assert {"optim", "torch_compile", "tf32"} <= advised <= taken


@pytest.mark.slow
def test_lightning_takes_the_arguments_that_are_advised():
    lightning = pytest.importorskip("lightning")
    advised = arguments(frameworks.LIGHTNING, "Trainer")
    assert {"precision"} < advised <= inspect.signature(lightning.Trainer).parameters.keys()


@pytest.mark.parametrize(
    ("circumstances", "line"),
    [
        ({}, "DataLoader(..., num_workers=1, persistent_workers=True)"),
        ({"framework": "Lightning"}, "DataLoader(..., num_workers=1, persistent_workers=True)"),
        (
            {"framework": "the Trainer", "is_launched": True},
            "TrainingArguments(..., dataloader_num_workers=1, dataloader_persistent_workers=True)",
        ),
        ({"framework": "mmengine"}, "train_dataloader = dict(..., num_workers=1, persistent_workers=True)"),
    ],
    ids=["torch", "Lightning", "transformers", "mmengine"],
)
def test_loader_settings_are_in_the_form_of_the_framework(tmp_path, circumstances, line):
    assert told("waiting-for-data", trace_of(tmp_path, loading(40)), **circumstances).code == line


@pytest.mark.parametrize(
    ("circumstances", "line"),
    [
        ({}, "# and: Profiler(..., with_stack=True)"),
        ({"framework": "Lightning"}, "# and: ProfilerCallback(..., with_stack=True)"),
        ({"framework": "Lightning", "is_launched": True}, "# and: perfhooks run --with-stack ..."),
        ({"is_launched": True}, "# and: perfhooks run --with-stack ..."),
    ],
    ids=["a loop", "a face", "a face that was launched", "launched"],
)
def test_recorder_options_are_in_the_form_of_the_framework(tmp_path, circumstances, line):
    finding = told("unnamed-time", trace_of(tmp_path, half_named(50)), **circumstances)
    assert finding.code.splitlines()[-1] == line
    assert ("--with-stack" if circumstances.get("is_launched") else "with_stack=True") in finding.advice


# --- the settings of the loader ---


def test_existing_loader_settings_are_not_advised(tmp_path):
    loader = Loader(num_workers=1, pin_memory=True, persistent_workers=True, prefetch_factor=8, batch_sampler="Buckets")
    finding = told("waiting-for-data", trace_of(tmp_path, loading(50)), loader=loader)
    assert finding.code == "DataLoader(..., num_workers=1)"
    assert "batch_sampler=Buckets" in " ".join(finding.lines)


def test_workers_that_only_transfer_batches_are_enough(tmp_path):
    loader = Loader(num_workers=2)
    finding = told("waiting-for-data", trace_of(tmp_path, loading(4, MANY, wall=10)), loader=loader)
    assert "transfer less" in finding.advice.lower()
    assert "num_workers" not in finding.code


@pytest.mark.process
def test_loader_settings_are_read_from_the_iterator():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.ones(8, 1))
    plain = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True)
    expected = Loader(
        num_workers=1, batch_size=4, pin_memory=False, persistent_workers=True, prefetch_factor=plain.prefetch_factor
    )
    assert Loader.of(iter(plain)) == expected

    class Buckets(list):
        """Batches of unequal size."""

    buckets = torch.utils.data.DataLoader(data, batch_sampler=Buckets([[0], [1, 2]]))
    assert Loader.of(iter(buckets)) == Loader(
        num_workers=0, pin_memory=False, persistent_workers=False, batch_sampler="Buckets"
    )
    assert Loader.of(object()) == Loader(), "somebody's own"


@pytest.mark.parametrize(("limit", "processors"), [("max 100000", None), ("150000 100000", 1.5), ("", None)])
def test_container_gets_at_most_the_cpus_of_its_group(tmp_path, monkeypatch, limit, processors):
    from perfhooks.run import circumstances

    group = tmp_path / Path(*own_group().parts[1:])
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.max").write_text(limit)
    monkeypatch.setattr(circumstances, "_CGROUPS", tmp_path)
    _quota.cache_clear()
    try:
        assert _quota() == processors
        assert Circumstances.current().cores == (1 if processors else circumstances.cores())
    finally:
        _quota.cache_clear()


def own_group():
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    return Path(next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/"))
