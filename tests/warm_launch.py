"""A command of perfhooks in a process that is warm; the script of `perfhooks run` is run there as well.

As a script: takes the words after ``perfhooks``. What was imported long ago is told of at once, and what is not yet
imported tells as ever. Where it matters how a Python begins and what it imports, `perfhooks run` must begin one.
Where the environment is that of `perfhooks run` already, it takes the words of the script.
"""

import os
import sys

from perfhooks.cli import app
from perfhooks.record.launch.command_line import SITE, VARIABLE

BEFORE = ("torch.optim.optimizer", "torch.utils.data.dataloader")
"""What torch imports while it is imported."""


class CommandError(BaseException):
    """Is where the command would begin: nobody catches it."""


def execve(_path, words, environment):
    raise CommandError(words, environment)


def commanded():
    """The script and its arguments; whatever `perfhooks run` has to do before has been done."""
    real, os.execve = os.execve, execve
    sys.argv[0] = "perfhooks"
    try:
        app.main()
    except CommandError as error:
        words, environment = error.args
    os.execve = real
    os.environ.clear()
    os.environ.update(environment)
    return words[words[0] == sys.executable :]


def tell_of_imports():
    """Listen as a Python does that begins now, and has imported by magic what this one has."""
    sys.path.insert(1, str(SITE))
    import sitecustomize as site

    for name in (*BEFORE, "torch", *site.WATCHED):
        if name in site.watcher.waiting and name in sys.modules:
            site.watcher.waiting.discard(name)
            if name in site.EXPECTED:
                site.attempt(site.notify, f"{name} is coming", None)
            site.attempt(site.notify, name, sys.modules[name])


sys.argv = sys.argv[1:] if VARIABLE in os.environ else commanded()
file = sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(file))  # noqa: PTH100, PTH120
tell_of_imports()
with open(file) as text:  # noqa: PTH123
    code = compile(text.read(), file, "exec")
sys.modules["__main__"].__dict__.update(__file__=file)
exec(code)
