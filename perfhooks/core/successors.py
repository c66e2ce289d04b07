from __future__ import annotations

from typing import Final

_CALLBACK: Final = "on_trace_ready=[lambda window: print(window.key_averages({given}).table({table}))]"

SUCCESSORS: Final = {
    "Lightning's PyTorchProfiler": {
        "dirpath": "out=, the folder of all runs",
        "filename": "run=, the name of the run; it contains one folder per window",
        "export_to_chrome": 'on_trace_ready=["trace"]; the default also saves the trace of every window',
        "export_to_flame_graph": 'with_stack=True, which adds "stacks" and "flame" to every window',
        "group_by_input_shapes": "record_shapes=True, and "
        + _CALLBACK.format(given="group_by_input_shape=True", table="")
        + " for torch's own table",
        "row_limit": 'on_trace_ready=[{"type": "operators", "row_limit": 50}]',
        "sort_by_key": 'on_trace_ready=[{"type": "operators", "sort_by": "self_cpu_time_total"}]',
        "table_kwargs": _CALLBACK.format(given="", table="max_name_column_width=60"),
        "record_module_names": "module_names=True of perfhooks_lightning.ProfilerCallback",
        "emit_nvtx": "no option: run the training inside torch.autograd.profiler.emit_nvtx()",
    },
    "torch.autograd.profiler.profile": {
        "enabled": "ranks=[0] or other ranks, and enabled=False of perfhooks.Profiler",
        "use_cpu": 'activities=["cpu"]',
        "use_device": 'activities=["cpu", "cuda"]',
        "use_kineto": "no option: current torch has no other recorder",
    },
    "composer's Profiler": {
        "trace_handlers": "on_trace_ready=, handlers by name",
        "torch_prof_folder": "out=, the folder of all runs",
        "torch_prof_filename": "run=, the name of the run; its files are named by window and rank",
        "torch_prof_memory_filename": "profile_memory=True",
        "torch_prof_overwrite": "run=, a new name for each run: files are never overwritten",
        "torch_prof_use_gzip": 'on_trace_ready=["trace"]; traces are always compressed',
        "torch_prof_record_shapes": "record_shapes=",
        "torch_prof_profile_memory": "profile_memory=",
        "torch_prof_with_stack": "with_stack=",
        "torch_prof_with_flops": "with_flops=",
        "torch_prof_num_traces_to_keep": "keep_windows=, the number of windows that each rank keeps per stage",
    },
    "accelerate's ProfileKwargs": {
        "schedule_option": "schedule=, a mapping or a string",
        "output_trace_dir": "out=, the folder of all runs",
    },
    "torchtnt's PyTorchProfiler": {
        "profiler": "the arguments of torch.profiler.profile, as arguments of perfhooks.Profiler",
    },
}


def successor(name: str) -> str | None:
    """Return a sentence; None if the option is unknown."""
    for profiler, options in SUCCESSORS.items():
        if name in options:
            return f"this is an option of {profiler}; use {options[name]}"
    return None
