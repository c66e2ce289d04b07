"""Kinds and levels of the tests.

The kind of a test is the most expensive thing that it starts. A test without a kind is pure: it starts nothing.
`make check` runs the pure tests, `make test` all but the nightly ones, `make nightly` the nightly ones.
"""

import re
import sys
from pathlib import Path

import pytest

KINDS = {
    "slow": "computes for 0.2 s or longer",
    "recorder": "records with torch's recorder",
    "worker": "starts a worker process of perfhooks",
    "process": "starts other processes",
    "framework": "trains with a framework",
    "browser": "opens a report in Chromium",
    "cluster": "starts a cluster, an object store or the server of a logger",
}
"""The cheapest first. A test may start everything that is cheaper than its kind."""
FIXTURES = {
    **dict.fromkeys(("channel", "launch", "run_script"), "process"),
    **dict.fromkeys(("frameworks", "launch_framework"), "framework"),
    "s3": "cluster",
}
"""Kinds of the tests that use a fixture."""
NIGHTLY = "nightly"
LEVELS = ("check", "test", NIGHTLY)
PROCESS_EVENTS = ("os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen")
FILE_KIND = re.compile(rf"^pytestmark = (?:\[\s*)?pytest\.mark\.({'|'.join((*KINDS, NIGHTLY))})\b", re.MULTILINE)
"""A kind of all tests of a file, first in its list of marks."""
RANKS = {kind: rank for rank, kind in enumerate(("pure", *KINDS))}


class Levels:
    """Selects the tests of a level, and checks that each test starts no more than its kind says."""

    def __init__(self, level):
        self.level = level
        self.started = set()
        self.of_fixtures = {}
        """Kinds that a fixture starts, by its definition: later tests share it without starting anything."""
        self.has_recorder = False
        sys.addaudithook(self._hear)

    def _hear(self, event, arguments):
        if event in PROCESS_EVENTS:
            command = str(arguments[1]) if event == "subprocess.Popen" else ""
            is_worker = "'-c'" in command and "perfhooks" in command
            if "ldconfig" in command:  # torch imports CUDA's library finder once, in any test
                return
            self.started.add("browser" if "chrom" in command else "worker" if is_worker else "process")

    def _watch_recorder(self):
        """Notice each start of torch's recorder, once torch is imported."""
        profile = getattr(sys.modules.get("torch.autograd.profiler"), "profile", None)
        if self.has_recorder or profile is None:
            return
        self.has_recorder, prepare = True, profile._prepare_trace

        def prepared(recorder):
            self.started.add("recorder")
            return prepare(recorder)

        profile._prepare_trace = prepared

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path):
        """Skip the import of a file whose tests all have another level."""
        if self.level == "check" and collection_path.suffix == ".py":
            return bool(FILE_KIND.search(Path(collection_path).read_text(encoding="utf-8"))) or None
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        """Deselect the tests of other levels."""
        levels = {id(item): level_of(item) for item in items}
        chosen = {None: LEVELS, "check": ("check",), "test": ("check", "test"), NIGHTLY: (NIGHTLY,)}[self.level]
        dropped = [item for item in items if levels[id(item)] not in chosen]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = [item for item in items if levels[id(item)] in chosen]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """Remember what a shared fixture starts."""
        before, self.started = self.started, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.of_fixtures.setdefault(id(fixturedef), set()).update(self.started)
            self.started |= before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        """Begin to observe a test."""
        self._watch_recorder()
        self.started = set()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        """Fail a test that starts more than its kind allows."""
        outcome = yield
        kind = kind_of(item)
        item.user_properties.append(("kind", kind))
        shared = (self.of_fixtures.get(id(each[-1]), ()) for each in item._fixtureinfo.name2fixturedefs.values())
        most = max(self.started.union(*shared), key=RANKS.__getitem__, default="pure")
        if RANKS[most] > RANKS[kind]:
            pytest.fail(f"this {kind} test {KINDS[most]}: mark it with pytest.mark.{most}", pytrace=False)
        return outcome


def kind_of(item):
    """Return the kind of a test; ``pure`` if it has none."""
    kinds = [mark.name for mark in item.iter_markers() if mark.name in KINDS]
    kinds += [FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURES]
    return max(kinds, key=RANKS.__getitem__, default="pure")


def level_of(item):
    """Return the level of a test."""
    if item.get_closest_marker(NIGHTLY):
        return NIGHTLY
    return "test" if kind_of(item) != "pure" or item.get_closest_marker("gpu") else "check"
