"""The rules of the project itself: which module may import which, what an import costs, what is public."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import finished_runs
import pytest

import perfhooks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perfhooks"


def rooms_of(table):
    """The rooms of the map, the lowest first."""
    rows = re.findall(r"^\| (\d) \| `(\w+)/` \|", table, re.MULTILINE)
    return [room for _, room in sorted(rows)]


ROOMS = rooms_of((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
"""A room may import from itself and from lower rooms. Imports under ``TYPE_CHECKING`` count as well."""
FLOOR = {room: floor for floor, room in enumerate(ROOMS)}
APART = {"__main__", "notebook", "py", "pytest_plugin", "testing"}
"""Modules above all rooms."""
MOST_ARROWS = 60
"""Between folders above ``run/``."""
MOST_MODULES = 20
"""In one folder."""
DIVIDED = ("analysis", "record", "report")
"""Rooms whose folders count as such."""

LAPTOP = (
    "core.options",
    "core.schedule",
    "core.statistics",
    "trace",
    "run.folder",
    "analysis.findings",
    "analysis.ranks.merge",
    "report.handlers",
    "report.page",
    "analysis.comparison.comparison",
    "run.live.requests",
    "report.finishing.serving",
    "cli.verbs",
    "cli.show",
)
"""What must work on a machine without torch."""

FRAMEWORKS = ("lightning", "pytorch_lightning", "mmengine", "transformers", "accelerate")
HEAVY = ("polars", "plotly", "pandas", "rich", "perfhooks.analysis.findings")

INTEGRATIONS = sorted(path.name for path in (ROOT / "integrations").glob("*_*"))

MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def room_of(path):
    """``trace`` for ``trace/reading/reader.py``, ``options`` for ``options.py``; nothing for the package itself."""
    return path.parts[0] if len(path.parts) > 1 else path.stem.replace("__init__", "")


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


@functools.cache
def parsed(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def walk(tree, *, types):
    """All nodes below one; those that only a type checker runs are left out unless ``types``."""
    waiting = [tree]
    for node in waiting:
        yield node
        waiting += [below for below in ast.iter_child_nodes(node) if types or not is_type_checking(below)]


@functools.cache
def imported(path, *, types=True, root=PACKAGE):
    """The full names of what a file imports, at its top or inside a function."""
    names = []
    for node in walk(parsed(root / path), types=types):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ".".join((root.name, *path.parent.parts)[: len(path.parent.parts) + 2 - node.level])
            source = node.module if not node.level else ".".join(filter(None, (package, node.module)))
            names += [f"{source}.{alias.name}" for alias in node.names]
    return tuple(names)


def no_file_imports(is_wrong, rule, paths=MODULES, **how):
    """Fails with each file and each name it imports that breaks a rule."""
    places = [f"{path}: {name}" for path in paths for name in imported(path, **how) if is_wrong(path, name)]
    assert not places, "\n".join((rule, *places))


def module_name(path, package):
    return ".".join((package, *path.with_suffix("").parts)).removesuffix(".__init__")


def files_of(files):
    """Finds the module that an imported name is, or is in; the package's own names lead anywhere and count for none."""

    def find(name):
        while "." in name and name not in files:
            name = name.rpartition(".")[0]
        return name if "." in name and name in files else None

    return find


def circles(arrows):
    """The first way back to each module that it can be reached from."""
    for start in sorted(arrows):
        seen, waiting = set(), [(name, (start,)) for name in arrows[start]]
        while waiting:
            name, way = waiting.pop()
            if name == start:
                yield " -> ".join((*way, start))
                break
            if name not in seen:
                seen.add(name)
                waiting += [(each, (*way, name)) for each in arrows[name]]


def loaded(code, *names):
    """Those of some modules that are loaded after running some code in an interpreter of its own."""
    script = f"{code}\nimport sys\nprint(*(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# --- the map ---


def test_the_map_has_nine_rooms():
    assert len(ROOMS) == 9
    assert {room_of(path) for path in MODULES} - {""} - APART == set(ROOMS)


