"""Start-up file of each Python under ``perfhooks run``, which waits for the import of torch."""

from __future__ import annotations

import atexit
import os
import sys
import time
from _frozen_importlib_external import PathFinder
from _thread import get_ident
from importlib import import_module

TYPE_CHECKING = False  # typing takes milliseconds to import, and type checkers know the name
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

BEGAN = time.monotonic_ns()
"""Start of this Python in ns of the monotonic clock."""

PID = os.getpid()
STARTER = "subprocess"
WATCHED = (
    *(STARTER, "torch", "torch.optim.optimizer", "torch.utils.data.dataloader"),
    *("torch._dynamo", "mmengine.runner.runner", "transformers.trainer"),
)
EXPECTED = ("torch", "torch._dynamo")
"""Modules before whose import perfhooks must act."""


class ImportWatcher:
    def __init__(self) -> None:
        self.waiting = set(WATCHED)
        self.importing = 0
        """Identifier of the thread that imports the first module of perfhooks, else 0."""
        self.own_imports: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec: ModuleSpec | None = None
        if self.own_imports is not None:
            spec = attempt(self.own_imports.find_spec, name, path, target)
        elif self.importing and path is None and self.importing == get_ident():
            spec = PathFinder.find_spec(name, OWN, target)
        if spec is None and name in self.waiting:
            self.waiting.discard(name)
            spec = attempt(self.watched_spec, name, path, target)
        return spec

    def find_theirs(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        # old finders have no ``find_spec``; Python calls them itself
        finders = [finder.find_spec for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        return next(filter(None, (find(name, path, target) for find in finders)), None)

    def watched_spec(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """Return an import spec that reports the import of a module; None if perfhooks ignores the module."""
        if name in EXPECTED and not attempt(notify, f"{name} is coming", None):
            return None
        spec = self.find_theirs(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            watch_loader(spec.loader, name)
        return spec

    def our_code(self, name: str) -> Any:
        """Import a module of perfhooks without changing the modules that the program finds."""
        if self.own_imports is None:
            OWN[:] = [entry for entry in PATH if entry in OWN or is_installed_into(entry)]
            if is_shadowed("perfhooks"):
                raise ImportError("another module called perfhooks is next to the script or in PYTHONPATH")
            self.importing = get_ident()
            try:
                from perfhooks.record.launch.own_imports import OwnImports
            finally:
                self.importing = 0
            self.own_imports = OwnImports(OWN, self.find_theirs)
        return import_module(name)


def is_installed_into(folder: str) -> bool:
    return any(name.endswith(".dist-info") for name in names_in(folder))


def names_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []


def is_shadowed(name: str) -> bool:
    """Return whether the program's module of this name hides the one of perfhooks."""
    theirs, ours = PathFinder.find_spec(name), PathFinder.find_spec(name, OWN)
    if theirs is None or ours is None or theirs.origin is None or ours.origin is None:
        return False
    return os.path.realpath(theirs.origin) != os.path.realpath(ours.origin)


def watch_loader(loader: Any, name: str) -> None:
    theirs = vars(loader).get("exec_module")  # of another tool

    def exec_module(module: Any) -> None:
        if theirs is None:
            del loader.exec_module
        else:
            loader.exec_module = theirs
        try:
            loader.exec_module(module)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise
        attempt(*((patch_popen, module) if name == STARTER else (notify, name, module)))

    code = (
        exec_module.__code__
    )  # warnings do not count frames with this file name, see perfhooks.core.frames.hide_from_warnings
    exec_module.__code__ = code.replace(co_filename=f"<importlib._bootstrap>{code.co_filename}")
    loader.exec_module = exec_module


def with_our_folder(path: str) -> str:
    return path if here in path.split(os.pathsep) else os.pathsep.join(filter(None, (here, path)))


def patch_popen(module: Any) -> None:
    """Keep our folder in PYTHONPATH if the program passes its own environment to child processes."""
    init = module.Popen.__init__

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        env = kwargs.get("env")
        if env is not None and "PERFHOOKS_RUN" in env:
            kwargs["env"] = {**env, "PYTHONPATH": with_our_folder(env.get("PYTHONPATH", ""))}
        try:
            init(self, *args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise

    begin.__wrapped__ = init  # type: ignore[attr-defined]  # its signature is found there
    module.Popen.__init__ = begin


def patch_environ() -> None:
    """Keep our folder in PYTHONPATH of child processes. ``os.environ`` still shows the value of the program."""
    put, unset = os.putenv, os.unsetenv

    def putenv(name: Any, value: Any, /) -> None:
        put(name, with_our_folder(os.fsdecode(value)) if os.fsdecode(name) == "PYTHONPATH" else value)

    def unsetenv(name: Any, /) -> None:
        if os.fsdecode(name) == "PYTHONPATH":
            put(name, here)
        else:
            unset(name)

    os.putenv, os.unsetenv = putenv, unsetenv


def notify(name: str, module: Any) -> bool:
    watcher.our_code("perfhooks.record.launch.frameworks").imported(name, module, BEGAN)
    return True


def attempt(function: Any, *args: Any) -> Any:
    """Call a function of perfhooks. An error disables perfhooks and never reaches the program."""
    try:
        return function(*args)
    except (Exception, SystemExit) as error:
        if is_of_handler(error):
            raise
        watcher.waiting.clear()
        if function is not leave_note:
            attempt(leave_note, error)
        return None


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised the error; False if perfhooks cannot be imported."""
    try:
        checked: bool = watcher.our_code("perfhooks.core.handlers").is_of_handler(error)
    except Exception:  # noqa: BLE001 -- the installation may be broken
        return False
    return checked


def leave_note(error: BaseException) -> None:
    """Write why nothing is recorded, without modules of perfhooks, which may be broken."""
    why = f"{sys.executable} cannot use perfhooks ({type(error).__name__}: {error})"
    text = "".join(letter if letter.isprintable() and letter not in '"\\' else " " for letter in why)
    folder = request_field("notes")
    if folder:
        file = os.open(f"{folder}/{os.getpid()}-{os.getppid()}-0.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, f'{{"why": "{text}"}}'.encode())
        os.close(file)


def print_summary() -> None:
    """Print the exit summary. The function is registered with ``atexit`` first, so Python calls it last."""
    name = "perfhooks.record.launch.exit_summary"
    if os.getpid() != PID:
        return
    folder = request_field("notes")
    is_command = f'"command":{PID},' in os.environ["PERFHOOKS_RUN"]
    has_notes = is_command or name.replace("exit_summary", "notes") in sys.modules
    if has_notes or any(f"-{PID}-" in note for note in names_in(folder)):
        with watcher.our_code("perfhooks.core.handlers").contained():
            watcher.our_code(name).at_exit(is_command=is_command)


def request_field(field: str) -> str:
    """Read a field of the request without the JSON module, which would slow down the start."""
    return os.environ.get("PERFHOOKS_RUN", "").partition(f'"{field}":"')[2].partition('"')[0]


def run_user_file() -> None:
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        if error.name != "sitecustomize":
            raise


absolute, folder_of = os.path.abspath, os.path.dirname  # pathlib takes milliseconds to import
here = folder_of(absolute(__file__))
sys.path[:] = [entry for entry in sys.path if entry != here]
GIVEN = [absolute(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
PATH = list(sys.path)
OWN = [entry for entry in PATH if entry not in GIVEN]
"""Import path for modules of perfhooks: without the script's folder, and without folders that the program adds."""
watcher = ImportWatcher()
if os.environ.get("PERFHOOKS_RUN"):
    sys.meta_path.insert(0, watcher)
    atexit.register(attempt, print_summary)
    patch_environ()
    if STARTER in sys.modules:
        patch_popen(sys.modules[STARTER])
run_user_file()
