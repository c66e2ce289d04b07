"""The schedule, held against torch.profiler.schedule and against a slow scan of its own phases."""

import dataclasses
import inspect
import itertools
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import profiler

from perfhooks.core.errors import OptionError, ScheduleError
from perfhooks.core.schedule import COLUMNS, CallableSchedule, FromStartToStop, Phase, Phases, Planned, Schedule

SMALL = {
    "wait": st.integers(0, 6),
    "warmup": st.integers(0, 4),
    "active": st.integers(1, 5),
    "repeat": st.integers(0, 4),
    "skip_first": st.integers(0, 9),
    "skip_first_wait": st.sampled_from([0, 1, -1, 7]),
}
LARGE = {
    "wait": st.integers(0, 10**6),
    "warmup": st.integers(0, 10**3),
    "active": st.integers(1, 10**3),
    "repeat": st.integers(0, 10**4),
    "skip_first": st.integers(0, 10**6),
    "skip_first_wait": st.integers(),
}
FIELDS = st.fixed_dictionaries(SMALL)
SCHEDULES = FIELDS.map(lambda fields: Schedule(**fields))
STEPS = 80
"""More than the four cycles of the largest small schedule."""

EXAMPLE = Schedule(wait=1, warmup=2, active=3, repeat=2, skip_first=4)
"""Windows over the steps 5 to 9 and 11 to 15."""


HAS_SKIP_FIRST_WAIT = "skip_first_wait" in inspect.signature(profiler.schedule).parameters
"""Not before torch 2.6."""


def torch_schedule(*, skip_first_wait=0, **fields):
    if HAS_SKIP_FIRST_WAIT:
        fields["skip_first_wait"] = skip_first_wait
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Profiler won't be using warmup")
        theirs = profiler.schedule(**fields)
    if HAS_SKIP_FIRST_WAIT or not skip_first_wait:
        return theirs
    # what later releases do
    return lambda step: theirs(step if step < fields.get("skip_first", 0) else step + fields["wait"])


def action_name(schedule, step):
    """Our answer in the words of torch."""
    names = {Phase.WAIT: "NONE", Phase.WARMUP: "WARMUP", Phase.ACTIVE: "RECORD"}
    return "RECORD_AND_SAVE" if schedule.ends(step) else names[schedule.phase(step)]


def scanned_windows(schedule, steps):
    """Windows found by asking for each step in turn; one that is not complete after ``steps`` steps is left out."""
    found, first, active = [], None, None
    for step in range(steps):
        phase = schedule.phase(step)
        if phase is not Phase.WAIT and first is None:
            first = step
        if phase is Phase.ACTIVE and active is None:
            active = step
        if schedule.ends(step):
            found.append(Planned(first, active, step))
            first = active = None
    return found


# --- the same answers as torch ---


@pytest.mark.slow
@settings(max_examples=3000)
@given(FIELDS)
def test_phases_of_steps_equal_those_of_torch(fields):
    ours, theirs = Schedule(**fields), torch_schedule(**fields)
    assert [action_name(ours, step) for step in range(STEPS)] == [theirs(step).name for step in range(STEPS)]


@pytest.mark.slow
@settings(max_examples=3000)
@given(st.fixed_dictionaries(LARGE), st.data())
def test_phases_of_large_schedules_equal_those_of_torch(fields, data):
    ours, theirs = Schedule(**fields), torch_schedule(**fields)
    window = ours.next_window(data.draw(st.integers(0, 10**9))) or ours.next_window(0)
    for edge in (0, fields["skip_first"], *window, (ours.total_steps or window.last) + 1):
        for step in range(max(0, edge - 2), edge + 3):
            assert action_name(ours, step) == theirs(step).name, step


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.fixed_dictionaries({name: st.integers(-2, 2) for name in SMALL}))
def test_the_same_sets_of_integers_are_accepted_as_by_torch(fields):
    def accepts(make):
        try:
            make(**fields)
        except (AssertionError, ScheduleError):
            return False
        return True

    assert accepts(Schedule) == accepts(torch_schedule)


# --- what torch's cannot say, against a slow scan ---


@pytest.mark.slow
@settings(max_examples=1000)
@given(SCHEDULES)
def test_windows_equal_those_of_a_scan(schedule):
    found = scanned_windows(schedule, STEPS)
    assert list(itertools.islice(schedule.windows(), len(found))) == found


