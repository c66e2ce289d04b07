"""What options of other profilers are called here: what an unknown option is answered with, and a page of the site."""

from __future__ import annotations

from typing import Final

_CALLBACK: Final = "on_trace_ready=[lambda window: print(window.key_averages({given}).table({table}))]"

SUCCESSORS: Final = {
    "Lightning's PyTorchProfiler": {
        "dirpath": "out=, the folder that holds runs",
        "filename": "run=, the name of the run; each window has a folder of its own in it",
        "export_to_chrome": 'on_trace_ready=["trace"]; without on_trace_ready every window has its trace',
        "export_to_flame_graph": 'with_stack=True: every window has "stacks" and "flame" then',
        "group_by_input_shapes": "record_shapes=True, and "
        + _CALLBACK.format(given="group_by_input_shape=True", table="")
        + " for torch's own table",
        "row_limit": 'on_trace_ready=[{"type": "operators", "row_limit": 50}]',
        "sort_by_key": 'on_trace_ready=[{"type": "operators", "sort_by": "self_cpu_time_total"}]',
        "table_kwargs": _CALLBACK.format(given="", table="max_name_column_width=60"),
        "record_module_names": "module_names=True of perfhooks_lightning.ProfilerCallback",
        "emit_nvtx": "nothing here: put torch.autograd.profiler.emit_nvtx() around the training",
    },
    "torch.autograd.profiler.profile": {
        "enabled": "ranks=[0] or another choice, and enabled=False of perfhooks.Profiler",
        "use_cpu": 'activities=["cpu"]',
        "use_device": 'activities=["cpu", "cuda"]',
        "use_kineto": "nothing: torch has no other recorder any more",
    },
    "composer's Profiler": {
        "trace_handlers": "on_trace_ready=, handlers by name",
        "torch_prof_folder": "out=, the folder that holds runs",
        "torch_prof_filename": "run=, the name of the run; files in it are called by window and rank",
        "torch_prof_memory_filename": "profile_memory=True",
        "torch_prof_overwrite": "run=, another name for each run: nothing is ever overwritten",
        "torch_prof_use_gzip": 'on_trace_ready=["trace"]; traces are always packed',
        "torch_prof_record_shapes": "record_shapes=",
        "torch_prof_profile_memory": "profile_memory=",
        "torch_prof_with_stack": "with_stack=",
        "torch_prof_with_flops": "with_flops=",
        "torch_prof_num_traces_to_keep": "keep_windows=, how many windows of a stage a rank keeps",
    },
    "accelerate's ProfileKwargs": {
        "schedule_option": "schedule=, a mapping or a string",
        "output_trace_dir": "out=, the folder that holds runs",
    },
    "torchtnt's PyTorchProfiler": {
        "profiler": "all that the torch.profiler.profile was given, given to perfhooks.Profiler itself",
    },
}
"""By whose option it is, and its name."""


def successor(name: str) -> str | None:
    """What to take instead of an option of another profiler, as a sentence; None where none is known."""
    for whose, options in SUCCESSORS.items():
        if name in options:
            return f"it is one of {whose}; here it is {options[name]}"
    return None