@pytest.mark.slow
def test_imports_between_rooms_run_down():
    def runs_up(path, name):
        package, _, below = name.partition(".")
        room, other = room_of(path), below.partition(".")[0]
        return package == "perfhooks" and FLOOR.get(other, len(ROOMS)) > FLOOR.get(room, len(ROOMS))

    no_file_imports(runs_up, "import from a lower room")


@pytest.mark.slow
def test_map_has_few_arrows():
    files = {module_name(path, "perfhooks") for path in MODULES}

    def folder(module):
        parts = module.split(".")[1:]
        is_divided = parts[0] in DIVIDED and len(parts) > 1 and (PACKAGE / parts[0] / parts[1]).is_dir()
        return "/".join(parts[:2] if is_divided else parts[:1])

    modules = {(module_name(path, "perfhooks"), files_of(files)(name)) for path in MODULES for name in imported(path)}
    arrows = {(folder(module), folder(other)) for module, other in modules if other and "." in module}
    above = {(one, other) for one, other in arrows if one != other and other not in {"core", "run"}}
    assert 20 < len(above) <= MOST_ARROWS, sorted(above)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["perfhooks", *INTEGRATIONS])
def test_modules_do_not_import_each_other_in_a_circle(folder):
    root = PACKAGE if folder == "perfhooks" else ROOT / "integrations" / folder
    files = {module_name(path.relative_to(root), folder): path.relative_to(root) for path in root.rglob("*.py")}
    arrows = {name: {found for found in map(files_of(files), imported(path, root=root)) if found not in {None, name}}
              for name, path in files.items()}  # fmt: skip
    assert list(circles(arrows)) == []


def test_folders_have_few_modules():
    crowded = {path.name: len(list(path.glob("*.py"))) for path in [PACKAGE, *PACKAGE.rglob("*")] if path.is_dir()}
    assert {name: count for name, count in crowded.items() if count > MOST_MODULES} == {}


@pytest.mark.slow
def test_no_module_of_the_core_imports_an_integration():
    """But the launcher, which hands a training over to the face of its framework."""
    others = [path for path in MODULES if path.parts[:2] != ("record", "launch")]
    no_file_imports(lambda _, name: name.startswith("perfhooks_"), "integrations import us", others)


def test_integrations_use_only_public_names():
    """The package's own names, and those of `perfhooks.adapters`: what somebody outside could use as well."""
    public = {f"perfhooks.{name}" for name in perfhooks.__all__} | {"perfhooks", "perfhooks.adapters"}
    public |= {f"perfhooks.adapters.{name}" for name in exported(PACKAGE / "adapters" / "__init__.py")}

    def is_private(_, name):
        return name.partition(".")[0] == "perfhooks" and name not in public

    folder = ROOT / "integrations"
    files = sorted(path.relative_to(folder) for path in folder.glob("*_*/**/*.py"))
    no_file_imports(is_private, "not public", files, root=folder)


def exported(file):
    """The names in the ``__all__`` of a file, which is not imported: that takes torch."""
    (names,) = (node.value for node in parsed(file).body if "__all__" in map(ast.unparse, getattr(node, "targets", ())))
    return ast.literal_eval(names)


@pytest.mark.slow
def test_only_the_window_imports_the_profiler_of_torch():
    windows = {Path("record/loop/window.py"), Path("record/loop/like_torch/results.py")}
    others = [path for path in MODULES if path not in windows]
    rule = "types may be imported under TYPE_CHECKING"
    no_file_imports(lambda _, name: name.startswith("torch.profiler"), rule, others, types=False)