@pytest.mark.slow
@settings(max_examples=1000)
@given(SCHEDULES, st.integers(0, STEPS))
def test_the_next_window_is_the_first_that_begins_no_earlier(schedule, step):
    found = [window for window in scanned_windows(schedule, 2 * STEPS) if window.first >= step]
    assert schedule.next_window(step) == (found[0] if found else None)
    assert next(schedule.windows(step), None) == schedule.next_window(step)


@pytest.mark.slow
@settings(max_examples=1000)
@given(SCHEDULES, st.integers(0, STEPS))
def test_next_change_is_the_first_step_of_a_phase_or_window(schedule, step):
    changes = (
        later
        for later in range(step + 1, 2 * STEPS)
        if schedule.phase(later) is not schedule.phase(later - 1) or schedule.ends(later - 1)
    )
    assert schedule.next_change(step) == next(changes, None)


@pytest.mark.slow
@settings(max_examples=1000)
@given(SCHEDULES)
def test_a_window_opens_at_its_first_step_only(schedule):
    opened = {step for step in range(STEPS) if schedule.opens(step)}
    assert opened == {window.first for window in itertools.takewhile(lambda w: w.first < STEPS, schedule.windows())}


@pytest.mark.slow
@settings(max_examples=1000)
@given(SCHEDULES)
def test_last_profiled_step_precedes_total_steps(schedule):
    total = schedule.total_steps
    if total is None:
        assert schedule.repeat == 0
    else:
        assert schedule.ends(total - 1)
        assert all(schedule.phase(step) is Phase.WAIT for step in range(total, total + STEPS))


def test_windows_of_an_endless_schedule_are_lazy():
    schedule = Schedule(wait=7, warmup=1, active=2)
    far = 10**15
    assert next(schedule.windows(far)) == schedule.next_window(far) == Planned(far + 7, far + 8, far + 9)


def test_resumption_inside_a_window_selects_the_next_window():
    assert [EXAMPLE.next_window(step) for step in (5, 6, 9, 11, 12)] == [
        Planned(5, 7, 9),
        Planned(11, 13, 15),
        Planned(11, 13, 15),
        Planned(11, 13, 15),
        None,
    ]


@pytest.mark.parametrize("question", ["phase", "opens", "ends", "next_change", "next_window"])
def test_negative_step_is_rejected(question):
    for schedule in (EXAMPLE, CallableSchedule(torch_schedule(wait=1, warmup=1, active=1))):
        with pytest.raises(ScheduleError, match="step must be an integer >= 0, got -1"):
            getattr(schedule, question)(-1)


# --- values ---


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("wait", -1, "wait must be an integer >= 0, got -1"),
        ("warmup", -1, "warmup must be an integer >= 0, got -1"),
        ("active", 0, "active must be an integer >= 1, got 0"),
        ("repeat", -2, "repeat must be an integer >= 0, got -2"),
        ("skip_first", -3, "skip_first must be an integer >= 0, got -3"),
        ("wait", 1.0, "wait must be an integer >= 0, got 1.0"),
        ("active", "3", "active must be an integer >= 1, got '3'"),
        ("warmup", None, "warmup must be an integer >= 0, got None"),
        ("repeat", True, "repeat must be an integer >= 0, got True"),
        ("skip_first_wait", 0.5, "skip_first_wait must be an integer, got 0.5"),
    ],
)
def test_an_error_names_field_rule_and_value(field, value, rule):
    with pytest.raises(ScheduleError) as caught:
        Schedule(**{"wait": 1, "warmup": 1, "active": 1, field: value})
    assert str(caught.value) == rule


def test_a_schedule_error_is_an_option_error_and_a_value_error():
    with pytest.raises(OptionError):
        Schedule(wait=0, warmup=0, active=0)
    with pytest.raises(ValueError, match="active"):
        Schedule(wait=0, warmup=0, active=0)


def test_numpy_integers_become_plain_integers():
    schedule = Schedule(wait=np.int64(1), warmup=np.uint8(2), active=np.int32(3))
    assert schedule == Schedule(wait=1, warmup=2, active=3)
    assert all(type(value) is int for value in schedule.to_dict().values())


@pytest.mark.parametrize("yes", [1, True, -1, 12])
def test_any_skip_first_wait_but_zero_is_the_same_schedule(yes):
    schedule = Schedule(wait=5, warmup=1, active=1, skip_first_wait=yes)
    assert schedule == Schedule(wait=5, warmup=1, active=1, skip_first_wait=1)
    assert schedule.next_window(0) == Planned(0, 1, 1)


