"""The rules of the project itself: which module may import which, what an import costs, what is public."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import perfhooks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perfhooks"

FLOORS = (
    ("errors", "labels", "variables", "version", "words"),
    ("guard", "process", "progress", "schedule", "statistics"),
    ("trace",),
    ("run",),
    ("options",),
    ("findings", "watching"),
    ("ranks",),
    ("report",),
    ("comparing",),
    ("trying",),
    ("handlers",),
    ("finishing",),
    ("recording",),
    ("adapting",),
    ("launching",),
    ("testing", "command"),
    ("__main__",),
)
"""The rooms of the house, ground floor first: folders, and the modules beside them. A room may import from itself and
from the floors below, and never from its neighbours. What only those who annotate need (``if TYPE_CHECKING``) is held
to it as well: knowing the type is knowing the module."""

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ROOF = len(FLOORS)
"""Where the package itself stands, with its public names."""

MOST_MODULES = 20
"""In one folder: more is a corridor."""

LAPTOP = (
    *(*FLOORS[0], *FLOORS[1]),
    "trace",
    "run.folder",
    "findings",
    "ranks.merge",
    "handlers",
    "report",
    "comparing.comparison",
    "watching.requests",
    "finishing.serving",
    "command.app",
    "command.show",
)
"""What must work on a machine without torch."""

FRAMEWORKS = ("lightning", "pytorch_lightning", "mmengine", "transformers", "accelerate")
HEAVY = ("polars", "plotly", "jinja2", "pandas", "rich")

INTEGRATIONS = sorted(path.name for path in (ROOT / "integrations").glob("*_*"))

MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def room_of(path):
    """``trace`` for ``trace/reading/reader.py``, ``options`` for ``options.py``; nothing for the package itself."""
    return path.parts[0] if len(path.parts) > 1 else path.stem.replace("__init__", "")


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def walk(tree, *, types):
    """All nodes below one; those that only a type checker runs are left out unless ``types``."""
    for node in ast.iter_child_nodes(tree):
        if types or not is_type_checking(node):
            yield node
            yield from walk(node, types=types)


def imported(path, *, types=True, root=PACKAGE):
    """The full names of what a file imports, at its top or inside a function."""
    for node in walk(ast.parse((root / path).read_text(encoding="utf-8")), types=types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ".".join((root.name, *path.parent.parts)[: len(path.parent.parts) + 2 - node.level])
            source = node.module if not node.level else ".".join(filter(None, (package, node.module)))
            yield from (f"{source}.{alias.name}" for alias in node.names)


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def exists(name):
    return importlib.util.find_spec(f"perfhooks.{name}") is not None


# --- the map ---


def test_every_room_has_its_floor_and_every_floor_its_rooms():
    assert {room_of(path) for path in MODULES} - {""} == set(FLOOR)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_arrows_between_rooms_run_down(path):
    room = room_of(path)
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "perfhooks" or room == parts[1]:
            continue
        assert parts[1] in FLOOR or not room, f"{path} imports {name}: import it where it lives"
        assert FLOOR[parts[1]] < FLOOR.get(room, ROOF), f"{path} imports {name} from above or from next door"


@pytest.mark.parametrize("folder", ["perfhooks", *INTEGRATIONS])
def test_no_modules_import_each_other_in_a_circle(folder):
    root = PACKAGE if folder == "perfhooks" else ROOT / "integrations" / folder
    files = {module_name(path.relative_to(root), folder): path.relative_to(root) for path in root.rglob("*.py")}
    arrows = {name: {found for found in map(files_of(files), imported(path, root=root)) if found not in {None, name}}
              for name, path in files.items()}  # fmt: skip
    assert list(circles(arrows)) == []


def test_no_folder_is_a_corridor():
    crowded = {path.name: len(list(path.glob("*.py"))) for path in PACKAGE.iterdir() if path.is_dir()}
    assert {name: count for name, count in crowded.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) != "launching"], ids=str)
def test_no_module_of_the_core_imports_an_integration(path):
    """But the launcher, which hands a training over to the face of its framework."""
    assert not [name for name in imported(path) if name.startswith("perfhooks_")]


@pytest.mark.parametrize(
    "path", [path for name in INTEGRATIONS for path in sorted((ROOT / "integrations" / name).rglob("*.py"))], ids=str
)
def test_an_integration_uses_only_what_is_public(path):
    """The package's own names, and those of `perfhooks.adapting`: what somebody outside could use as well."""
    public = {f"perfhooks.{name}" for name in perfhooks.__all__} | {"perfhooks"}
    public |= {f"perfhooks.adapting.{name}" for name in importlib.import_module("perfhooks.adapting").__all__}
    root = path.parent
    names = [name for name in imported(path.relative_to(root), root=root) if name.split(".")[0] == "perfhooks"]
    assert [name for name in names if name not in public | {"perfhooks.adapting"}] == []


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_only_the_window_imports_the_profiler_of_torch(path):
    names = [name for name in imported(path, types=False) if name.startswith("torch.profiler")]
    assert not names or path == Path("recording/window.py"), "types may be imported under TYPE_CHECKING"


OPENS_FILES = {
    "run/reading.py": "the one place that reads a run folder",
    "trace/reading/source.py": "a trace, of which whoever names it has seen to it that it is plain",
    "trace/reading/packing.py": "the same",
    "handlers/tensorboard.py": "the same",
    "comparing/baseline.py": "a file that the user names",
    "command/report.py": "the page that was just written",
    "run/publishing.py": "a draft of ours, and writing",
    "recording/window.py": "what this process saved, and writing",
    "launching/startup.py": "writing, and the kernel's files",
    "run/timeline.py": "bytes that were read",
    **dict.fromkeys(("watching/counters.py", "run/remote.py", "run/liveness.py", "run/manifest.py", "trying/safe.py"),
                    "the kernel's files"),
}  # fmt: skip
"""Modules that open files otherwise, and which: a run folder may come from anybody, with links and FIFOs in it."""


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_what_a_run_folder_holds_is_read_in_one_place(path):
    calls = [node for node in ast.walk(ast.parse((PACKAGE / path).read_text("utf-8"))) if isinstance(node, ast.Call)]
    opening = [node for node in calls if _opens_a_file(node)]
    assert not opening or path.as_posix() in OPENS_FILES, f"line {opening[0].lineno}: use run.reading"


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


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] == "trace"], ids=str)
def test_reading_a_trace_needs_no_torch_at_all(path):
    assert not [name for name in imported(path) if name.split(".")[0] == "torch"]


# --- what an import costs ---


def test_importing_perfhooks_imports_neither_torch_nor_a_framework_nor_polars():
    assert loaded("import perfhooks", "torch", *FRAMEWORKS, *HEAVY) == []


@pytest.mark.parametrize("name", [name for name in LAPTOP if exists(name)])
def test_what_runs_on_a_laptop_imports_no_torch(name):
    assert loaded(f"import perfhooks.{name}", "torch", *FRAMEWORKS) == []


@pytest.mark.skipif(not exists("recording.profiler"), reason="there is no profiler yet")
def test_the_training_process_imports_nothing_heavy_but_torch():
    assert loaded("import perfhooks.recording.profiler", "torch", *FRAMEWORKS, *HEAVY) == ["torch"]


# --- the public names ---


def test_the_public_names_are_sorted_and_each_one_is_there():
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
        for path in (PACKAGE / "report/templates").glob("*.js")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    }
    assert {place: length for place, length in lines.items() if length > 120} == {}
