"""Steps at which a window begins that nobody planned, on any machine."""


def make_even(patch, *, ignores_threads=True):
    """Steps count as even and as slow enough, and the schedule looks at them whatever the watcher does meanwhile.

    With other threads of pytest or of earlier tests, which may compute just then, nothing waits.
    """
    from perfhooks.core.schedule import settled
    from perfhooks.record.loop.requested import Requests

    for name, value in {"_EVEN": 1.0, "SHORTEST_S": 0.0, "_WARMUP_S": 1e9}.items():
        patch.setattr(settled, name, value)
    look = Requests._step_times_since

    def wait_and_look(requests, step):
        while (walls := look(requests, step)) is None:
            with requests.loop.timeline.taking:
                pass
        return walls

    patch.setattr(Requests, "_step_times_since", wait_and_look)
    if ignores_threads:
        patch.setattr(Requests, "has_busy_threads", lambda _: False)
