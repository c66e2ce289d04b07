"""What every number on the page means: its footnotes, and the titles of its columns."""

from __future__ import annotations

from typing import Final

DEFINITIONS: Final[dict[str, dict[str, str]]] = {
    "Steps": {
        "step": (
            "Everything between two calls of step(), as the recorder marked it. Numbers count from 0, and go on "
            "in a run that was resumed. A step that was cut short is left out where there are whole ones."
        ),
        "median step": (
            "The median of the recorded steps' wall time. Parts are means over the same steps, so that they sum "
            "to the mean step."
        ),
        "not recorded": (
            "The median wall time of this run's steps while the recorder was off, by the clock of the training "
            "process; the first step of a loop is left out. What recording added is said only where the recorded "
            "steps differ less among themselves than from these."
        ),
        "host parts": (
            "The time of the step's own thread, without overlap: data, transfer, forward, backward, optimizer, "
            "validation, checkpoint and other sum to the wall time. A moment belongs to the innermost open label. "
            "Where nobody labelled: data inside PyTorch's DataLoader, optimizer inside Optimizer.step, backward "
            "where autograd runs a node on any thread, else other. On a machine with a device the host only asks "
            "for the work, so these are the times of asking; the device's own are below."
        ),
        "device span": (
            "From the start of the first to the end of the last piece of device work that was launched inside the "
            "step, on any thread, over all devices of the process. It may end after the step."
        ),
        "busy": "The time in which at least one kernel, copy or set ran: the length of the union of their intervals.",
        "compute": "The time in which at least one kernel ran that does not communicate.",
        "exposed communication": "The time in which a communicating kernel ran and no computing one.",
        "exposed copies": "The time in which a copy or set ran and no kernel at all.",
        "idle": "Device span less busy. Compute, exposed communication, exposed copies and idle sum to the span.",
        "syncs": "Calls in which the host waits for the device.",
        "peak memory": (
            "The most memory that was allocated at one time during the step, in MiB: of all devices together, or "
            "of the host where no device was seen."
        ),
    },
    "Operators": {
        "count": "How often it ran in the recorded window.",
        "self host": "Time on the host, in all steps together, without the operators that it called.",
        "host": "The same with what it called.",
        "self device": "Durations of the device work that it launched itself; work that ran side by side counts each.",
        "device": "The same with what it called.",
        "host memory": "Bytes allocated less bytes released while it ran, on the host, without what it called.",
        "device memory": "The same on devices.",
        "flops": (
            "Floating point operations, by torch's published formulas from the recorded shapes; empty where none "
            "is known."
        ),
        "equal to torch": "Rows are those of torch.profiler's key_averages() for the same trace.",
    },
    "Kernels": {
        "total": "The sum of the durations; kernels that ran side by side count each.",
        "class": "Communication by the arguments or the name of a collective; copy; set; compute for all others.",
        "occupancy": (
            "Kineto's estimate of the achieved occupancy, weighted by time. Kineto writes whole percents, and 0 "
            "for many large kernels."
        ),
        "gap before": "How long the stream had been idle when the kernel began, on average.",
        "launched by": "The operators that launched it, up to three, most time first.",
    },
    "Flame graph": {
        "width": (
            "Time, summed over all calls of the same stack: of the host, by thread; or of the device, moved to "
            "the stack that launched the work. What is smaller than a thousandth is summed as (other)."
        ),
        "colour": (
            "What a frame is: your own code, installed code, a module, an operator, a call into the device's "
            "runtime, a label, a kernel."
        ),
    },
    "Modules": {
        "forward": "Host time of the module's calls, with the modules that it called; self is without them.",
        "backward": "Host time of the autograd nodes that its forward operators made, on whatever thread they ran.",
        "device forward, backward": "Durations of the device work that was launched in them.",
    },
    "Memory": {
        "allocated": (
            "What the allocator has handed out, by its own count; on a device with what was allocated before the "
            "recording. Reserved is what it holds."
        ),
        "alive at the peak": (
            "The allocations that were not released before the moment of the highest level, by the operator that "
            "asked for them; with recorded stacks by the innermost line of code outside of installed packages."
        ),
    },
    "Communication and waiting": {
        "message": "The larger of what one rank puts in and what it gets out, in bytes, as nccl-tests counts it.",
        "bus bandwidth": (
            "Bytes a second times the share that crosses the slowest link (nccl-tests): 2(n-1)/n for all_reduce, "
            "(n-1)/n for all_gather, reduce_scatter and all_to_all. Its time includes the wait for other ranks."
        ),
        "blocking": "The host waited for the copy: by its call, or because memory was pageable.",
        "host wait": "How long calls that wait for the device held the host.",
    },
    "Ranks": {
        "wait": (
            "The time in which a rank only waited for others inside collectives: of each, its duration less the "
            "shortest of all ranks' in the same collective, as far as no computation hid it. No two clocks are "
            "compared for that."
        ),
        "own work": (
            "The step less the wait: data, compute, communication and other sum to it. All ranks of a job take "
            "equally long, as the fast ones wait; so a rank is slow only if its own work is long."
        ),
        "data, compute, communication, other": (
            "The wait for data, of which no more counts than the device was idle; kernels that compute; "
            "communication that no computation hid, less the wait; the rest: launches, copies, the host's own work. "
            "The rest is below 0 where kernels go on after the step. Where no device was traced, the rest is compute."
        ),
        "excess": (
            "How much longer the rank's own work takes than the median of the other ranks' in the same step, the "
            "median over the steps; below 0 if it takes less. Slowest in is the part that exceeds the others' by most."
        ),
        "slow steps": (
            "Those in which the excess is a tenth of the step or more; among 8 ranks or more a fiftieth, and six "
            "times what is usual between them."
        ),
        "busy communication": (
            "The time in which a rank communicated, the wait included; exposed is that in which its device did not "
            "compute besides."
        ),
        "clock offset": (
            "What to add to the times of a rank to have them by the clock of the lowest rank: clocks of several "
            "machines are brought together where collectives end, which all ranks leave at once. The error is what "
            "then remains: half of all ends are this close to the middle of those of their collective."
        ),
        "spread of starts": (
            "From the first rank's start of a collective to the last one's, the median; by clocks brought together, "
            "so no better than their error."
        ),
        "duration": "That on the rank that came last and waited for nobody, the median; so is the bus bandwidth.",
        "waiting for the last": "How long the rank that came first waited, the median over all of a kind.",
        "last rank": "The rank that came last most often, and in how many of all.",
    },
    "Checks": {
        "error, warning, note": "Numbers are wrong or missing; numbers may be; worth knowing when reading them.",
        "gain": (
            "What a finding could gain is an estimate from this window alone; how it was made is said beside it. "
            "Gains of several findings overlap and do not add up."
        ),
    },
}
"""By section, for each term what it means."""