OPENS_FILES = {
    **dict.fromkeys(
        (
            "record/loop/loaders/workers.py",
            "record/workers/sampler.py",
            "record/workers/interpreter.py",
            "record/workers/layout.py",
        ),
        "the kernel's files",
    ),
    "trace/reading/source.py": "a trace, of which whoever names it has seen to it that it is plain",
    "trace/reading/packing.py": "the same",
    "report/handlers/tensorboard.py": "the same",
    "analysis/findings/texts/__init__.py": "files of the package",
    "core/plugins.py": "entry points of installed packages",
    "trace/limits/peaks.py": "a file of the user's own settings",
    "analysis/comparison/baseline.py": "a file that the user names",
    "cli/actions/report.py": "the page that was just written",
    "run/publishing.py": "a trace that was found plain",
    "record/loop/like_torch/results.py": "what this process saved, and writing",
    "cli/turns/program.py": "the log of a command, which it makes",
    "cli/tuning/session.py": "the same",
    "cli/turns/processes.py": "the kernel's files",
    "cli/turns/work_folder.py": "a temporary folder of this user",
    "trials/loader_runner.py": "the kernel's files",
    **dict.fromkeys(
        (
            *("core/thread_time.py", "record/watch/counters.py", "run/liveness.py"),
            *("run/circumstances.py", "run/remote.py"),
        ),
        "the kernel's files",
    ),
    "run/installation.py": "the metadata of installed packages",
    **dict.fromkeys(
        (
            *("report/page/page.py", "report/page/definitions.py"),
            *("core/successors.py", "run/live/slow_causes.py"),
        ),
        "files of this package",
    ),
    "trace/reading/downloads.py": "files that it has just downloaded",
}
"""Modules that open files otherwise, and which: a run folder may come from anybody, with links and FIFOs in it."""


COLLECTIVE = re.compile(
    r"(?:\bdistributed|\bdist|\bc10d)\.(?:\w*barrier|all_\w+|broadcast\w*|reduce\w*|gather\w*|scatter\w*|i?send|i?recv|new_group)$"
)


@pytest.mark.slow
def test_ranks_never_wait_for_each_other():
    """An integration that hands on the name of a run asks its framework to, before the first step."""
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "integrations").rglob("*.py")]
    calls = ((path, node) for path in paths for node in ast.walk(parsed(path)) if isinstance(node, ast.Call))
    assert [f"{path}:{call.lineno}" for path, call in calls if COLLECTIVE.search(ast.unparse(call.func))] == []


@pytest.mark.slow
def test_run_folders_are_read_in_one_module():
    opening = {
        f"{path}:{node.lineno}": path.as_posix()
        for path in MODULES
        for node in ast.walk(parsed(PACKAGE / path))
        if isinstance(node, ast.Call) and _opens_a_file(node)
    }
    places = [place for place, path in opening.items() if path not in OPENS_FILES]
    assert not places, "\n".join(("use run.reading", *places))
    assert set(OPENS_FILES) - set(opening.values()) == set(), "opens no file any more"


