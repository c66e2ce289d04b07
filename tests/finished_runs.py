"""Run folders with windows that are finished, as a training and its worker leave them."""

from perfhooks.report.finishing.finish import finish
from perfhooks.run import layout
from perfhooks.run.capture import Capture, Place
from perfhooks.run.publishing import publish_json
from perfhooks.testing import op, step_mark, write_trace


def windows_of(run, *ended):
    """Finished windows of a run, by the name, rank and time of the end of each; an option tells them apart."""
    run.mkdir()
    publish_json(run / "run.json", {"format": 1, "world_size": 2})
    for name, rank, moment in ended:
        stage, first, last = layout.steps_of(name)
        facts = {"first": first, "last": last, "reached": last + 1, "options": {"window": name}}
        kinds = tuple({"type": kind} for kind in ("trace", "steps", "page"))
        made = Place(run / name, rank)
        made.save(Capture(rank=rank, stage=stage, time=moment, state="spooled", token="a1", handlers=kinds, **facts))
        marks = [step_mark(step, step * 10, step * 10 + 9) for step in range(first, last + 1)]
        write_trace(made.saved_trace("a1"), [*marks, op("mm", first * 10, first * 10 + 5)])
        finish(made)
