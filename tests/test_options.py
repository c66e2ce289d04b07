"""The options: defined once, shown by help, signatures and type hints of every face."""

from __future__ import annotations

import inspect
import pydoc
import typing

import pytest
import torch

import perfhooks
from perfhooks import Options, Profiler
from perfhooks.core.options import DEFAULTS, RECORDING, RecordingOptions, all_options, check_options, with_options


def test_every_option_has_a_type_a_default_and_a_meaning():
    hints = typing.get_type_hints(Options)
    assert [option.name for option in all_options()] == list(hints) == list(DEFAULTS)
    for option in all_options():
        assert option.meaning.endswith("."), option.name
        assert DEFAULTS[option.name] == option.default


OWN = {"schedule", "on_trace_ready", "enabled", "use_cpu", "use_device", "use_kineto"}


def test_the_signature_shows_every_option_with_its_default():
    parameters = inspect.signature(Profiler).parameters
    shown = {name: each.default for name, each in parameters.items() if name not in OWN}
    assert shown == dict(DEFAULTS)
    assert {each.kind for each in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["with_stack"].annotation is bool


def test_help_explains_all_options():
    text = pydoc.plain(pydoc.render_doc(Profiler))
    for option in all_options():
        assert f"{option.name}: {option.meaning} Default: {option.default!r}." in text


def test_signature_shows_options_and_own_defaults():
    @with_options(without=("stage",), keep_results=False)
    class Face:
        """One.

        Args:
            own: Its own.
            **options: All.
        """

        def __init__(self, own=1, **options):
            pass

    parameters = inspect.signature(Face).parameters
    assert list(parameters) == ["own", *(name for name in DEFAULTS if name != "stage")]
    assert parameters["keep_results"].default is False
    assert "**options" not in Face.__doc__


@pytest.mark.recorder
def test_the_experimental_options_of_torch_reach_the_trace(tmp_path):
    """Verbose stacks can be had in no other way."""
    config = torch._C._profiler._ExperimentalConfig(verbose=True)
    with Profiler(activities=["cpu"], with_stack=True, experimental_config=config) as prof:
        torch.ones(3) + 1
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    assert "Call stack" in (tmp_path / "t.json").read_text()


def test_invalid_experimental_config_is_rejected():
    with pytest.raises(perfhooks.OptionError, match="must be torch's _ExperimentalConfig, got 'verbose'"):
        Profiler(experimental_config="verbose")


@pytest.mark.skipif(
    "post_processing_timeout_s" not in inspect.signature(torch.profiler.profile).parameters,
    reason="this torch knows no such option",
)
@pytest.mark.parametrize("wrong", [-1.0, "soon"])
def test_negative_timeout_is_rejected(wrong):
    with pytest.raises(perfhooks.OptionError, match="post_processing_timeout_s must be non-negative, in seconds, got"):
        Profiler(post_processing_timeout_s=wrong)


CPU = torch.profiler.ProfilerActivity.CPU


@pytest.mark.parametrize("wanted", [[CPU, CPU], [3]])
def test_activities_that_torch_rejects_raise_at_construction(wanted):
    with pytest.raises(perfhooks.OptionError, match="activities"):
        Profiler(activities=wanted)


@pytest.mark.recorder
@pytest.mark.skipif(not hasattr(torch.profiler.profiler, "_parse_activities"), reason="torch 2.12 brought them")
@pytest.mark.parametrize("wanted", [{"cpu": ["USER_ANNOTATION"]}, [{CPU: ["USER_ANNOTATION"]}]])
def test_activities_can_have_settings(wanted):
    with Profiler(activities=wanted) as prof:
        torch.ones(3) + 1
    # torch 2.15 keeps more than these filters
    kept = (
        prof.activity_configs[CPU].activity_types if hasattr(prof, "activity_configs") else prof.activity_filters[CPU]
    )
    assert list(kept) == ["USER_ANNOTATION"]


KNOWN = inspect.signature(torch.profiler.profile).parameters
VALUES = {
    **dict.fromkeys(RECORDING, True),
    "post_processing_timeout_s": 5.0,
    "custom_trace_id_callback": lambda: "mine",
}


@pytest.mark.recorder
@pytest.mark.parametrize("name", [name for name in VALUES if name in KNOWN])
def test_options_of_torch_reach_the_recorder_of_all_windows(name):
    seen = []
    with Profiler(on_trace_ready=lambda window: seen.append(getattr(window, name)), **{name: VALUES[name]}):
        torch.ones(3) + 1
    assert seen == [VALUES[name]]


def test_activities_are_selected_by_name_and_default_to_all():
    assert Profiler(activities=["CPU", "cuda"]).activities == {CPU, torch.profiler.ProfilerActivity.CUDA}
    assert Profiler(activities="cuda").activities == {torch.profiler.ProfilerActivity.CUDA}
    assert Profiler().activities == torch.profiler.supported_activities()


@pytest.mark.recorder
def test_options_unknown_to_this_torch_are_omitted_with_a_line(caplog):
    unknown = [name for name in RecordingOptions.__annotations__ if name not in KNOWN]
    assert unknown, "no torch knows them all: use_cuda went before the last ones came"
    with Profiler(**{name: VALUES.get(name, True) for name in unknown}) as prof:
        torch.ones(3) + 1
    assert len(caplog.messages) == 1
    assert all(f"{name}=" in caplog.messages[0] for name in unknown)
    assert caplog.messages[0].endswith(": ignored")
    assert prof.key_averages()


@pytest.mark.parametrize("name", ["exit_timeout", "poll", "max_trace_mb"])
def test_nan_is_no_number_of_seconds_or_megabytes(name):
    """A comparison with NaN is false, whichever way it asks."""
    with pytest.raises(perfhooks.OptionError, match=f"{name} must be a number >=? 0, got nan"):
        Profiler(**{name: float("nan")})


@pytest.mark.parametrize(
    ("name", "least", "below"),
    [("exit_timeout", 0, -0.1), ("post_processing_timeout_s", 0, -0.1), ("keep_windows", 1, 0)]
    + [(name, 1e-9, 0) for name in ("poll", "max_trace_mb")],
)
def test_minimum_of_an_option_is_accepted_and_less_is_rejected(name, least, below):
    check_options({name: least})
    with pytest.raises(perfhooks.OptionError, match=f"{name} must be"):
        check_options({name: below})


@pytest.mark.parametrize("out", ["", 3, b"runs"])
def test_folder_that_is_no_path_is_rejected(out):
    with pytest.raises(perfhooks.OptionError, match="out must be a path"):
        perfhooks.Profiler(out=out)
