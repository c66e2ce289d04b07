"""A plugin for pytest that tells coverage which test, or which fixture for many tests, runs now; see mutants.py.

A child process reads the name from its environment when it starts. Each process that runs tests writes down what they
took, which of the wider fixtures they had, which of them failed, and where coverage keeps what they entered.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import coverage
import pytest

NAME = "MUTANTS_CONTEXT"
FOLDER = "MUTANTS_TIMES"

seconds: defaultdict[str, float] = defaultdict(float)
fixtures: dict[str, list[str]] = {}
outcomes: dict[str, set[str]] = {"failed": set(), "skipped": set()}
_began = time.monotonic()


def _switch(name: str) -> None:
    global _began  # noqa: PLW0603 -- one clock for one process
    now = time.monotonic()
    seconds[os.environ.get(NAME, "")] += now - _began
    _began = now
    os.environ[NAME] = name
    if (running := coverage.Coverage.current()) is not None:
        running.switch_context(name)


@contextmanager
def charged_to(name: str):
    before = os.environ.get(NAME, "")
    _switch(name)
    try:
        yield
    finally:
        _switch(before)


def wide(fixture) -> str | None:
    """The name of a fixture that several tests share; what it runs is run for all of them."""
    return None if fixture.scope == "function" else f"{fixture.baseid}::{fixture.argname} for many"


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    with charged_to(item.nodeid):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef):
    if (name := wide(fixturedef)) is None:
        yield
    else:
        with charged_to(name):
            yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    used = getattr(getattr(item, "_request", None), "_fixture_defs", {})
    fixtures[item.nodeid] = sorted({name for fixture in used.values() if (name := wide(fixture))})


def pytest_runtest_logreport(report):
    if not report.passed:
        outcomes[report.outcome].add(report.nodeid)


def pytest_sessionfinish():
    if fixtures:
        found = {"seconds": seconds, "fixtures": fixtures} | {name: sorted(them) for name, them in outcomes.items()}
        running = coverage.Coverage.current()
        found["data"] = running and running.get_data().data_filename()
        Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(json.dumps(found))
