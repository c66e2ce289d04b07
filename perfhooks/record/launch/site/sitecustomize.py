"""Runs at the start of every Python under ``perfhooks run``: waits for torch, and lets the user's own file run too.

Python imports this file by its name from the folder that ``perfhooks run`` has put first in ``PYTHONPATH``. Processes
that never import torch pay for the lines below and for nothing else.
"""

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
"""When this Python came here, by the clock that `perfhooks.record.launch.startup` goes by."""

PID = os.getpid()
STARTER = "subprocess"
WATCHED = (
    *(STARTER, "torch", "torch.optim.optimizer", "torch.utils.data.dataloader"),
    *("torch._dynamo", "mmengine.runner.runner", "transformers.trainer"),
)
"""The modules whose import means something: the first one that a training of torch may follow."""
EXPECTED = ("torch", "torch._dynamo")
"""Those before whose import there is something to do."""


class ImportWatcher:
    """Tells `perfhooks.record.launch.hooks` when one of the modules that matter has been imported.

    It finds our own modules, see `perfhooks.record.launch.own_imports`. All else is found by others.
    """

    def __init__(self) -> None:
        self.waiting = set(WATCHED)
        self.importing = 0
        """The thread that imports the first of our modules just now."""
        self.own: Any = None
        """Finds our modules, once the first one is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Let the others find it, and listen to its end."""
        spec: ModuleSpec | None = None
        if self.own is not None:
            spec = tried(self.own.find_spec, name, path, target)
        elif self.importing and path is None and self.importing == get_ident():
            spec = PathFinder.find_spec(name, OWN, target)
        if spec is None and name in self.waiting:
            self.waiting.discard(name)
            spec = tried(self.listened, name, path, target)
        return spec

    def others(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """Find what the program finds."""
        # finders of old have no such method, and are for Python itself to ask
        finders = [finder.find_spec for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        return next(filter(None, (find(name, path, target) for find in finders)), None)

    def listened(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """What the others find, with an ear on it; nothing where we cannot listen, and Python asks them itself."""
        if name in EXPECTED and not tried(tell, f"{name} is coming", None):
            return None
        spec = self.others(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            listen(spec.loader, name)
        return spec

    def our_code(self, name: str) -> Any:
        """Import a module of ours, so that the program finds all modules that it would find without us.

        Raises:
            ImportError: The program has a module called perfhooks.
        """
        if self.own is None:
            OWN[:] = [entry for entry in PATH if entry in OWN or is_installed_into(entry)]
            if is_taken("perfhooks"):
                raise ImportError("beside the script or in PYTHONPATH is another module called perfhooks")
            self.importing = get_ident()
            try:
                from perfhooks.record.launch.own_imports import OwnImports
            finally:
                self.importing = 0
            self.own = OwnImports(OWN, self.others)
        return import_module(name)


def is_installed_into(folder: str) -> bool:
    """Whether libraries were installed into a folder, as what the installer leaves there says."""
    return any(name.endswith(".dist-info") for name in names_in(folder))


def names_in(folder: str) -> list[str]:
    """The names of what is in a folder; none where there is none."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []


def is_taken(name: str) -> bool:
    """Whether the program would find another module of this name than our own code does."""
    found, ours = PathFinder.find_spec(name), PathFinder.find_spec(name, OWN)
    if found is None or ours is None or found.origin is None or ours.origin is None:
        return False  # also a folder that is no package, and what is built into Python
    return os.path.realpath(found.origin) != os.path.realpath(ours.origin)


def listen(loader: Any, name: str) -> None:
    """Be called once the loader has executed its module."""

    def exec_module(module: Any) -> None:
        del loader.exec_module
        try:
            loader.exec_module(module)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this frame
            raise
        tried(*((stay_in, module) if name == STARTER else (tell, name, module)))

    loader.exec_module = exec_module


def with_us(path: str) -> str:
    """A PYTHONPATH with our folder, also where the program has set its own."""
    return path if here in path.split(os.pathsep) else os.pathsep.join(filter(None, (here, path)))


def stay_in(module: Any) -> None:
    """Have the Pythons that the program starts find us, also where it gives them a PYTHONPATH of its own."""
    plain = module.Popen.__init__

    def begin(self: Any, *given: Any, **named: Any) -> None:
        env = named.get("env")
        if env is not None and "PERFHOOKS_RUN" in env:
            named["env"] = {**env, "PYTHONPATH": with_us(env.get("PYTHONPATH", ""))}
        try:
            plain(self, *given, **named)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this frame
            raise

    begin.__wrapped__ = plain  # type: ignore[attr-defined]  # its signature is found there
    module.Popen.__init__ = begin


def stay_in_environ() -> None:
    """The same where it changes its own environment: it reads what it has written, and its children find us as well."""
    put, unset = os.putenv, os.unsetenv

    def putenv(name: Any, value: Any, /) -> None:
        put(name, with_us(os.fsdecode(value)) if os.fsdecode(name) == "PYTHONPATH" else value)

    def unsetenv(name: Any, /) -> None:
        if os.fsdecode(name) == "PYTHONPATH":
            put(name, here)
        else:
            unset(name)

    os.putenv, os.unsetenv = putenv, unsetenv


def tell(name: str, module: Any) -> bool:
    """Say what was imported, or is about to be."""
    watcher.our_code("perfhooks.record.launch.hooks").imported(name, module, BEGAN)
    return True


def tried(act: Any, *given: Any) -> Any:
    """What an act gives; whatever goes wrong on our side must not reach the program, and is nothing."""
    try:
        return act(*given)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- the program has not asked for us
        watcher.waiting.clear()
        if act is not leave_note:
            tried(leave_note, error)
        return None


def leave_note(error: BaseException) -> None:
    """Have ``perfhooks run`` say why nothing was recorded; by no module, as any of them may be what is broken."""
    why = f"{sys.executable} cannot use perfhooks ({type(error).__name__}: {error})"
    plain = "".join(letter if letter.isprintable() and letter not in '"\\' else " " for letter in why)
    folder = told("notes")
    if folder:
        file = os.open(f"{folder}/{os.getpid()}-{os.getppid()}-0.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, f'{{"why": "{plain}"}}'.encode())
        os.close(file)


def print_summary() -> None:
    """Print what was recorded, when this process ends; the last of all handlers, because it is the first."""
    name = "perfhooks.record.launch.exit_summary"
    if os.getpid() != PID:
        return  # a forked child
    folder = told("notes")
    is_command = f'"command":{PID},' in os.environ["PERFHOOKS_RUN"]
    is_known = is_command or name.replace("exit_summary", "notes") in sys.modules
    if is_known or any(f"-{PID}-" in note for note in names_in(folder)):
        watcher.our_code(name).at_exit(is_command=is_command)


def told(field: str) -> str:
    """Return a text of `perfhooks.record.launch.command_line.Request`, without a module that reads JSON."""
    return os.environ.get("PERFHOOKS_RUN", "").partition(f'"{field}":"')[2].partition('"')[0]


def run_the_users() -> None:
    """Import the ``sitecustomize`` that Python would have found without us, if there is one."""
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
"""Where our code imports from: the environment, without the script's folder and what the program adds.

With the folders of `GIVEN` that libraries were installed into, once our code is imported.
"""
watcher = ImportWatcher()
if os.environ.get("PERFHOOKS_RUN"):
    sys.meta_path.insert(0, watcher)
    atexit.register(tried, print_summary)
    stay_in_environ()
    if STARTER in sys.modules:
        stay_in(sys.modules[STARTER])
run_the_users()
