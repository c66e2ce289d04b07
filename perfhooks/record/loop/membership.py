"""Who this process is among the ranks of its job: whether it records, which run it writes into, whether it speaks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfhooks.core.guard import logger
from perfhooks.core.options import are_any, said, selected
from perfhooks.record.loop.limits.run_opening import has_other_threads
from perfhooks.run import remote
from perfhooks.run.folder import Run
from perfhooks.run.job import current_job

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from perfhooks.core.job import Job
    from perfhooks.core.options import Options
    from perfhooks.record.loop.handover import Handover
    from perfhooks.record.loop.requested import Requests
    from perfhooks.run.manifest import StepsBy

_STARTED: Final[Counter[tuple[str, str]]] = Counter()
"""How many runs without a name were begun in this process, by the folder for runs and the stage."""


class Membership:
    """The part of one profiler in its job.

    Args:
        options: The profiler's; ``ranks``, ``out``, ``run``, ``stage`` and ``keep_windows`` are read.
        handover: Told where the files go, and whether this rank speaks.
        requests: Know the schedule.
        writes: Whether files are wanted at all.
    """

    def __init__(self, options: Options, handover: Handover, requests: Requests, *, writes: bool) -> None:
        self._options = options
        self._handover = handover
        self._requests = requests
        self.writes = writes
        """Whether files are wanted at all."""
        self._job: Job | None = None
        self._out: str | os.PathLike[str] = "perf"
        """The folder that holds runs."""
        self._name: str | None = None
        """That of the run, if somebody gave it one."""
        self._number: int | None = None
        self.steps_by: StepsBy | None = None
        """What ends a step, if the training does not say it."""

    def join(self, out: str | os.PathLike[str] | None, run: str | None, opened: Callable[[Run | None], object]) -> bool:
        """Find out which rank this is, and open the run folder if it is to record.

        Args:
            out: The folder that holds runs, if the option was not given.
            run: Name of the run, if the option was not given.
            opened: Gets the run, in another thread if the run is opened there; None if no files are wanted.

        Returns:
            Whether this rank records.
        """
        job = self._job = current_job()
        self._out, self._name = self._options["out"] or out or "perf", self._options["run"] or run
        self._count_runs()
        ranks = self._options["ranks"]
        if not selected(ranks, job):
            if job.rank == 0 and not are_any(ranks, job.world_size):
                logger.warning(
                    "ranks=%r are not in this job (world size %d): nothing is recorded", ranks, job.world_size
                )
            return False
        handover, before = self._handover, self._handover.run
        if self.writes and before is None and self._options["on_error"] != "raise" and has_other_threads():
            handover.open_meanwhile(lambda: self._open_late(job, opened))
        elif self.writes:
            handover.open(before or self._open_run(job))
            opened(handover.run)
        else:
            opened(None)
        handover.is_loud = self._speaks(job)
        return True

    def _open_late(self, job: Job, opened: Callable[[Run | None], object]) -> None:
        run = self._open_run(job)
        self._handover.open(run, starts_worker=False)  # a process that is forked meanwhile would hold its pipes
        opened(run)

    def meet(self) -> bool:
        """Join the other ranks where they came to know each other after the start, as those of ``mp.spawn`` may.

        Returns:
            Whether this rank still records.
        """
        job, before = current_job(), self._job
        if before is None or (job.rank, job.world_size) == (before.rank, before.world_size):
            return True
        self._job = job
        if self._handover.has_files:
            logger.warning(
                "this process is rank %d of %d now, and was %d of %d when profiling began: its files stay there; "
                "call start() after init_process_group()", job.rank, job.world_size, before.rank, before.world_size,
            )  # fmt: skip  # the values stand under the words
            return True
        old, records = self._handover.run, selected(self._options["ranks"], job)
        self._handover.move(self._open_run(job) if records and self.writes else None)
        if old is not None:
            old.discard()
        self._handover.is_loud = self._speaks(job)
        return records

    def _speaks(self, job: Job) -> bool:
        """Whether it is this rank that speaks; what somebody's callable says of others is not for us to ask."""
        ranks, run = self._options["ranks"], self._handover.run
        if callable(ranks):
            others = run is not None and not run.is_new and not job.is_restart
        else:
            others = selected(ranks, job.first)
        return job.rank == 0 or not others

    def _open_run(self, job: Job) -> Run:
        facts = {
            "schedule": self._requests.fields,
            "handlers": self._handover.recipes,
            "options": self._handover.recorded,
            "ranks": said(self._options["ranks"]),
            "keep_windows": self._options["keep_windows"],
            "steps_by": self.steps_by,
        }
        return Run.open(self._out, self._name, job, facts, before=self._number or 0)

    def _count_runs(self) -> None:
        """Number the runs that have no name: every rank does, whether it records or not, so all come to the same."""
        if self._number is None and self.writes and not self._name:
            folder = self._out
            key = (str(folder) if remote.is_url(folder) else str(Path(folder).absolute()), self._options["stage"])
            self._number = _STARTED[key]
            _STARTED[key] += 1
