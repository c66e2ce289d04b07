from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import words
from perfhooks.core.guard import guard, logger
from perfhooks.core.schedule import Phase, is_enough
from perfhooks.record.loop import labelling, stack_support
from perfhooks.record.loop.ending import lifetime, open_ranges
from perfhooks.record.loop.limits import explaining
from perfhooks.record.loop.limits.budget import DEFAULT_MB, WAIT_S_PER_MB, Limits
from perfhooks.record.loop.limits.explaining import SecondWindow
from perfhooks.record.loop.loaders.workers import LoaderWorkers
from perfhooks.record.loop.window import (
    Window,
    end_spare_windows,
    is_spare_recording,
    recorder_busy,
    recorder_owner,
    spare_windows,
)
from perfhooks.run.capture import EXPLAINS
from perfhooks.run.job import current_job
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfhooks.core.options import Options
    from perfhooks.core.schedule import Phases, Planned
    from perfhooks.record.loop.handover import Handover
    from perfhooks.record.loop.membership import Membership
    from perfhooks.record.loop.requested import RequestedWindow, Requests

STOPPED: Final = "stopped before its last step"
LONG_WAIT_S: Final = DEFAULT_MB * WAIT_S_PER_MB
"""Minimum wait for a saved trace, in s, that is logged. With the default budget, every wait is shorter."""


