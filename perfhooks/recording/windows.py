"""The windows of one profiler: how each is made, and what becomes of it; when they are due is decided elsewhere."""

from __future__ import annotations

import logging
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

from perfhooks import words
from perfhooks.guard import guard, logger
from perfhooks.loading.lending import LoaderWorkers
from perfhooks.recording import labelling
from perfhooks.recording.ending import lifetime
from perfhooks.recording.explaining import SecondWindow
from perfhooks.recording.window import LostStacksError, Window, make_room, recorder_busy, spares
from perfhooks.run.capture import EXPLAINS
from perfhooks.schedule import FEWEST_STEPS, MOST_BYTES, Phase, Schedule
from perfhooks.watching.loops import LONG_WAIT_S, OpenWindow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.options import Options
    from perfhooks.recording.handover import Handover
    from perfhooks.recording.membership import Membership
    from perfhooks.recording.requested import RequestedWindow, Requests
    from perfhooks.schedule import Phases

STOPPED: Final = "stopped before its last step"
_USUAL: Final = 16
"""Last steps that say how long one takes."""


class Windows:
    """Makes the windows of one loop, one at a time, and hands over what they recorded.

    Args:
        options: The profiler's.
        requests: The schedule, and what else was asked for.
        recording: What torch's recorder takes, for all of them.
        membership: Knows whether files are wanted.
        handover: Takes what was recorded.
    """

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
        """What torch's recorder takes, for each window to come."""
        self.metadata: dict[str, str] = {}
        """JSON values for every trace to come, by name."""
        self.membership = membership
        self._requests = requests
        self.handover = handover
        self.current: Window | None = None
        """The one that is open."""
        self.last: Window | None = None
        """The last one that was recorded, as long as it can be asked."""
        self.second = SecondWindow(
            requests.loop,
            is_wanted=options["explain"] and requests.is_unplanned and not recording and handover.makes_everything,
        )
        self._waited_for_step_s = 0.0
        """What each step of the last one took of the loop at its end, in seconds."""
        self.workers = LoaderWorkers()
        """Those of the loaders that it reads."""
        self.fit_at: int | None = None
        """The step at which it is asked again how long the open window must be; None where that is settled."""
        self.is_dropping = False
        """Whether windows are left without files, because their steps were none."""
        self.begun = self.skipped = 0
        """How many windows were begun, and how many that were due were not."""

    @property
    def is_explaining(self) -> bool:
        """Whether the one that is open is there for its stacks and shapes alone."""
        return self.current is not None and _explains(self.current)

    def open(self, step: int) -> None:
        """Begin the window that is due at a step, or say why that cannot be."""
        request = self._requests.opening(step)
        why = self._why_not(step)
        if why is not None:
            self.skipped += 1
            logger.warning("%s", why)
            if request is not None:
                self._requests.refuse(request, why)
            return
        self._begin(self._scheduled(step) if request is None else self._requested(request, step))
        self.begun += 1

    def _why_not(self, step: int) -> str | None:
        """Why no window can begin now."""
        make_room()
        if recorder_busy():
            return f"another profiler is recording: the window at step {step} is left to it"
        budget_mb, size = self._options["max_trace_mb"], self._expected_of_step()
        if budget_mb is not None and size > budget_mb * 1e6:
            return (
                f"a step would make a trace of {words.size(size)}, more than max_trace_mb={budget_mb:g}: the window at "
                f"step {step} is left out"
            )
        if self.handover.is_full:
            return f"too many windows wait for their files: the window at step {step} is skipped"
        return None

    def _expected_of_step(self) -> float:
        """About how many bytes of trace a step makes, by what was recorded before this loop; 0 where nothing was."""
        loop, before = self._requests.loop, spares()
        if not before:
            return 0.0
        with loop.timeline.taking:
            _, walls = loop.timeline.walls_since(max(loop.step() - _USUAL, 0))
        # of two steps the shorter, as the other may be an evaluation; a window that becomes too large is ended
        return before[0].density * median_low(walls.tolist()) * 1e-9 if len(walls) else 0.0

    def _scheduled(self, step: int) -> Window:
        """The window of the schedule that begins at a step."""
        budget_mb, size = self._options["max_trace_mb"], self._expected_of_step()
        if self._requests.is_unplanned and size:
            self._requests.record_at_most(max(FEWEST_STEPS, int(MOST_BYTES / size)))
        schedule = self._requests.base
        if budget_mb is not None and isinstance(schedule, Schedule):
            self._requests.shorten(size * schedule.active, budget_mb, is_expected=True)
        phases = self._requests.base
        if self._options["acc_events"] and self.last is not None:
            window = self.last
            window.arm(step, phases)
            window.request = None
        else:
            marks_steps = self.membership.writes or not self._requests.is_until_stop
            window = self._window(step, phases, {}, marks_steps=marks_steps)
        window.shortened = self._requests.shortened
        return window

    def _requested(self, request: RequestedWindow, step: int) -> Window:
        window = self._window(step, request.phases, request.asked.options)
        window.request = request
        window.notes += [request.note] if request.note else []
        return window

    def _window(self, first: int, phases: Phases, more: Mapping[str, bool], *, marks_steps: bool = True) -> Window:
        recording = {**self.recording, **more}
        return Window(
            first=first, phases=phases, on_trace_ready=self._ready, recording=recording, marks_steps=marks_steps
        )

    def _begin(self, window: Window) -> None:
        """Start the recorder last: what is done after that is part of the first step."""
        for key, value in self.metadata.items():
            window.preset_metadata_json(key, value)
        self._announce(window)
        self.handover.warm_up()
        self.handover.enter(window)
        lifetime.watch(window)
        self.workers.open(looks=window.with_stack)
        try:
            window.start()
        except BaseException:
            self._leave(window)
            raise
        self.current = window

    def _announce(self, window: Window) -> None:
        """Have the window watched, and say before it that its loop is going to wait long at its end."""
        planned, budget_mb = window.planned, self._options["max_trace_mb"]
        most_bytes = None if budget_mb is None or window.request is not None else budget_mb * 1e6
        first, last = window.first, None if planned is None else planned.last
        what = f"step {first} and those after it" if last is None else words.steps(first, last)
        self._requests.loop.is_too_large = False
        is_unplanned = self._requests.is_unplanned and window.request is None
        enough_from = first + FEWEST_STEPS if is_unplanned else None
        self.fit_at = enough_from
        self._requests.loop.window = OpenWindow(what, first, last, most_bytes, enough_from, MOST_BYTES)
        waited_s = 0.0 if last is None else self._waited_for_step_s * (last - first + 1)
        if waited_s >= LONG_WAIT_S:
            logger.info("%s: the loop is going to wait about %s at its end", what, words.ms(1e3 * waited_s))

    def fit(self, window: Window, step: int) -> None:
        """Look again at how long a window must be that nobody planned, once its first steps are recorded."""
        announced = self._requests.loop.window
        if self.fit_at is None or step < self.fit_at or window.planned is None or announced is None:
            return
        fitted = self._requests.fit(window.planned)
        self.fit_at = step + 1 if fitted is None else None
        if fitted is not None:
            window.planned = fitted
            name = words.steps(fitted.active, fitted.last)
            self._requests.loop.window = announced._replace(name=name, last=fitted.last)

    def cut(self, window: Window, step: int) -> None:
        """End the window that is open with the step before, as it is as large as it may be."""
        self._requests.loop.is_too_large = False
        planned, announced = window.planned, self._requests.loop.window
        if planned is not None and planned.active < step <= planned.last:
            self._requests.record_at_most(step - planned.active)
            window.shortened = self._requests.shortened
            window.planned = planned._replace(last=step - 1)
            if announced is None or announced.is_enough(step):
                return
            logger.warning(
                "%s have a trace as large as max_trace_mb=%g: the window ends",
                words.steps(planned.active, step - 1), self._options["max_trace_mb"],
            )  # fmt: skip  # the values stand under the words

    def _leave(self, window: Window) -> None:
        lifetime.unwatch(window)
        self._requests.loop.window = self.fit_at = None
        self.handover.enter(None)

    def adopt(self, window: Window) -> None:
        """Hand over a window that was recorded before this loop began, as none of its own was.

        Args:
            window: It has ended.
        """
        self.begun += 1
        self.handover.open(self.handover.run)  # the loop may have ended, and let its worker go
        self._ready(window)

    def label(self) -> None:
        """Have the parts of the step labelled that nobody labels; done at every recorded step."""
        if self._options["labels"] and self.membership.writes:
            labelling.put(self._options["stage"])

    def close(self, reached: int, partial: str | None) -> None:
        """End the window that is open, if one is.

        Args:
            reached: The step during which, or before which, recording ends.
            partial: Why, if not because the window is whole.
        """
        window, self.current = self.current, None
        if window is None:
            return
        labelling.take_back()
        labelling.describe(window)
        window.loader = labelling.loader()
        window.making, window.looked = self.workers.close(labelling.iterators())
        window.unseen_workers = (window.loader and self.workers.has_missed and window.loader.num_workers) or 0
        is_warming_up = self._requests.phase(window.step_num) is Phase.WARMUP
        try:
            window.close(reached, partial)
        except LostStacksError:
            # the windows to come are recorded without them, and say so
            self.recording["with_stack"] = self.handover.recorded["with_stack"] = False
            raise
        finally:
            self._leave(window)
        if partial is not None and not self.is_dropping:
            what = "the window ended early,"
            if is_warming_up:
                what = "a window is left out: it ended during its warm-up,"
            level = logging.INFO if partial == STOPPED and not is_warming_up else logging.WARNING
            if _explains(window):  # nobody waits for it
                level = logging.DEBUG
            logger.log(level, "%s at step %d (%s)", what, reached, partial)

    def _ready(self, window: Window) -> None:
        """Called by torch when a window has been recorded."""
        requests = self._requests
        # a loop that ends with the step before a window leaves one that never saw a step
        is_empty = window.partial == STOPPED and window.reached == window.first != requests.began
        is_dull = self._options["keep"] == "slow" and window.request is None and requests.loop.was_dull(window.first)
        is_aside = (is_empty or _explains(window)) and self.last is not None
        keep = self._options["keep_results"] and not is_aside
        if not is_empty and window.give_way is None:
            for spare in spares():
                spare.release()
                lifetime.unwatch(spare)
        self.handover.keep_time(requests.loop)
        is_kept = not (is_empty or is_dull or self.is_dropping)
        size = self.handover.take(window, write=is_kept, release=None if keep else window.release)
        self._waited_for_step_s = self.handover.waited_s / max(window.reached - window.first, 1)
        if window.request is not None:
            place = None if size is None else self.handover.place_of(window)
            folder = None if place is None else place.folder.name
            requests.recorded(window.request, folder, window.first, window.reached - 1, window.notes)
        elif size is None or window.partial is not None or window.give_way is not None:
            pass  # it says nothing of a window of the schedule
        else:
            if self._options["max_trace_mb"] is not None:
                requests.shorten(size, self._options["max_trace_mb"])
            if self.handover.is_loud:
                self.second.follow(window.reached - window.first, size, self.handover.waited_s)
        if keep:
            if self.last is not None and self.last is not window:
                self.last.release()
            self.last = window

    def abandon(self) -> None:
        """This process is a forked child: everything is its parent's."""
        labelling.take_back()
        if self.current is not None:
            with guard("leaving the window to the parent"):
                self.current.leave_to_parent()
        self.current = self.last = None
        self.workers.give_back()
        self.handover.abandon()


def _explains(window: Window) -> bool:
    return window.request is not None and window.request.asked.by == EXPLAINS