def _opens_a_file(call):
    """Whether a call opens a file by its path; ``open`` of other things takes something else first, or nothing."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if call.args else None
    if name == "open":
        mode = isinstance(first, ast.Constant) or any(each.arg in ("mode", "encoding") for each in call.keywords)
        return mode or isinstance(call.func, ast.Name)
    if name in ("read_csv", "read_parquet", "load") and isinstance(call.func, ast.Attribute):
        of = getattr(call.func.value, "id", "")
        return of in ("pl", "np") and not _is_content(first)
    return name in ("read_bytes", "read_text") and isinstance(call.func, ast.Attribute)


def _is_content(value):
    """Whether a value is bytes, or a file that was opened, rather than a path."""
    name = getattr(value, "id", "") or getattr(getattr(value, "func", None), "id", "")
    joined = isinstance(value, ast.Call) and isinstance(getattr(value.func, "value", None), ast.Constant)
    return joined or name in ("read_bytes", "file", "text", "content")


CHANGES_FILES = re.compile(
    r"(?:ch|f)?chmod|copy(?:file|tree)|make_?dirs?|mkdir|mkfifo|rename|rm(?:dir|tree)|(?:hard|sym)link(?:_to)?"
    r"|touch|unlink|utime|write_(?:bytes|text)|(?:os|shutil)\.(?:open|link|move|remove|replace)"
)
CHANGES_OTHERWISE = {
    "run/publishing.py": "the one place",
    "run/reading.py": "what it opens, for reading and for that place",
    "run/locking.py": "the empty file of a lock",
    "run/folder.py": "the folder itself, which the user named, and what is beside it",
    "run/remote.py": "the user's own folder for temporary files, and what fsspec does elsewhere",
    "record/loop/like_torch/results.py": "what Kineto left, by the path that was lent",
    "report/finishing/adoption.py": "a folder that only this process knows",
    "cli/actions/mirror.py": "the user's own folder for temporary files",
    "core/thread_time.py": "the kernel's files, which it only reads",
    "analysis/ranks/clocks.py": "no file, but numbers in a table",
    **dict.fromkeys(
        ("record/loop/worker.py", "report/finishing/serving.py"), "the priority of a session, in a file of the kernel"
    ),
    **dict.fromkeys(
        (
            *("record/launch/notes.py", "record/launch/detached.py", "record/launch/site/sitecustomize.py"),
            *("cli/actions/loader.py", "cli/tuning/session.py", "run/live/change_notes.py"),
        ),
        "notes in a temporary folder",
    ),
    **dict.fromkeys(
        ("trials/child.py", "cli/turns/supervisor.py", "record/loop/like_torch/silence.py"),
        "the device that forgets all",
    ),
    **dict.fromkeys(
        ("cli/actions/loader.py", "cli/turns/program.py", "cli/turns/work_folder.py", "cli/turns/revision.py"),
        "a temporary folder of this user",
    ),
    "cli/tuning/patch.py": "the user's files with --write, and a temporary folder",
    "cli/actions/peaks.py": "the folder of the user's own settings",
    "trace/reading/downloads.py": "the user's own folder for temporary files",
    **dict.fromkeys(("report/handlers/tensorboard.py", "testing.py"), "a folder that the user named"),
}
PUBLISHES = {
    "the run's own folder": (
        "run/folder.py",
        "run/manifest.py",
        "record/loop/handover.py",
        "record/watch/watch.py",
        "analysis/ranks/known.py",
        "report/page/__init__.py",
        "record/launch/startup.py",
        "trials/written.py",
        "cli/tuning/results.py",
    ),
    "the user's own folder for temporary files": ("cli/actions/mirror.py",),
    "beside the compiled files of this package": ("report/page/page.py",),
    "a path that the user named": (
        "analysis/ranks/merge.py",
        "report/handlers/tensorboard.py",
        "cli/actions/output.py",
        "record/loop/like_torch/results.py",
        "trials/own_calls.py",
        "record/launch/loader_trials.py",
    ),
}
"""Modules that publish by a path, of whose folder a link may be a part; in a folder below that of a run nobody does."""


def calls(path):
    return [node for node in ast.walk(parsed(PACKAGE / path)) if isinstance(node, ast.Call)]


@pytest.mark.slow
def test_wrappers_are_hidden_from_tracebacks_and_from_warnings():
    wrappers = [
        (f"{path.name}: {node.name}", {getattr(mark, "id", "") for mark in node.decorator_list})
        for path in OF_US
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and _hides_frames(node)
    ]
    assert len(wrappers) > 10
    assert not [name for name, marks in wrappers if "hide_from_warnings" not in marks]


def _hides_frames(function):
    handlers = [
        line for node in function.body if isinstance(node, ast.Try) for each in node.handlers for line in each.body
    ]
    called = [getattr(line, "value", None) for line in handlers]
    return any(isinstance(call, ast.Call) and getattr(call.func, "id", "") == "hide_frames" for call in called)


@pytest.mark.slow
def test_run_folders_are_written_in_one_module():
    """By names in folders that are open, see `perfhooks.run.publishing.OwnFolder`: no link below is followed."""
    changing = {f"{path}:{call.lineno}": path.as_posix() for path in MODULES for call in calls(path) if _changes(call)}
    places = [place for place, path in changing.items() if path not in CHANGES_OTHERWISE]
    assert not places, "\n".join(("use run.publishing.OwnFolder", *places))
    assert set(CHANGES_OTHERWISE) - set(changing.values()) == set(), "changes no file any more"
    named = ("publish", "publish_json")
    by_path = {path.as_posix() for path in MODULES for call in calls(path) if getattr(call.func, "id", "") in named}
    assert by_path == {path for paths in PUBLISHES.values() for path in paths}


def _changes(call):
    """Whether a call changes what is on a disk, by a path; ``replace`` of texts and of fields takes more, or less."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name, first = call.func.attr, call.args[0] if call.args else None
    if name == "replace" and len(call.args) == 1 and not call.keywords:
        return True
    if name == "open" and isinstance(first, ast.Constant):
        return bool(set(first.value) & set("wax+"))
    return any(CHANGES_FILES.fullmatch(each) for each in (name, f"{getattr(call.func.value, 'id', '')}.{name}"))


