"""A terminal for the tests of what a person sees and presses."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time

_END = b"\x1e"


class Terminal:
    """A command of perfhooks in a process whose terminal is ours.

    Args:
        words: What is typed after ``perfhooks``.
        first: Python that the process runs before it.
    """

    def __init__(self, *words, first=""):
        self.ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        # the session of the child has this terminal, so that Ctrl-C is its signal
        taken = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
        code = f"{taken}\n{first}\nimport perfhooks.cli.app as app; app.main()"
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words], start_new_session=True, env=env, **streams
        )
        self.text = ""

    def read_until(self, fact):
        """Take what it draws until something is so; five minutes without it are a failure."""
        until = time.monotonic() + 300
        while not fact():
            assert time.monotonic() < until, self.text
            has_ended = self.process.poll() is not None  # and what it wrote before can be read
            if select.select([self.ours], [], [], 0.05)[0]:
                self.text += os.read(self.ours, 65536).decode("utf-8", "replace")
            else:
                assert not has_ended or fact(), self.text

    def press(self, keys):
        os.write(self.ours, keys)

    def end(self):
        """Its exit code, after all that it draws."""
        self.read_until(lambda: self.process.poll() is not None)
        while select.select([self.ours], [], [], 0)[0]:
            self.text += os.read(self.ours, 65536).decode("utf-8", "replace")
        os.write(self.theirs, _END)  # the kernel may pass on later what was written, but in this order
        while not self.text.endswith(_END.decode()):
            self.text += os.read(self.ours, 65536).decode("utf-8", "replace")
        self.text = self.text.removesuffix(_END.decode())
        return self.process.returncode

    def modes(self):
        return termios.tcgetattr(self.theirs)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


def steps_of_mean(first, last):
    """Return the pattern of the steps that a line averages: those of a window, without outliers by a busy machine."""
    return re.compile(rf"\bsteps? ({'|'.join(map(str, range(first, last + 1)))})\b[-\d]*( without [\d and]+)?: ")
