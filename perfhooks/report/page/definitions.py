"""What every number in the report means: the tooltips of its columns and sections."""

from __future__ import annotations

from typing import Final

from perfhooks.core.statistics import OUTLIER
from perfhooks.run.live.slow_causes import SEEN_BY
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST

DEFINITIONS: Final[dict[str, dict[str, str]]] = {
    "steps": {
        "step": (
            "Everything between two calls of step(), as the recorder marked it. Numbers count from 0, and go on "
            "in a run that was resumed. A step that was cut short is left out where there are whole ones."
        ),
        "mean step": (
            "The mean wall time of the profiled steps of the most common kind. Parts and findings are means over the "
            "same steps. A step that validates or saves a checkpoint is of another kind, if most steps do not. "
            f"Outliers of more than {OUTLIER:g} times the median are left out, and so is the time in which perfhooks "
            "itself started or stopped a recording."
        ),
        "not recorded": (
            "The median wall time of this run's steps while the recorder was off, by the clock of the training "
            "process. The first steps of a process are left out: a twentieth of them, from "
            f"{FEWEST_FIRST} to {MOST_FIRST}. If several kinds of steps have a gap between their times, it is the "
            "median of the most common kind. What recording added is said only where the recorded "
            "steps differ less among themselves than from these."
        ),
        "host parts": (
            "The time of the step's own thread, without overlap: data, transfer, forward, backward, optimizer, "
            "validation, checkpoint, communication and other sum to the wall time. A moment belongs to the innermost "
            "label that somebody wrote. Where nobody did: data inside PyTorch's DataLoader, optimizer inside "
            "Optimizer.step and zero_grad, and what perfhooks labels while it records: forward and validation are the "
            "outermost calls of modules, backward the whole call, checkpoint what saves one, communication the loop's "
            "own waits for collectives. A call in evaluation mode without gradients is validation if it belongs to a "
            "batch of a loader, or a loss is computed from it, and no backward pass follows: rollouts, target "
            "networks, teachers and samples are forward. Transfer are operators that copy to a device. In traces "
            "without these labels, forward is told from the operators that autograd noted, and backward from its first "
            "to its last node, each with what lies between. On a machine with a device the host only asks for the "
            "work, so these are the times of asking; the device's own are below."
        ),
        "device span": (
            "From the start of the first to the end of the last piece of device work that was launched inside the "
            "step, on any thread, over all devices of the process. It may end after the step. What was launched before "
            "the window belongs to no step; it is in the table of kernels."
        ),
        "device busy, idle": (
            "The time of the step's wall in which a device worked, for whatever step, over all devices of the process; "
            "idle is the rest of the wall. Why it was idle is told under Device time."
        ),
        "own work": (
            "The time in which at least one kernel, copy or memset of the step ran: the length of the union of their "
            "intervals, wherever they lie."
        ),
        "compute": "The time in which at least one kernel ran that does not communicate.",
        "communication": "The time in which at least one kernel ran that communicates.",
        "exposed communication": "The time in which a communicating kernel ran and no computing one.",
        "exposed copies": "The time in which a copy or memset ran and no kernel at all.",
        "other steps' work": (
            "The time within the device span in which the device worked for other steps, or for work of no step, and "
            "not for this one."
        ),
        "idle in the span": (
            "The time within the device span in which the device had nothing of anybody's. Compute, exposed "
            "communication, exposed copies, other steps' work and idle sum to the span."
        ),
        "syncs": (
            "Calls that synchronise with the device. Their time is what the host waited for it: in these calls, and in "
            "copies that block, beyond the cost of their call."
        ),
        "peak memory": (
            "The most memory that was allocated at one time during the step, in MiB: of all devices together, or "
            "of the host where no device was seen."
        ),
        "TFLOP": (
            "10^12 floating point operations of products of matrices, convolutions and attention, as under Limits; "
            "causal attention counts in full."
        ),
        "MFU, HFU": (
            "The time that these operations need at the dense peaks of their types, each at its own, of the step's "
            "wall (times the devices that worked). HFU counts what is computed again for gradients, as activation "
            "checkpoints have it; MFU does not. Not cut at 100."
        ),
        "of which known": (
            "Of the time of GEMM, convolution, attention, expert and state-space kernels, the share whose operations "
            "are known: of the rest MFU and HFU know nothing, and below 80% they are not told."
        ),
    },
    "labels": {
        "yours": (
            "What somebody wrote with record_function or prof.region. The names of the parts of a step are in the "
            "table of steps; what torch and frameworks label of themselves is under All."
        ),
        "total": "Time on the host, with all that ran in the label, over all its calls.",
        "share": (
            "The total, of the time from the first to the last call on the host that was recorded. Labels in one "
            "another, or side by side on two threads, count each, so shares may sum to more than 100."
        ),
        "self": "The total without the labels and operators in it.",
        "device": "Durations of the device work that was launched in it.",
    },
    "plan": {
        "they make": (
            "What so many workers can make beside such steps: they share the processors that the training and others "
            "leave, and wait side by side. From what a batch cost the workers that there were."
        ),
        "eats": "Of the batches that a step takes if it never waits, the share that they make in time.",
        "waits": "The share of the step in which it would wait for data.",
        "step": "What a step would take, with its wait.",
    },
    "workers": {
        "of their time": (
            "Of all workers in this window, in functions of the user with all library functions that these call. Each "
            "worker is sampled every 10 ms or more, and a sample stands for the time since the one before."
        ),
        "waits": "The worker's main thread slept: a network, a lock, a sleep, or another thread that holds the GIL.",
        "disk": "It waited for a disk or a network file system (state D of Linux).",
        "computes": "It computed, in Python or in C.",
        "waits for a cpu": "It could have computed, but other threads had the CPUs.",
        "collates": "It collated samples into a batch.",
        "passes on": "Its main thread passed a batch on. Another thread of it pickles batches meanwhile.",
        "idle": "Its prefetch queue was full.",
    },
    "functions": {
        "calls": "How often it was called in the recorded window; calls that it made of itself count, too.",
        "self": (
            "Time in it without the Python functions that it called, with the operators that ran in it. What threads "
            "other than the training's wait for locks, queues, files or time is left out."
        ),
        "total": "Time with what it called; a call within one of the same function counts once.",
        "line": (
            "Where the function begins: a trace has no other lines. What is written in C has none, nor do modules, nor "
            "functions in which recording began: of those a trace has the line that ran then."
        ),
    },
    "operators": {
        "count": "How often it ran in the recorded window.",
        "self host": (
            "Time on the host, in all steps together, without the operators that it called. By torch's rule calls into "
            "the runtime that bear no operator's number are not taken off, as while a graph is captured: the sum may "
            "be more than has passed."
        ),
        "exclusive host": (
            "Time on its own thread without every other call that was recorded inside of it: the rows sum to the time "
            "in which anything ran on each thread, and never to more."
        ),
        "host": "The same with what it called.",
        "self device": (
            "Durations of the device work that it launched itself; work that ran side by side counts each, and work "
            "within other work of its stream once."
        ),
        "device": "The same with what it called.",
        "host memory": "Bytes allocated less bytes released while it ran, on the host, without what it called.",
        "device memory": "The same on devices.",
        "flops": (
            "Floating point operations, by torch's published formulas from the recorded shapes; empty where none "
            "is known."
        ),
        "equal to torch": "Rows are those of torch.profiler's key_averages() for the same trace.",
    },
    "limits": {
        "TFLOP/s": (
            "10^12 floating point operations a second, of products of matrices, convolutions and attention, by the "
            "formulas of torch's FlopCounterMode from the recorded shapes; causal attention counts in full. Time is "
            "that of the device work of the calls of which they are known; without a device, of the calls. A kernel "
            "has those of the operator that launched it, if that launched no other of the kind; else nothing."
        ),
        "GB/s": (
            "10^9 bytes a second: each tensor that is read counts once, and each that is written, by its recorded "
            "shape and type. Caches are not looked at, and neither is what an expanded tensor really holds."
        ),
        "FLOP/byte": "Operations for each of these bytes, of calls of which both are known.",
        "of its limit": (
            "The time that the device needs at least, of the time that it took: operations by the peak of their type, "
            "or bytes by that of memory, whichever takes longer. It may be more than 100, as bytes may come from "
            "caches. Peaks are those that perfhooks doctor --peaks measured, else the dense figures of the maker's "
            "datasheet; a device of which neither is known has no limit here, and neither has a part of one (MIG)."
        ),
        "limit": (
            "Compute or memory, whichever takes longer by these peaks; latency where kernels take less than 10 us and "
            "not half of that is needed. That of most of the time."
        ),
    },
    "kernels": {
        "total": (
            "The sum of the durations; kernels that ran side by side count each. What holds other work of its own "
            "stream, as a call of a library its kernels, counts without it: no moment of a stream counts twice."
        ),
        "class": (
            "Communication by the arguments of a collective, or by the name of a kernel of a library that does it: "
            "NCCL, RCCL and their kind, DeepEP, custom, quick and fused all-reduces, NVSHMEM, symmetric memory, "
            "userbuffers, and what the option communication names; copy; set for memsets; compute for all others."
        ),
        "occupancy": (
            "Kineto's estimate of the achieved occupancy, weighted by time. Kineto writes whole percents, and 0 "
            "for many large kernels."
        ),
        "gap before": "How long the stream had been idle when the kernel began, on average.",
        "launched by": "The operators that launched it, up to three, most time first.",
    },
    "categories": {
        "category": (
            "What kind of work it was. GEMMs are matrix products, quantised and grouped ones too. Softmax, losses over "
            "classes, sorting, sampling and pooling are reductions; filling, dropout, random numbers and rotary "
            "embeddings are elementwise; concatenating is copying. Indexing is embeddings, gathers, scatters, "
            "interpolation and writing to a cache of keys and values; quantisation turns numbers to fewer bits, or "
            "back; moe is what is named for a mixture of experts: routing, sorting and summing tokens, GEMMs of "
            "experts; ssm is state-space models and linear attention (Mamba, gated delta rule). A kernel that "
            "torch.compile fused is normalisation if it has a part of one, copies or indexing if it has nothing else, "
            "else a reduction or elementwise. Other is what no name tells."
        ),
        "device": (
            "The plain sum of the durations of kernels, copies and memsets. Communication and copies are told by their "
            "class in the table of kernels; attention, whatever it is made of, by the operator around the launch; then "
            "what the optimizer's part launched; then by the innermost operator around the launch that tells, else by "
            "the kernel's own name. Each kernel is in one row: they sum to the table of kernels."
        ),
        "host": (
            "The time of operators on their threads without the operators in them, by the same rules: the rows sum to "
            "the time in which any operator ran, of each thread."
        ),
        "most of it in": "The operators, or kernels that no operator launched, that cost most: three at most.",
    },
    "device": {
        "part": (
            "Each moment of the steps' walls is one: work that the step launched itself, by class, each without the "
            "moments of those before it; work of other steps; or idle, by cause. They sum to the wall, to the "
            "nanosecond."
        ),
        "idle for": (
            "Idle time is cut at the launch of the work that ends it. Before it, the cause is what the thread that "
            "then launched did, by the innermost call: waiting for the device, for data, for other ranks, asking for "
            "memory, compiling, operators, code between operators, and so on. Launching is the call itself; start "
            "latency the first 10 us after it; beyond them the work waited for other work, where that was recorded, "
            "else it was asked for and not begun. What lies between the nodes of a graph is inside a graph."
        ),
        "where in the step": "Before the first work that the step launched, after the last, or between.",
        "in, line": (
            "The operator, call, label or work; and the innermost line of the user there, where stacks were recorded."
        ),
        "idle": "Milliseconds of a usual step in which no device worked; with a number, that device.",
        "queue": "Launches made whose work had not begun; a replay of a graph is one.",
    },
    "gaps": {
        "gap": "A time of the steps in which no device of the process worked.",
        "from": "When it began, from the first slice of the trace; step is that in which it began.",
        "most of it for": "The cause that took most of it, as under Device time, and for how long.",
        "in, line": "What was called then, and the line.",
    },
    "flame": {
        "width": (
            "Time, summed over all calls of the same stack: of the host, by thread; or of the device, moved to "
            "the stack that launched the work. What is smaller than a thousandth is summed as (other). What "
            "threads other than the training's wait for locks, queues, files or time is left out."
        ),
        "colour": (
            "What a frame is: your own code, installed code, a module, an operator, a call into the device's "
            "runtime, a label, a kernel."
        ),
    },
    "modules": {
        "in the model": (
            "What the model calls the module, as in named_modules(), where perfhooks recorded with stacks; names of "
            "several models begin with their class. The other name is the recorder's: the class, and a number by the "
            "order of first calls."
        ),
        "forward": "Host time of the module's calls, with the modules that it called; self is without them.",
        "backward": "Host time of the autograd nodes that its forward operators made, on whatever thread they ran.",
        "device forward, backward": (
            "Durations of the device work that was launched in them. A row that has only these is a part of a CUDA "
            "graph, below the module that replayed it, by the name that it was recorded under "
            "(torch.cuda.graph_annotations)."
        ),
    },
    "memory": {
        "allocated": (
            "What the allocator has handed out, by its own count; on a device with what was allocated before the "
            "recording. Reserved is what it holds."
        ),
        "alive at the peak": (
            "The allocations that were not released before the moment of the highest level, by the operator that "
            "asked for them; with recorded stacks by the innermost line of code outside of installed packages."
        ),
    },
    "compiled": {
        "graphs": (
            "How often torch.compile made code of the function, or of what follows a break in it, which begins at "
            "that line. torch keeps the last 64."
        ),
        "compiling": (
            "Forward and backward together: tracing Python into a graph; the backend, such as AOTAutograd; and "
            "Inductor, which makes kernels."
        ),
        "compiled again for": "The guard that failed last: what had to be as it was. torch 2.4 does not tell.",
        "met": "By how many compilations.",
    },
    "communication": {
        "message": "The larger of what one rank puts in and what it gets out, in bytes, as nccl-tests counts it.",
        "bus bandwidth": (
            "Bytes a second times the share that crosses the slowest link (nccl-tests): 2(n-1)/n for all_reduce, "
            "(n-1)/n for all_gather, reduce_scatter and all_to_all. Its time includes the wait for other ranks."
        ),
        "blocking": "The host waited for the copy: in its call, which it does where memory is pageable, or after it.",
        "host, of a copy": "How long the calls that asked for the copies took, waits included.",
        "host wait": (
            "How long the host waited for the device: in calls that synchronise, and in the calls of copies from or to "
            "pageable memory that began before the call returned (item(), cpu()), less what such a call costs "
            "without a wait."
        ),
    },
    "ranks": {
        "role": (
            "Ranks that take part in the same kinds of collectives and messages, about equally often in a step, do the "
            "same work and are compared with each other: not the stages of a pipeline."
        ),
        "stage": (
            "A part of the step of which all ranks tell, in its order, from one backward pass, in which ranks meet, to "
            "the next: update (until the step ends), data, forward (until the backward pass begins) and backward. "
            "Without backward passes, as on devices, where their end is not that of their work: data and rest."
        ),
        "exposed": (
            "By how much the last rank to end the stage moves on from the last one to end the stage before, the mean; "
            "these sum to the step. Source: StageFrontier, arXiv 2606.06751."
        ),
        "mostly last": "The rank that is last at the end of the stage most often, and in how many of 100 steps.",
        "led": (
            "A rank is behind in a stage by what it takes longer for it than the others, as far as it still is at the "
            "end of the stage. It led where the mean is 10% of the step (among 8 ranks 2%, and six times what is "
            "usual), and more than chance makes of equal ranks in one of 100 looks; of most ranks none does."
        ),
        "wait": (
            "The time in which a rank only waited for others inside collectives: of each, its duration less the "
            "shortest of all ranks' in the same collective, as far as no computation hid it. No two clocks are "
            "compared for that."
        ),
        "own work": (
            "The step less the wait: data, compute, communication and other sum to it. All ranks of a job take "
            "equally long, as the fast ones wait; so a rank is slow only if its own work is long. Messages between two "
            "ranks are part of it, as nobody tells how long a rank waits in them."
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
        "evidence": (
            "A rank is named if three of four of its steps are slow, and its excess is more than chance makes of equal "
            "work: more than Student's t allows for the difference from step to step and the number of ranks, at one "
            "false name in a hundred windows. Two steps that agree are enough, three that do not are none."
        ),
        "busy communication": (
            "The time in which a rank communicated, the wait included. Exposed is the part of it in which its device "
            "computed nothing."
        ),
        "clock offset": (
            "What to add to the times of a rank to have them by the clock of the lowest rank: clocks of several "
            "machines are brought together where collectives end, which all ranks leave at once. The error is what "
            "then remains: half of all ends are this close to the middle of those of their collective."
        ),
        "spread of starts": (
            "From the first rank's start of a collective to the last one's, the median; by clocks brought together, "
            "so it is no more exact than their error."
        ),
        "duration": (
            "The median of the duration on the rank that came last, which waited for nobody. The bus bandwidth is that "
            "rank's, too."
        ),
        "waiting for the last": "How long the rank that came first waited, the median over all of a kind.",
        "last rank": "The rank that came last most often, and in how many of all.",
    },
    "slow": {
        "slow": (
            "More than 3 times the median of the last 50 steps, or far beyond what those vary by (1.3 medians, and 6 "
            "times as far from the median as one in ten is), and 50 ms more, on the training's own clock. All steps "
            "are watched, recorded or not, but for the first ten of a loop. A step that was slow on several ranks "
            "counts once: for its longest time, and for the cause of a rank that did not only wait for others."
        ),
        "stage, step": "The loop, and the number of the step.",
        "wall_ms, times_median": "How long it took; how many medians that is.",
        "cause": (
            "The first that explains half of the time beyond the median by what it is beyond the usual of the run, of "
            + "; ".join(f"{cause}: {seen_by}" for cause, seen_by in SEEN_BY.items())
            + "."
        ),
        "explained_ms": "How much of the time beyond the median the cause explains; empty where nobody can tell.",
        "line": (
            "The function and line in which most of that time was seen: yours if there is one in the stack. Empty "
            "where looks at it do not cover half of that time."
        ),
        "data_ms": "The wait for data; empty where nobody says when a batch arrives.",
        "gc_ms": "Python's garbage collections, the youngest generation left out.",
        "cpu_share": "How much of a processor the thread used since the first look at the step.",
        "switches, faults": (
            "Times that the thread was off its processor, and its page faults, in that time; Linux only."
        ),
        "alloc_retries": "Times that the device's allocator gave memory back and tried again, in that time.",
    },
    "checks": {
        "start": (
            "What a program does once, as the check recorded-a-start and the finding recorded-start have it: compiling "
            "(the ranges of TorchDynamo), capturing graphs (from the call that begins it to the one that ends it), "
            "loading kernels (calls of 5 ms or more on an idle device before the first run of a kernel, calls that "
            "load modules, and loading that the driver records), trying out convolutions (those that time kernels "
            "with events). They may overlap, and count once together."
        ),
        "error, warning, note": "Numbers are wrong or missing; numbers may be; worth knowing when reading them.",
        "gain": (
            "The time that an unprofiled step could save. 'About' is an estimate of advice that was measured to help. "
            "'At most' is an upper bound: the whole time that the advice is about. Time that recording added is "
            "subtracted, by the number of recorded slices. No gain is more than the unprofiled step. Gains of several "
            "findings overlap and do not add up."
        ),
        "accounted for": (
            "The share of the step that is one of its parts, or in which a device worked. Below 80% the rest is a "
            "finding of its own, because no rule looks at what has no name."
        ),
    },
}
"""By the id of its section, for each term what it means."""