class Windows:
    def __init__(
        self,
        options: Options,
        requests: Requests,
        *,
        recording: Mapping[str, Any],
        membership: Membership,
        handover: Handover,
    ) -> None:
        self._options = options
        self.recording = dict(recording)
        self.metadata: dict[str, str] = {}
        self.membership = membership
        self._requests = requests
        self.handover = handover
        self.current: Window | None = None
        self.last: Window | None = None
        self.second = SecondWindow(
            requests.loop,
            is_wanted=options["explain"] and requests.is_unplanned and not recording and handover.makes_everything,
        )
        self.end_in_step: Callable[[], object] | None = None
        self.workers = LoaderWorkers()
        self._step_starts: list[int] = []
        self._may_shorten = False
        """Whether the budget may shorten windows; false with several ranks, which must record the same steps."""
        self.is_dropping = False
        self._ended_at = -1
        self.start_line = ""
        self.begun = self.skipped = 0

    @property
    def is_explaining(self) -> bool:
        return self.current is not None and _is_explaining(self.current)

    def open(self, step: int) -> None:
        request = self._requests.window_at(step)
        why = self._reason_to_skip(step)
        if why is not None:
            self.skipped += 1
            if words.is_milestone(self.skipped) or request is not None:
                total = f" ({self.skipped} so far)" if self.skipped > 1 else ""
                logger.warning("%s%s", why, total)
            if request is not None:
                self._requests.refuse(request, why)
            return
        self._begin(self._make_scheduled(step) if request is None else self._make_requested(request, step))
        self.begun += 1

    def _reason_to_skip(self, step: int) -> str | None:
        is_same_step = is_spare_recording() or self._ended_at == step
        end_spare_windows()
        if recorder_busy() or is_spare_recording():
            line = recorder_owner()
            owner = f", which {line} started and which is still open; call its stop()" if line else ""
            return f"another profiler is recording{owner}: the window at step {step} is skipped"
        begins_now = self._requests.phase(step) is Phase.ACTIVE
        if open_ranges.is_any_open(is_same_step=is_same_step and begins_now):
            return (
                "a range of an earlier window is still open, and its end would crash torch's recorder: the window at "
                f"step {step} is skipped; close the range before the window"
            )
        if self.handover.is_full:
            return f"too many earlier windows are waiting for the worker process: the window at step {step} is skipped"
        return None

    def _make_scheduled(self, step: int) -> Window:
        phases = self._requests.base
        if self._options["acc_events"] and self.last is not None:
            window = self.last
            window.arm(step, phases)
            window.request = None
        else:
            marks_steps = self.membership.writes or not self._requests.is_until_stop
            window = self._make_window(step, phases, {}, marks_steps=marks_steps)
        return window

    def _make_requested(self, request: RequestedWindow, step: int) -> Window:
        if request.asked.options.get("with_stack") and (danger := stack_support.danger()) is not None:
            logger.warning("with_stack was requested: %s", danger)
        is_explaining = request.asked.by == EXPLAINS
        window = self._make_window(step, request.phases, request.asked.options, is_explaining=is_explaining)
        window.request = request
        window.notes += [request.note] if request.note else []
        return window

    def _make_window(
        self,
        first: int,
        phases: Phases,
        more: Mapping[str, bool],
        *,
        marks_steps: bool = True,
        is_explaining: bool = False,
    ) -> Window:
        has_files = self.membership.writes or not self._requests.is_until_stop
        limits = Limits.of_size(self._options["max_trace_mb"]) if has_files else Limits()
        return Window(
            first=first,
            phases=phases,
            on_trace_ready=self._save,
            recording={**self.recording, **more},
            marks_steps=marks_steps,
            limits=explaining.limits(limits) if is_explaining else limits,
            end_in_step=self.end_in_step,
        )

    def _begin(self, window: Window) -> None:
        for key, value in self.metadata.items():
            window.preset_metadata_json(key, value)
        window.start_line = self.start_line
        self._step_starts = []
        is_unplanned = self._requests.is_unplanned and window.request is None
        self._may_shorten = is_unplanned and current_job().world_size == 1
        self.handover.report_open(window)
        lifetime.watch(window)
        self.workers.prepare()
        try:
            window.start()
        except BaseException:
            self._leave(window)
            raise
        self.current = window

    def is_over(self, window: Window, step: int) -> bool:
        planned = window.planned
        if planned is None:
            return window.budget.is_spent()
        if step == planned.active and _is_explaining(window):
            self._shorten(window, planned, planned.active + self.second.steps_that_fit(window))
        elif planned.active < step <= planned.last and not window.has_room_for_step():
            self._shorten(window, planned, step)
        elif planned.active <= step <= planned.last and self._has_enough(window):
            window.planned = planned._replace(last=step - 1)
            self._requests.shorten(window.planned)
        if step == planned.active + 1:
            self._release_spares()
        return window.planned is not None and step > window.planned.last

    def _has_enough(self, window: Window) -> bool:
        if not self._may_shorten:
            return False
        self._step_starts.append(clock())
        walls = [end - start for start, end in pairwise(self._step_starts)]
        return is_enough(walls, window.budget.operators)

    def _release_spares(self) -> None:
        for spare in spare_windows():
            with lifetime.busy():
                spare.release()
                lifetime.unwatch(spare)

    def _shorten(self, window: Window, planned: Planned, end: int) -> None:
        if end > planned.last:
            return
        window.shortened += planned.last - end + 1
        window.planned = planned._replace(last=end - 1)
        if end == planned.active:
            logger.info(explaining.LEFT_OUT, window.budget.limits.name)
        elif not (self._requests.is_unplanned or _is_explaining(window)):
            steps, limit = words.steps(planned.active, end - 1), window.budget.limits.name
            logger.warning("the window ends after %s: one more step would exceed %s", steps, limit)

    def _leave(self, window: Window) -> None:
        lifetime.unwatch(window)
        self.handover.report_open(None)

    def adopt(self, window: Window) -> None:
        self.begun += 1
        self.handover.open(self.handover.run)
        self._save(window)

    def label(self) -> None:
        if self._options["labels"] and self.membership.writes:
            labelling.start(self._options["stage"], on_read=self.workers.watch)

    def close(self, reached: int, partial: str | None) -> None:
        window, self.current = self.current, None
        if window is None:
            return
        self._ended_at = reached
        labelling.stop()
        labelling.describe(window)
        window.loader = labelling.loader()
        self.workers.end(labelling.iterators())
        is_warming_up = self._requests.phase(window.step_num) is Phase.WARMUP
        self._announce(window)
        try:
            window.close(reached, partial)
        except stack_support.LostStacksError:
            self.recording["with_stack"] = self.handover.options["with_stack"] = False
            raise
        finally:
            self._leave(window)
        if partial is not None and not self.is_dropping:
            event = "the window ended early,"
            if is_warming_up:
                event = "a window is skipped: it ended during its warm-up,"
            is_expected = partial == STOPPED or self._requests.is_unplanned
            level = logging.INFO if is_expected and not is_warming_up else logging.WARNING
            if _is_explaining(window) or self.handover.is_summed_up:
                level = logging.DEBUG
            logger.log(level, "%s at step %d (%s)", event, reached, partial)

    def _announce(self, window: Window) -> None:
        wait_s = window.budget.cost.wait_s
        if wait_s >= LONG_WAIT_S:
            events, wait = words.count(window.budget.events, "event"), words.ms(1e3 * wait_s)
            logger.info("the recorder holds %s; the training waits about %s until the trace is saved", events, wait)

    def _save(self, window: Window) -> None:
        requests = self._requests
        # a loop that ends one step before a window leaves a window without steps
        is_empty = window.partial == STOPPED and window.reached == window.first != requests.began
        has_no_slow_step = (
            self._options["keep"] == "slow" and window.request is None and requests.loop.has_no_slow(window.first)
        )
        is_secondary = (is_empty or _is_explaining(window)) and self.last is not None
        keep = self._options["keep_results"] and not is_secondary
        if not is_empty and window.yield_recorder is None:
            self._release_spares()
        self.handover.write_timeline(requests.loop)
        window.loader_workers = self.workers.results()
        if self.workers.is_wanted and window.loader is not None and not window.loader_workers:
            window.unseen_workers = window.loader.num_workers or 0
        is_kept = not (is_empty or has_no_slow_step or self.is_dropping)
        size = self.handover.save(window, write=is_kept, release=None if keep else window.release)
        if size is not None:
            window.budget.learn(self.handover.waited_s, size)
        if window.request is not None:
            place = None if size is None else self.handover.find_place(window)
            folder = None if place is None else place.folder.name
            requests.answer_recorded(
                window.request, folder, window.first, max(window.first, window.reached - 1), window.notes
            )
        elif labelling.notices_reads():
            self.second.leave_out()
        elif size is not None and window.partial is None and window.yield_recorder is None and self.handover.is_loud:
            is_busy = requests.has_busy_threads()
            self.second.follow(window.reached - window.first, window.budget.operators, has_busy_threads=is_busy)
        if keep:
            if self.last is not None and self.last is not window:
                self.last.release()
            self.last = window

    def abandon(self) -> None:
        labelling.stop()
        if self.current is not None:
            with guard("leaving the window to the parent process after a fork"):
                self.current.leave_to_parent()
        self.current = self.last = None
        self.workers.abandon()
        self.handover.abandon()


def _is_explaining(window: Window) -> bool:
    return window.request is not None and window.request.asked.by == EXPLAINS