def test_equal_schedules_are_equal_keys_and_immutable():
    assert len({EXAMPLE, dataclasses.replace(EXAMPLE), dataclasses.replace(EXAMPLE, wait=9)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        EXAMPLE.wait = 2


def test_fields_are_keyword_only():
    with pytest.raises(TypeError):
        Schedule(1, 1, 3)


@pytest.mark.slow
@given(SCHEDULES)
def test_repr_dict_and_drawing_can_be_parsed(schedule):
    assert eval(repr(schedule)) == schedule
    assert Schedule.of(schedule.to_dict()) == schedule
    assert Schedule.parse(str(schedule).splitlines()[0]) == schedule


# --- other forms ---


@pytest.mark.parametrize(
    "text",
    [
        "wait=1 warmup=2 active=3 repeat=2 skip_first=4",
        "wait=1,warmup=2,active=3,repeat=2,skip_first=4",
        "  skip_first=4, wait = 1,\nwarmup=2 active=3   repeat=2 ",
        "wait=1warmup=2active=3repeat=2skip_first=4",
    ],
)
def test_separators_and_order_of_fields_are_free(text):
    assert Schedule.parse(text) == EXAMPLE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wiat=1 warmup=1 active=1", "a schedule has no field 'wiat'; did you mean wait?"),
        ("wait=1 warm-up=1 active=1", "a schedule has no field 'warm-up'; did you mean warmup?"),
        ("=3", "a schedule has no field ''; the fields are wait, warmup, active, repeat, skip_first, skip_first_wait"),
        ("wait=1 warmup active=1", "warmup needs a value, for example warmup=1"),
        ("wait=1 wait=2 warmup=1 active=1", "wait must be given once, got it again as 'wait=2'"),
        ("wait=1.5 warmup=1 active=1", "wait must be an integer, got '1.5'"),
        ("wait= warmup=1 active=1", "wait must be an integer, got 'warmup=1'"),
        ("wait=1 active=1", "a schedule needs wait, warmup and active; missing: warmup"),
        ("", "a schedule needs wait, warmup and active; missing: wait, warmup, active"),
        ("wait=1 warmup=1 active=0", "active must be an integer >= 1, got 0"),
    ],
)
def test_a_bad_word_is_named(text, said):
    with pytest.raises(ScheduleError) as caught:
        Schedule.parse(text)
    assert str(caught.value).endswith(said)


def test_mapping_string_schedule_and_none_are_accepted():
    assert Schedule.of(None) is None
    assert Schedule.of(EXAMPLE) is EXAMPLE
    assert Schedule.of(types.MappingProxyType(EXAMPLE.to_dict())) == EXAMPLE
    assert Schedule.of("wait=1 warmup=2 active=3 repeat=2 skip_first=4") == EXAMPLE
    opaque = CallableSchedule(lambda _: None)
    assert Schedule.of(opaque) is opaque