WORDS_OF_TORCH = re.compile(
    r"aten::|c10::|c10d|autograd::|AccumulateGrad|ProfilerStep|Optimizer\\?\.|enumerate\\?\(DataLoader|nn\\?\.Module: "
    r"|Compiled(?: Region|Function|FxGraph)|dynamo_timed|_foreach_|record_param_comms|(?:nccl|gloo|mpi):|\[memory\]"
    r"|fwdbwd|\bpython_function|cpu_op|user_annotation|^(?:Scalar|Tensor|Generic)List$|^(?:long|short) int$"
    r"|\b(?:cuda|hip)[A-Z]|(?:cuda|hip)\)\??[A-Z]|[HDAP]to[HDAP]|gemm(?!s)|^triton_"
)
"""Parts of names that torch, its recorder, its libraries or a device's runtime give to what they write into a trace."""
WHERE_THEY_STAND = {
    "trace/names": "their home",
    "trace/kinds.py": "the table of categories",
    "core/labels.py": "the step mark, which the training process knows without reading traces",
    "testing.py": "traces that are made up: what a test compares with is written out",
}


FILES_OF_TORCH = re.compile(
    r"(?:^|[/)])(?:torch|perfhooks|triton|safetensors)\\?/|/perfhooks_|torchinductor|/nn/modules/"
)
"""Parts of paths, by which a frame of torch or of ours is known."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "homes"),
    [
        pytest.param(WORDS_OF_TORCH, WHERE_THEY_STAND, id="words"),
        pytest.param(FILES_OF_TORCH, {"core/frames.py": "of a running program", "trace": "of a trace"}, id="files"),
    ],
)
def test_names_of_torch_are_defined_in_one_module(words, homes):
    """A list of operators, ranges, calls or files is in its home; elsewhere it is imported, or told in sentences."""
    found = []
    for path in MODULES:
        if any(path.as_posix().startswith(home) for home in homes):
            continue
        tree = ast.parse((PACKAGE / path).read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{path}:{node.lineno}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
            if words.search(node.value) and len(node.value.split()) < 8
        ]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_reading_a_trace_needs_no_torch():
    reading = [path for path in MODULES if room_of(path) == "trace"]
    no_file_imports(lambda _, name: name.partition(".")[0] == "torch", "not even inside a function", reading)


# --- what stands apart from the rules ---

OF_US = sorted(path for folder in ("perfhooks", "integrations") for path in (ROOT / folder).rglob("*.py"))
EXCEPTION = re.compile(r"# (?:noqa|type: ignore|pragma|fmt: (?:skip|off))\b")
EXPLAINED = re.compile(r"# (?:noqa: [A-Z0-9, ]+ --? |(?:type: ignore\[[a-z, -]+\]|fmt: skip)  # )\S")
MOST_EXCEPTIONS = 80
MOST_LATE_IMPORTS = 70
"""In functions: what is heavy, may be missing, or would make a circle; one place for all functions that need it."""
NAMES_OF_SEVERAL = {
    "Profiler": "accelerate's `profile()` gives one of its own, which stands in for ours",
    "ProfilerCallback": "Lightning, Fabric and transformers each call what they are given a callback",
}
"""Classes whose name others have as well, and why: users write these, each in a framework of its own."""


def test_linter_exceptions_are_rare_and_have_reasons():
    """A rule that is not ours at all is turned off in pyproject.toml, once."""
    lines = {
        f"{path.relative_to(ROOT)}:{number}": line.strip()
        for path in OF_US
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if EXCEPTION.search(line)
    }
    assert [place for place, line in lines.items() if not EXPLAINED.search(line)] == []
    assert 0 < len(lines) <= MOST_EXCEPTIONS, "give the code another shape, or decide about the rule once"


@pytest.mark.slow
def test_few_imports_are_inside_functions():
    late = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in OF_US
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert 0 < len(late) <= MOST_LATE_IMPORTS, "\n".join(sorted(late))


@pytest.mark.slow
def test_class_names_are_unique():
    places = {}
    for path in OF_US:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    several = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in NAMES_OF_SEVERAL} == {}
    assert set(NAMES_OF_SEVERAL) == set(several), "these names stand once"


# --- what an import costs ---


@pytest.mark.process
def test_perfhooks_imports_no_torch_framework_or_polars():
    assert loaded("import perfhooks", "torch", *FRAMEWORKS, *HEAVY) == []


@pytest.mark.worker
def test_local_commands_import_no_torch():
    imports = "\n".join(f"import perfhooks.{name}; first(perfhooks.{name})" for name in LAPTOP)
    first = "def first(module): assert not heavy & set(sys.modules), (module, heavy & set(sys.modules))"
    loaded(f"import sys\nheavy = {{'torch', *{FRAMEWORKS!r}}}\n{first}\n{imports}")


@pytest.mark.process
def test_training_process_imports_nothing_heavy_except_torch():
    assert loaded("import perfhooks.record.loop.profiler", "torch", *FRAMEWORKS, *HEAVY) == ["torch"]


# --- the public names ---


@pytest.mark.process
def test_training_process_reads_clocks_that_programs_cannot_replace():
    paths = [path for path in MODULES if path.parts[0] in ("adapters", "core", "record", "run")]
    imports = ((path, node) for path in paths for node in ast.walk(parsed(PACKAGE / path)))
    clocks = {
        path.as_posix()
        for path, node in imports
        if (isinstance(node, ast.Import) and "time" in {alias.name for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module == "time")
    }
    assert clocks == {"core/clocks.py", "record/launch/site/sitecustomize.py"}


def test_public_names_are_sorted_and_exist():
    names = list(getattr(perfhooks, "__all__", []))
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(perfhooks, name)] == []
    assert set(names) <= set(dir(perfhooks))


def test_the_change_log_names_the_version():
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in log or f"## [{perfhooks.__version__}]" in log


# --- the repository ---


def test_no_file_that_sets_up_an_environment_names_a_host():
    for name in ("Makefile", ".ci/run"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8"), "the registry is the reader's own choice"


def test_no_line_of_a_script_is_too_long_to_read():
    lines = {
        f"{path.name}:{number}": len(line)
        for path in (PACKAGE / "report/page/templates").glob("*.js")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    }
    assert {place: length for place, length in lines.items() if length > 120} == {}


@pytest.mark.slow
def test_finishing_a_window_enters_few_folders(tmp_path, monkeypatch):
    """At most 20, and at most 4 calls go to a higher room."""
    entered, climbs = set(), set()

    @functools.cache
    def module_of(file):
        path = Path(file)
        return path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else None

    def caller_of(frame):
        while (frame := frame.f_back) is not None:
            if (module := module_of(frame.f_code.co_filename)) is not None:
                return module
        return None

    def on_call(frame, event, _):
        module = module_of(frame.f_code.co_filename) if event == "call" else None
        caller = None if module is None else caller_of(frame)
        if caller is not None:
            entered.add(module.parent)
            if FLOOR[room_of(module)] > FLOOR[room_of(caller)]:
                climbs.add((str(caller), str(module)))

    def finish(place):
        sys.setprofile(on_call)
        try:
            return real(place)
        finally:
            sys.setprofile(None)

    real = finished_runs.finish
    monkeypatch.setattr(finished_runs, "finish", finish)
    finished_runs.windows_of(tmp_path / "run", ("train-000000-000002", 0, 1.0))
    assert (tmp_path / "run" / "report.html").exists()
    assert len(entered) <= 20, sorted(map(str, entered))
    assert len(climbs) <= 4, sorted(climbs)
