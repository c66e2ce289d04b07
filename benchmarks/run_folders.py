"""A small run folder, and everything that perfhooks makes of one: for those who look for what breaks it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from typing import TYPE_CHECKING, Any

from perfhooks import testing
from perfhooks.analysis import ranks
from perfhooks.analysis.comparison import comparison, sources
from perfhooks.analysis.ranks import merge
from perfhooks.cli.actions import show
from perfhooks.core.errors import PerfhooksError
from perfhooks.report import page
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.run.capture import Capture, Place
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import publish_json

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

SOME = 2
"""So many things are made of a folder, where everything costs 30 times what damaging one does."""
LIKELY = 0.8
"""How often a text takes the place of a text, and a number that of a number, where there are odd ones."""
LAST = 2
"""The rank whose window waits."""
WINDOW = "train-000010-000012"
HANDLERS = ("trace", "steps", "operators", "collectives", "page", "costs")
TIMELINE = "stage,step,phase,wall_ms,data_ms\n" + "".join(f"train,{step},wait,50.0,1.0\n" for step in range(40))
EXPECTED = (PerfhooksError, OSError)
"""What may come of a folder that is damaged; each is a line for whoever asked."""


def template(run: Path) -> Path:
    """Write the folder of two ranks, finished; a third one's window still waits."""
    run.mkdir()
    publish_json(run / "run.json", Manifest(world_size=3, windows=(WINDOW,)))
    for rank in range(3):
        (run / f"rank{rank}.timeline.csv").write_text(TIMELINE)
        place = Place(run / WINDOW, rank)
        handlers = tuple({"type": name} for name in HANDLERS)
        capture = Capture(
            rank=rank, first=10, last=12, reached=12, state="spooled", token=f"t{rank}", handlers=handlers
        )
        place.save(capture)
        testing.write_trace(place.saved(capture), list(events(rank)), distributedInfo={"rank": rank, "world_size": 3})
        if rank < 2:
            for _ in finish_all(run):
                pass
    return run


def events(rank: int) -> list[testing.Event]:
    """Three steps with a collective each, for which rank 1 is late."""
    found = []
    for step in range(3):
        start = 100_000 * step + 1000 * rank
        found += [testing.step_mark(10 + step, start, start + 90_000), testing.op("aten::mm", start + 10, start + 500)]
        found += [testing.launch(step + 1, start + 100, start + 200)]
        message: dict[str, Any] = {"Collective_name": "allreduce", "In_msg_nelems": 64, "dtype": "Float"}
        end = 100_000 * step + 50_000
        found += [testing.kernel(step + 1, start + 300, end, name="ncclDevKernel_AllReduce_Sum", **message)]
    return found


def damaged(source: Path, target: Path, dice: random.Random, damage: Callable[[bytes], bytes]) -> Path:
    """Copy a run folder; some of its files with their bytes, or their values, changed."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    files = sorted(path for path in target.rglob("*") if path.is_file())
    for path in dice.sample(files, dice.choice((1, 1, 2, 4))):
        what = dice.random()
        if what < 0.1:
            path.unlink()
        elif what < 0.15:
            path.unlink()
            path.mkdir()
        elif what < 0.6 and path.suffix == ".json":
            path.write_bytes(json.dumps(mutated(json.loads(path.read_bytes()), dice)).encode("utf-8", "surrogatepass"))
        else:
            path.write_bytes(damage(path.read_bytes()))
    return target


def mutated(value: object, dice: random.Random, odd: Sequence[object] = ()) -> object:
    """A JSON value in which something, somewhere, is something else.

    Args:
        value: Any.
        dice: What decides.
        odd: What it may be beside what `fuzz` finds nasty.
    """
    from fuzz import NASTY

    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or dice.random() < 0.15:
        of_kind = [each for each in odd if type(each) is type(value)] if dice.random() < LIKELY else []
        return dice.choice(of_kind or (*NASTY, *odd))
    key = dice.choice(keys)
    if isinstance(value, dict):
        return {**value, key: mutated(value[key], dice, odd)}
    return [*value[:key], mutated(value[key], dice, odd), *value[key + 1 :]]  # type: ignore[index]


def examine(run: Path, dice: random.Random, some: int = SOME) -> str:
    """Make some of what is made of a run folder, in any order; say how much of it worked."""
    uses: tuple[Callable[[], object], ...] = (
        lambda: list(finish_all(run)),
        lambda: page.write(run),
        lambda: ranks.gather(run),
        lambda: merge.merge(run, run.with_name("merged.json.gz")),
        lambda: show.tables(str(run), dice.sample(show.TABLES, 2)),
        lambda: _shown(run),
        lambda: _compared(run),
    )
    worked = 0
    uses = tuple(dice.sample(uses, min(some, len(uses))))
    for use in uses:
        try:
            use()
            worked += 1
        except EXPECTED as error:
            if "\n" in str(error):
                raise AssertionError(f"an error of several lines: {error}") from error
    return "a whole folder" if worked == len(uses) else "part of a folder" if worked else "no folder"


def _shown(run: Path) -> None:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        show.show(str(run), ("steps",), form="json")


def _compared(run: Path) -> None:
    comparison.compare(*sources.read([[run], [run]]))
