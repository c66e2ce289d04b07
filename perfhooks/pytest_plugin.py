"""For pytest: the fixture `assert_not_slower`, which fails a test whose training became slower than a baseline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from perfhooks import testing
from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.analysis.comparison.comparison import Comparison

    Path_ = str | os.PathLike[str]

_SAID: Final = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("perfhooks").addoption(
        "--perfhooks-save",
        action="store_true",
        help="write the new runs to the baseline of assert_not_slower, without a comparison",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print all verdicts in the summary, because an undecided comparison passes its test."""
    said = config.stash.get(_SAID, [])
    if said:
        terminalreporter.section("perfhooks")
        for each in said:
            terminalreporter.line(each)


@pytest.fixture
def assert_not_slower(request: pytest.FixtureRequest) -> Callable[..., Comparison | None]:
    """Fail the test if a training became slower: ``assert_not_slower("base.json")``.

    ``runs`` is compared with the baseline; by default the runs of this process during the test. ``by`` is the tolerated
    ratio: 0.05 is 5%. ``pytest --perfhooks-save`` writes the baseline instead.
    """
    from perfhooks.run.folder import opened

    before = opened()

    def check(
        base: Path_ | Sequence[Path_], new: Path_ | Sequence[Path_] | None = None, *, by: float = 0.02
    ) -> Comparison | None:
        runs = sorted(opened() - before) if new is None else _paths(new)
        if not runs:
            pytest.fail("assert_not_slower: no run was recorded in this test; pass a run with new=")
        said = request.config.stash.setdefault(_SAID, [])
        if request.config.getoption("--perfhooks-save"):
            said.append(_save(_paths(base), runs))
            return None
        missing = [path for path in _paths(base) if not path.exists()]
        if missing:
            pytest.fail(
                f"assert_not_slower: {missing[0]} does not exist; pytest --perfhooks-save writes it", pytrace=False
            )
        made = testing.assert_not_slower(_paths(base), runs, by=by)
        said.append(f"{request.node.name}: {made.sentence}")
        return made

    return check


def _paths(given: Path_ | Sequence[Path_]) -> list[Path]:
    return [Path(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]


def _save(base: Sequence[Path], runs: Sequence[Path]) -> str:
    from perfhooks.cli.actions import compare

    if len(base) > 1 or base[0].is_dir():
        pytest.fail("assert_not_slower: --perfhooks-save needs base to be one file, not a run")
    compare.save(list(map(str, runs)), None, base[0])
    return f"{base[0]} was written from {words.count(len(runs), 'run')}"