@pytest.mark.parametrize("value", [3, 1.5, b"wait=1", ["wait=1"], object, Schedule, False])
def test_other_values_are_rejected_with_the_value(value):
    with pytest.raises(ScheduleError, match="schedule must be None, a Schedule, a mapping") as caught:
        Schedule.of(value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("mapping", [{"wiat": 1}, {"wait": 1, "warmup": 1, "active": 1, 7: 1}, {"wait": 1}, {}])
def test_mapping_with_unknown_or_missing_fields_is_rejected(mapping):
    with pytest.raises(ScheduleError, match=r"has no field|missing"):
        Schedule.of(mapping)


# --- callables ---


@given(FIELDS)
def test_schedule_made_by_torch_is_converted(fields):
    if not HAS_SKIP_FIRST_WAIT:
        fields["skip_first_wait"] = 0
    assert Schedule.of(torch_schedule(**fields)) == Schedule(**fields)


def test_a_schedule_of_torch_before_2_6_has_five_arguments():
    wait, warmup, active, repeat, skip_first = 1, 2, 3, 2, 4

    def schedule_fn(step):
        return (wait, warmup, active, repeat, skip_first)[step]

    schedule_fn.__module__ = "torch.profiler.profiler"
    assert Schedule.of(schedule_fn) == EXAMPLE


def test_torch_schedule_of_other_values_stays_a_callable():
    opaque = Schedule.of(torch_schedule(wait=1.5, warmup=1, active=1))
    assert isinstance(opaque, CallableSchedule)


def test_foreign_closure_with_the_same_names_stays_a_callable():
    wait, warmup, active, repeat, skip_first, skip_first_wait = range(1, 7)

    def mine(step):
        return (wait, warmup, active, repeat, skip_first, skip_first_wait)[step]

    assert isinstance(Schedule.of(mine), CallableSchedule)


@pytest.mark.slow
@given(FIELDS)
def test_callable_equals_its_hidden_schedule(fields):
    known: Phases = Schedule(**fields)
    opaque: Phases = CallableSchedule(torch_schedule(**fields))
    for step in range(STEPS):
        assert opaque.phase(step) is known.phase(step)
        assert opaque.ends(step) == known.ends(step)
        assert opaque.opens(step) == known.opens(step)


def test_callable_is_called_once_per_step_in_order():
    asked = []

    def recording(step):
        asked.append(step)
        return torch_schedule(wait=1, warmup=1, active=2)(step)

    schedule = CallableSchedule(recording)
    for step in range(12):
        schedule.opens(step)
        schedule.phase(step)
        schedule.ends(step)
        schedule.ends(max(0, step - 1))
    assert asked == list(range(12))


def test_callable_starting_inside_a_window_opens_none():
    schedule = CallableSchedule(torch_schedule(wait=2, warmup=1, active=2))
    assert not schedule.opens(3)
    assert schedule.phase(3) is Phase.ACTIVE
    assert [step for step in range(4, 10) if schedule.opens(step)] == [7]


def test_callable_has_no_known_future():
    schedule = CallableSchedule(torch_schedule(wait=2, warmup=1, active=2))
    assert schedule.next_change(5) == 6
    assert schedule.next_window(0) is None


@pytest.mark.parametrize("answer", [None, 2, "RECORD", types.SimpleNamespace(name="DEVICE_STOPPED")])
def test_callable_with_an_invalid_result_is_named(answer):
    with pytest.raises(ScheduleError, match=r"NONE, WARMUP, RECORD, RECORD_AND_SAVE; .* for step 4") as caught:
        CallableSchedule(lambda _: answer).phase(4)
    assert repr(answer) in str(caught.value)


# --- no schedule ---


def test_default_schedule_is_one_window_until_stop():
    always: Phases = FromStartToStop(begin=3)
    assert [step for step in range(9) if always.opens(step)] == [3]
    assert [step for step in range(9) if always.phase(step) is Phase.ACTIVE] == list(range(3, 9))
    assert not any(always.ends(step) for step in range(9))
    assert [always.next_change(step) for step in (0, 2, 3, 8)] == [3, 3, None, None]
    assert always.next_window(0) is None


# --- drawings ---


def test_a_drawing_shows_fields_step_numbers_phases_and_the_end():
    assert str(EXAMPLE).splitlines() == [
        "wait=1 warmup=2 active=3 repeat=2 skip_first=4",
        "step 0     5  7   10 11 13",
        "     ····· ▒▒ ███ ·  ▒▒ ███",
        "· wait  ▒ warm-up  █ active  nothing after step 15",
    ]


def test_a_long_wait_is_drawn_short_with_its_length():
    assert str(Schedule(wait=1000, warmup=2, active=3)).splitlines()[1:] == [
        "step 0          1000 1002 1005       2005 2007 2010       3010 3012",
        "     ···1000··· ▒▒   ███  ···1000··· ▒▒   ███  ···1000··· ▒▒   ███",
        "· wait  ▒ warm-up  █ active  and so on, without end",
    ]


def test_windows_that_are_not_drawn_are_counted():
    legend = str(Schedule(wait=1000, warmup=2, active=3, repeat=7)).splitlines()[-1]
    assert legend == "· wait  ▒ warm-up  █ active  and 4 more, nothing after step 7034"


@pytest.mark.slow
@given(st.fixed_dictionaries({**LARGE, "skip_first_wait": st.integers(0, 1)}))
def test_a_drawing_fits_the_terminal(fields):
    ruler, signs, legend = str(Schedule(**fields)).splitlines()[1:]
    assert max(map(len, (ruler, signs, legend))) <= COLUMNS


def test_notebook_form_is_the_escaped_drawing():
    page = EXAMPLE._repr_html_()
    assert page.startswith("<pre")
    assert str(EXAMPLE) in page
    assert "http" not in page


@pytest.mark.process
def test_schedules_need_no_torch():
    schedule = "perfhooks.core.schedule.Schedule.of('wait=1 warmup=1 active=1')"
    code = f"import sys, perfhooks.core.schedule; {schedule}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "False\n"
