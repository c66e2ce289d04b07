from __future__ import annotations

from typing import Final

from perfhooks.core.statistics import OUTLIER
from perfhooks.run.live.slow_causes import SEEN_BY
from perfhooks.run.steps import FEWEST_FIRST, MOST_FIRST

DEFINITIONS: Final[dict[str, dict[str, str]]] = {
    "steps": {
        "step": (
            "Everything between two calls of step(), as the recorder marked it. Numbers count from 0 and continue "
            "in a resumed run. A step that was cut short is omitted if there are complete ones."
        ),
        "mean step": (
            "The mean wall time of the profiled steps of the most common kind. Parts and findings are means over the "
            "same steps. A step that validates or saves a checkpoint is of another kind, if most steps do not. "
            f"Outliers of more than {OUTLIER:g} times the median are left out. The time in which perfhooks "
            "started or stopped a recording is left out, too."
        ),
        "not recorded": (
            "The median wall time of this run's unprofiled steps, by the clock of the training process. "
            "The first twentieth of the steps of a process is left out, at least "
            f"{FEWEST_FIRST} and at most {MOST_FIRST} steps. If the step times form several separate groups, it is the "
            "median of the largest group. The overhead of recording is reported only if it is clear: "
            "profiled steps must differ more from these than from each other."
        ),
        "host parts": (
            "The time of the step's own thread, without overlap: data, transfer, forward, backward, optimizer, "
            "validation, checkpoint, communication and other sum to the wall time. A moment belongs to the innermost "
            "label of the user. Without such a label, perfhooks decides. Data is time inside PyTorch's DataLoader. "
            "Optimizer is time inside Optimizer.step and zero_grad. Transfer is operators that copy to a device. "
            "Forward and validation are the outermost calls of modules. Backward is the whole call. Checkpoint is the "
            "call that saves one. Communication is the loop's own waits for collectives. A call in evaluation mode "
            "without gradients is validation on two conditions. It belongs to a batch of a loader, or a loss is "
            "computed from it; and no backward pass follows. So rollouts, target networks, teachers and sampling "
            "count as forward. Traces of other recorders have no such labels. There, forward extends over the "
            "operators that autograd recorded, and backward over its nodes. With a device, these are the times in "
            "which the host launches the work. The times of the device are below."
        ),
        "device span": (
            "The time from the first to the last device work that was launched inside the step. All threads and all "
            "devices of the process count. The span may end after the step. Work that was launched before the window "
            "belongs to no step; it is in the table of kernels."
        ),
        "device busy, idle": (
            "Busy is the part of the wall time in which any device of the process worked, for any step. "
            "Idle is the rest of the wall time. The causes of idle time are under Device time."
        ),
        "own work": (
            "The time in which at least one kernel, copy or memset of the step ran: the length of the union of their "
            "intervals, also outside of the step."
        ),
        "compute": "The time in which at least one computing kernel ran.",
        "communication": "The time in which at least one communicating kernel ran.",
        "exposed communication": "The time in which a communicating kernel ran and no computing one.",
        "exposed copies": "The time in which a copy or memset ran and no kernel.",
        "other steps' work": (
            "The time within the device span in which the device worked only for other steps or for none."
        ),
        "idle in the span": (
            "The time within the device span in which the device had no work. Compute, exposed "
            "communication, exposed copies, other steps' work and idle sum to the span."
        ),
        "syncs": (
            "Calls that synchronise with the device. Their time is the wait of the host in these calls and in "
            "blocking copies, without the cost of the call."
        ),
        "peak memory": (
            "The highest amount of allocated memory during the step, in MiB. It is the sum over all devices, or "
            "the memory of the host if no device was traced."
        ),
        "TFLOP": (
            "10^12 floating point operations of matrix products, convolutions and attention, as under Limits. "
            "Causal attention counts in full."
        ),
        "MFU, HFU": (
            "The time of these operations at the dense peak of their data type, as a percentage of the step. With "
            "several active devices, the wall time counts once for each. HFU includes operations that are repeated "
            "for gradients (activation checkpointing); MFU does not. Values above 100 are not clipped."
        ),
        "of which known": (
            "The percentage of kernel time with known operations, over GEMM, convolution, attention, expert and "
            "state-space kernels. MFU and HFU do not include the other kernels. Below 80% they are not reported."
        ),
    },
    "labels": {
        "yours": (
            "Labels of your own code, by record_function or prof.region. The names of the parts of a step are in the "
            "table of steps. Labels by torch and frameworks are under All."
        ),
        "total": "Host time inside the label, over all its calls.",
        "share": (
            "The total as a percentage of the recorded time, from the first to the last call on the host. "
            "Nested labels and labels on parallel threads all count, so shares may sum to more than 100."
        ),
        "self": "The total without the labels and operators in it.",
        "device": "The durations of the device work that was launched in it.",
    },
    "plan": {
        "supply": (
            "Estimated batches per second of this many workers. They share the CPUs with the training and other "
            "processes, and their waits overlap. The estimate is from the measured cost of a batch."
        ),
        "demand": "Supplied batches, as a percentage of the batches that a step without waits consumes.",
        "waits": "The percentage of the step in which it would wait for data.",
        "step": "The estimated step time, with the wait for data.",
    },
    "workers": {
        "of their time": (
            "The percentage of the time of all workers in this window. A function of your code includes the library "
            "functions that it calls. Each worker is sampled every 10 ms or more. A sample counts for the "
            "time since the previous sample."
        ),
        "waits": "The worker's main thread slept: a network, a lock, a sleep, or another thread that holds the GIL.",
        "disk": "It waited for a disk or a network file system (state D of Linux).",
        "computes": "It computed, in Python or in C.",
        "waits for a cpu": "It was ready to compute, but other threads had the CPUs.",
        "collates": "It collated samples into a batch.",
        "passes on": "Its main thread transferred a batch. Another thread pickles batches and does not count.",
        "idle": "Its prefetch queue was full.",
    },
    "functions": {
        "calls": "The number of calls in the recorded window, recursive calls included.",
        "self": (
            "The time in the function and its operators, without the Python functions that it called. "
            "On other threads than the training's, waits for locks, queues, files or timers are left out."
        ),
        "total": "The time with called functions. A recursive call counts once.",
        "line": (
            "The first line of the function; a trace has no other lines. C functions and modules have no line. "
            "Functions that were already running when the recording started have none either: they have the line "
            "that ran at that moment."
        ),
    },
    "operators": {
        "count": "The number of calls in the recorded window.",
        "self host": (
            "Host time in all steps, without the operators that it called. As in torch, runtime calls without "
            "an operator's number are not subtracted, for example during graph capture. So the sum may exceed the "
            "elapsed time."
        ),
        "exclusive host": (
            "The time on its own thread without all other calls that were recorded inside of it. The rows sum to the "
            "busy time of all threads."
        ),
        "host": "Host time with the operators that it called.",
        "self device": (
            "The durations of the device work that it launched itself. Parallel work counts in full. Work "
            "within other work of its stream counts once."
        ),
        "device": "The durations of its device work, with the work of the operators that it called.",
        "host memory": "Allocated bytes minus released bytes on the host, without the operators that it called.",
        "device memory": "Allocated bytes minus released bytes on devices, without the operators that it called.",
        "flops": (
            "Floating point operations, by torch's published formulas from the recorded shapes. It is empty if "
            "no formula applies."
        ),
        "equal to torch": "The rows are equal to those of torch.profiler's key_averages() for the same trace.",
    },
    "limits": {
        "TFLOP/s": (
            "10^12 floating point operations per second: matrix products, convolutions and attention, by the formulas "
            "of torch's FlopCounterMode and the recorded shapes. Causal attention counts in full. The time is the "
            "device time of the calls with known operations, or their host time without a device. A kernel gets the "
            "operations of the operator that launched it. It gets none if that operator launched other kernels of the "
            "same kind."
        ),
        "GB/s": (
            "10^9 bytes per second. Each tensor that is read or written counts once, by its recorded "
            "shape and type. Caches are ignored. An expanded tensor counts with its full shape."
        ),
        "FLOP/byte": "Operations per byte, over calls with known operations and bytes.",
        "of its limit": (
            "The minimum time that the device needs, as a percentage of the measured time. The minimum is operations "
            "at the peak of their type or bytes at the peak of memory, whichever takes longer. It may exceed 100, "
            "because bytes may come from caches. Peaks are from perfhooks doctor --peaks, else the dense "
            "values of the vendor's datasheet. A device without both has no limit here. A part of a device (MIG) "
            "has a limit only if it was measured."
        ),
        "limit": (
            "Compute or memory, whichever takes longer at these peaks. Latency, if kernels take less than 10 us and "
            "need less than half of that. A row with several limits shows the one with the most time."
        ),
    },
    "kernels": {
        "total": (
            "The sum of the durations; parallel kernels all count. Work may contain other work of its own "
            "stream, for example a library call that contains its kernels. The inner time then counts once."
        ),
        "class": (
            "Communication, by the arguments of a collective or the name of a kernel: "
            "NCCL, RCCL and similar libraries, DeepEP, custom, quick and fused all-reduces, NVSHMEM, symmetric memory, "
            "userbuffers, and names in the option communication. Copy; set for memsets; compute for all others."
        ),
        "occupancy": (
            "Kineto's estimate of the achieved occupancy, weighted by time. Kineto writes whole percents, and 0 "
            "for many large kernels."
        ),
        "gap before": "The mean idle time of the stream before the kernel started.",
        "launched by": "The operators that launched it, up to three, most time first.",
    },
    "categories": {
        "category": (
            "The kind of work. GEMMs are matrix products, quantised and grouped ones too. Reductions include softmax, "
            "losses over classes, sorting, sampling and pooling. Elementwise work includes filling, dropout, random "
            "numbers and rotary embeddings. Copies include concatenation. Indexing is embeddings, gathers, scatters, "
            "interpolation and writes to a key-value cache. Quantisation converts numbers to fewer bits, or "
            "back. moe is work of a mixture of experts: routing, sorting and summing tokens, GEMMs of "
            "experts. ssm is state-space models and linear attention (Mamba, gated delta rule). A kernel that "
            "torch.compile fused is normalisation if it contains one. It is copies or indexing if it contains "
            "only that, else a reduction or elementwise. Other is work whose name is unknown."
        ),
        "device": (
            "The sum of the durations of kernels, copies and memsets. These rules apply in order. Communication and "
            "copies: by the class in the table of kernels. Attention: by the operator around the launch. Optimizer: "
            "by the part of the step. Then by the innermost known operator around the launch, else by the name of the "
            "kernel. Each kernel is in one row, so the rows sum to the table of kernels."
        ),
        "host": (
            "The host time of operators, without inner operators, by the same rules. The rows sum to "
            "the time in which operators ran, over all threads."
        ),
        "most of it in": "The costliest operators, or kernels that no operator launched: at most three.",
    },
    "device": {
        "part": (
            "Each moment of the step belongs to exactly one part: work that the step launched, by class; work of other "
            "steps; or idle time, by cause. If classes overlap, the first one in the list counts. The parts sum to the "
            "wall time, to the nanosecond."
        ),
        "idle for": (
            "Idle time is split at the launch of the work that ends it. Before the launch, the cause is the innermost "
            "call on the launching thread: waiting for the device, for data or for other ranks, asking for "
            "memory, compiling, operators, code between operators, and so on. Launching is the launch call itself. "
            "Start latency is the first 10 us after it. Later, the work waited for other work if that was recorded; "
            "else the cause is 'asked for, not begun'. Idle time between the nodes of a graph is 'inside a graph'."
        ),
        "where in the step": "Before the first work that the step launched, after the last, or between.",
        "in, line": (
            "The operator, call, label or work during the idle time. With recorded stacks, also the innermost line of "
            "your code."
        ),
        "idle": "Milliseconds of a usual step in which no device worked. With a number: the time of this device.",
        "queue": "Launches whose work had not started. A replay of a graph is one launch.",
    },
    "gaps": {
        "gap": "An interval of the steps in which no device of the process worked.",
        "from": "Its start, measured from the first slice of the trace. Step is the step in which it started.",
        "most of it for": "The cause with the largest part of the gap, as under Device time, and its duration.",
        "in, line": "The call during the gap, and its line.",
    },
    "flame": {
        "width": (
            "Time, summed over all calls of the same stack: host time by thread, or device time by "
            "the stack that launched the work. Frames below a thousandth of the total are summed as (other). "
            "On other threads than the training's, waits for locks, queues, files or timers are left out."
        ),
        "colour": (
            "The kind of a frame: your own code, installed code, a module, an operator, a call into the device's "
            "runtime, a label, a kernel."
        ),
    },
    "modules": {
        "in the model": (
            "The name of the module in the model, as in named_modules(), if perfhooks recorded with stacks. With "
            "several models, names begin with the class of the model. The other name is the recorder's: the class, "
            "and a number in the order of first calls."
        ),
        "forward": "Host time of the module's calls, with the modules that it called. Self is without them.",
        "backward": "Host time of the autograd nodes of its forward operators, on all threads.",
        "device forward, backward": (
            "The durations of the device work that was launched in them. A row with only these values is a part of a "
            "CUDA graph. It is below the module that replayed the graph, under its recorded name "
            "(torch.cuda.graph_annotations)."
        ),
    },
    "memory": {
        "allocated": (
            "Memory in use by tensors, as the allocator reports it. On a device it includes memory from before the "
            "recording. Reserved is the memory that the allocator holds."
        ),
        "alive at the peak": (
            "Allocations that were alive at the moment of the highest level, by the operator that requested "
            "them. With recorded stacks, by the innermost line of code outside of installed packages."
        ),
    },
    "compiled": {
        "graphs": (
            "How often torch.compile compiled the function, or the code after a graph break, which starts at "
            "that line. torch keeps the last 64 compilations."
        ),
        "compiling": (
            "Forward and backward together. Tracing converts Python into a graph. The backend is, for example, "
            "AOTAutograd. Kernels are the work of Inductor."
        ),
        "compiled again for": "The last failed guard: a condition of the compiled code. torch 2.4 does not report it.",
        "met": "The number of compilations that met the graph break.",
    },
    "communication": {
        "message": "The larger of the input and the output of one rank, in bytes, as nccl-tests counts it.",
        "bus bandwidth": (
            "Bytes per second times the fraction that crosses the slowest link (nccl-tests): 2(n-1)/n for all_reduce, "
            "(n-1)/n for all_gather, reduce_scatter and all_to_all. Its time includes the wait for other ranks."
        ),
        "blocking": "The host waited for the copy: in its call, if memory is pageable, or after it.",
        "host, of a copy": "The duration of the calls that requested the copies, waits included.",
        "host wait": (
            "How long the host waited for the device in calls that synchronise. Copies from or to pageable memory "
            "count if they started before the call returned, for example item() and cpu(). The cost of such a call "
            "without a wait is subtracted."
        ),
    },
    "ranks": {
        "role": (
            "Ranks of one role take part in the same kinds of collectives and messages, about equally often in a "
            "step. They do the same work, so they are compared with each other. The stages of a pipeline have "
            "different roles."
        ),
        "stage": (
            "A part of the step that all ranks report. Ranks synchronise in the backward pass, so the stages run from "
            "one backward pass to the next: update (until the step ends), data, forward (until the backward pass "
            "starts) and backward. If backward passes are not available, the stages are data and rest. That is "
            "so on devices, where the call ends before its work."
        ),
        "exposed": (
            "The mean time from the last rank's end of the previous stage to the last rank's end of this stage. "
            "These times sum to the step. Source: StageFrontier, arXiv 2606.06751."
        ),
        "mostly last": "The rank that ends the stage last most often, and the percentage of steps in which it does.",
        "straggler": (
            "The delay of a rank in a stage is its extra time compared with the other ranks. It counts as far as it "
            "remains at the end of the stage. A straggler has a mean delay of 10% of the step or more. Among 8 ranks "
            "or more, 2% and six times the usual spread are enough. The delay must also exceed chance: equal ranks "
            "have one straggler in 100 checks. If more than half of the ranks are late, none is a straggler."
        ),
        "wait": (
            "The time in which a rank only waited for others inside collectives. It is the duration of each "
            "collective minus the shortest one on any rank, without parts that computation hid. No clocks are "
            "compared for it."
        ),
        "own work": (
            "The step minus the wait: data, compute, communication and other sum to it. All ranks of a job take "
            "equally long, because the fast ones wait. So a rank is slow only if its own work is long. Messages "
            "between two ranks are included, because their wait is unknown."
        ),
        "data, compute, communication, other": (
            "Data is the wait for data, at most the idle time of the device. Compute is kernels that compute. "
            "Communication is the part that no computation hid, without the wait. Other is the rest: launches, copies, "
            "the host's own work. Other is below 0 if kernels run after the end of the step. Without a traced device, "
            "compute is the rest."
        ),
        "excess": (
            "The rank's own work minus the median of the other ranks in the same step, as mean over the steps. "
            "It is below 0 if the rank is faster. Slowest in is the part with the largest excess."
        ),
        "last in": (
            "The large collectives in which the rank arrived last, of those it took part in. A collective is large if "
            "it moves at least a tenth of the bytes of the largest one in the window, and all its ranks wait for each "
            "other. The rank that arrives last does not wait."
        ),
        "straggler in a window": (
            "A rank whose excess is at least 10% of the step, and exceeds chance. Among 8 ranks or more, 2% and six "
            "times the usual spread are enough. Chance is judged over the steps, or over the large collectives if the "
            "rank is last in most of them. Equal ranks have one straggler in 100 windows."
        ),
        "busy communication": (
            "The time in which a rank communicated, the wait included. Exposed is the part of it in which its device "
            "computed nothing."
        ),
        "clock offset": (
            "The offset from the clock of the rank to the clock of the lowest rank. Clocks of several hosts are "
            "aligned at the ends of collectives, which all ranks leave at the same time. The error is the median "
            "distance of an end from the middle of the ends of its collective."
        ),
        "spread of starts": (
            "The median time from the first to the last rank's start of a collective, by aligned clocks. "
            "It is no more exact than the error of the clocks."
        ),
        "duration": (
            "The median duration on the rank that arrived last and so did not wait. The bus bandwidth is of the same "
            "rank."
        ),
        "waiting for the last": "The median wait of the rank that arrived first, over all collectives of a kind.",
        "last rank": "The rank that arrived last most often, and the percentage of collectives in which it did.",
    },
    "slow": {
        "slow": (
            "A step is slow if it exceeds the smaller of two limits by 50 ms, on the training's own clock. The first "
            "limit is 3 times the median of the last 50 steps. The second one is 6 times as far from the median as "
            "the 90th percentile, and at least 1.3 medians. All steps are watched, profiled or not, except "
            "the first ten of a loop. A step that was slow on several ranks counts once. Its time is the longest, and "
            "its cause is from a rank that did not only wait for others."
        ),
        "stage, step": "The loop, and the number of the step.",
        "wall_ms, times_median": "The duration of the step, and its ratio to the median.",
        "cause": (
            "The first cause that explains half of the time above the median. Only its amount above the usual of the "
            "run counts. The causes and their sources are "
            + "; ".join(f"{cause}: {seen_by}" for cause, seen_by in SEEN_BY.items())
            + "."
        ),
        "explained_ms": "The part of the time above the median that the cause explains. It is empty if unknown.",
        "line": (
            "The function and line with the largest part of that time: your own if there is one in the stack. It is "
            "empty if samples cover less than half of that time."
        ),
        "data_ms": "The wait for data. It is empty if the arrival of batches is unknown.",
        "gc_ms": "Python's garbage collections, without the youngest generation.",
        "cpu_share": "The CPU use of the thread since the first sample of the step.",
        "switches, faults": "Context switches and page faults of the thread in that time; Linux only.",
        "alloc_retries": "How often the device's allocator released memory and tried again in that time.",
    },
    "checks": {
        "start": (
            "Work that a program does once, as in the check recorded-a-start and the finding recorded-start. "
            "Compiling: the ranges of TorchDynamo. Capturing graphs: from the first to the last call of a capture. "
            "Loading kernels: calls of 5 ms or more on an idle device before the first run of a kernel, calls that "
            "load modules, and loading that the driver records. Trying out convolutions: convolutions that time "
            "kernels with events. Overlapping time counts once."
        ),
        "error, warning, note": (
            "Error: numbers are wrong or missing. Warning: numbers may be wrong. Note: background for reading them."
        ),
        "gain": (
            "The time that an unprofiled step could save. 'About' is an estimate of advice that was measured to help. "
            "'At most' is an upper bound: the whole time that the advice is about. Overhead of recording is "
            "subtracted, by the number of recorded slices. No gain is larger than the unprofiled step. Gains of "
            "several findings overlap and do not add up."
        ),
        "accounted for": (
            "The percentage of the step that is covered by a named part or by work of a device. If it is below 80%, "
            "the rest is a finding of its own, because rules check only named time."
        ),
    },
}
