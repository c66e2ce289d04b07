from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfhooks.core.guard import logger
from perfhooks.core.options import describe_ranks, is_selected, may_select_any
from perfhooks.record.loop.limits.other_threads import has_other_threads
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
    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.manifest import StepsBy

_STARTED: Final[Counter[tuple[str, str]]] = Counter()


class Membership:
    """The role of this process in its job: whether the process records and logs, and in which run folder."""

    def __init__(self, options: Options, handover: Handover, requests: Requests, *, writes: bool) -> None:
        self._options = options
        self._handover = handover
        self._requests = requests
        self.writes = writes
        self._job: Job | None = None
        self._out: str | os.PathLike[str] = "perf"
        self._name: str | None = None
        self._number: int | None = None
        self.steps_by: StepsBy | None = None

    def join(
        self, out: str | os.PathLike[str] | None, run: str | None, on_opened: Callable[[Run | None], object]
    ) -> bool:
        """Return whether this rank records. ``on_opened`` can run in another thread."""
        job = self._job = current_job()
        self._out, self._name = self._options["out"] or out or "perf", self._options["run"] or run
        self._count_runs()
        ranks = self._options["ranks"]
        if not is_selected(ranks, job):
            if job.rank == 0 and not may_select_any(ranks, job.world_size):
                logger.warning(
                    "ranks=%r are not in this job (world size %d): nothing is recorded", ranks, job.world_size
                )
            return False
        handover, before = self._handover, self._handover.run
        if self.writes and before is None and self._options["on_error"] != "raise" and has_other_threads():
            handover.open_meanwhile(lambda: self._open_late(job, on_opened))
        elif self.writes:
            handover.open(before or self._open_run(job))
            on_opened(handover.run)
        else:
            on_opened(None)
        handover.is_loud = self._is_speaker(job)
        return True

    def _open_late(self, job: Job, on_opened: Callable[[Run | None], object]) -> None:
        run = self._open_run(job)
        self._handover.open(run, starts_worker=False)  # a child forked later would inherit the worker's pipes
        on_opened(run)

    def update_rank(self, loop: WatchedLoop) -> bool:
        """Update the rank, because the process group may be created after profiling began, with ``mp.spawn``."""
        job, before = current_job(), self._job
        if before is None or (job.rank, job.world_size) == (before.rank, before.world_size):
            return True
        self._job = job
        if self._handover.has_files:
            logger.warning(
                "this process is rank %d of %d now, but was rank %d of %d when profiling began. "
                "Its files keep the old rank. Call start() after init_process_group()",
                job.rank, job.world_size, before.rank, before.world_size,
            )  # fmt: skip  # keeps the values below their placeholders
            return True
        previous, records = self._handover.run, is_selected(self._options["ranks"], job)
        loop.run = self._open_run(job) if records and self.writes else None
        self._handover.move(loop.run)
        if previous is not None:
            previous.discard()
        self._handover.is_loud = self._is_speaker(job)
        return records

    def _is_speaker(self, job: Job) -> bool:
        ranks = self._options["ranks"]
        if callable(ranks):
            run = self._handover.run
            has_other = run is not None and not run.is_new and not job.is_restart
        else:
            has_other = is_selected(ranks, job.first)
        return job.rank == 0 or not has_other

    def _open_run(self, job: Job) -> Run:
        facts = {
            "schedule": self._requests.fields,
            "handlers": self._handover.recipes,
            "options": self._handover.options,
            "ranks": describe_ranks(self._options["ranks"]),
            "keep_windows": self._options["keep_windows"],
            "steps_by": self.steps_by,
        }
        return Run.open(self._out, self._name, job, facts, before=self._number or 0)

    def _count_runs(self) -> None:
        """Count the runs of this process, also on unrecorded ranks: all ranks use the same number."""
        if self._number is None and self.writes and not self._name:
            folder = self._out
            key = (str(folder) if remote.is_url(folder) else str(Path(folder).absolute()), self._options["stage"])
            self._number = _STARTED[key]
            _STARTED[key] += 1
