"""The rules of the project itself: which module may import which, what an import costs, what is public."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import perfhooks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perfhooks"

LAYERS = (
    (
        "errors",
        "labels",
        "schedule",
        "guard",
        "run.liveness",
        "run.job",
        "run.remote",
        "run.timeline",
        "trace",
        "run.publishing",
    ),
    ("run.capture", "run.folder"),
    ("handlers", "report", "findings", "ranks", "command.output", "report.terminal_tables"),
    ("finishing.finish", "command.show", "ranks.merge", "command.flame"),
    ("options", "recording.window", "recording.lifetime", "recording.handover", "recording.worker"),
    ("recording.profiler", "recording.loader", "recording.trace_handler"),
    ("command.demo", "command.doctor"),
    ("testing", "command.app", "__main__"),
)
"""The house, ground floor first; a module may import from its own floor and from those below. What only those who
annotate need (``if TYPE_CHECKING``) is held to it as well: knowing the type is knowing the module."""

FLOORS = {name: floor for floor, names in enumerate(LAYERS) for name in names}
ROOF = len(LAYERS)
"""Where the package itself stands, with its public names."""

LAPTOP = (
    *LAYERS[0],
    "run.folder",
    "handlers",
    "report",
    "finishing.finish",
    "ranks",
    "ranks.merge",
    "command.show",
    "report.terminal_tables",
    "command.app",
)
"""What must work on a machine without torch."""

FRAMEWORKS = ("lightning", "pytorch_lightning", "mmengine")
HEAVY = ("polars", "plotly", "jinja2", "pandas", "rich")

MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def place(name):
    """The entry of the map that a dotted name belongs to: ``trace`` for ``trace.reader.read``."""
    parts = name.split(".")
    return next((at for at in (".".join(parts[:2]), parts[0]) if at in FLOORS), parts[0])


def top_name(path):
    """The entry of the map that a file belongs to: ``trace`` for ``trace/reader.py``."""
    return place(".".join(path.with_suffix("").parts))


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def walk(tree, *, types):
    """All nodes below one; those that only a type checker runs are left out unless ``types``."""
    for node in ast.iter_child_nodes(tree):
        if types or not is_type_checking(node):
            yield node
            yield from walk(node, types=types)


def imported(path, *, types=True):
    """The full names of what a file imports, at its top or inside a function."""
    for node in walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8")), types=types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(("perfhooks", *path.parent.parts)[: len(path.parent.parts) + 2 - node.level])
            source = node.module if not node.level else ".".join(filter(None, (package, node.module)))
            yield from (f"{source}.{alias.name}" for alias in node.names)


def loaded(code, *names):
    """Those of some modules that are loaded after running some code in an interpreter of its own."""
    script = f"{code}\nimport sys\nprint(*(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def exists(name):
    return importlib.util.find_spec(f"perfhooks.{name}") is not None


# --- the map ---


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_has_its_place_on_the_map(path):
    assert path.name == "__init__.py" or top_name(path) in FLOORS, "add it to LAYERS, where it belongs"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_module_imports_from_a_floor_above_its_own(path):
    floor = FLOORS.get(top_name(path), ROOF)
    for name in imported(path):
        package, _, name_below = name.partition(".")
        if package != "perfhooks" or name in {"perfhooks", "perfhooks.__version__"}:
            continue
        assert place(name_below) in FLOORS or floor == ROOF, f"{path} imports {name}: import it where it lives"
        assert FLOORS.get(place(name_below), ROOF) <= floor, f"{path} imports {name} from above"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_module_of_the_core_imports_an_integration(path):
    assert not [name for name in imported(path) if name.startswith(("perfhooks_lightning", "perfhooks_mmengine"))]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_only_the_window_imports_the_profiler_of_torch(path):
    names = [name for name in imported(path, types=False) if name.startswith("torch.profiler")]
    assert not names or path == Path("recording/window.py"), "types may be imported under TYPE_CHECKING"


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
