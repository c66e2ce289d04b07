"""Kernels that communicate are told by the table of libraries, and by what the user adds to it."""

from __future__ import annotations

import re

import polars as pl
import pytest

from perfhooks import OptionError, Profiler, testing
from perfhooks.cli.actions import show
from perfhooks.core.options import DEFAULTS, check_options
from perfhooks.report.finishing.finish import finish
from perfhooks.run.capture import Capture, Place
from perfhooks.run.publishing import publish_json
from perfhooks.testing import kernel, step_mark
from perfhooks.trace import read
from perfhooks.trace.names.communication import LIBRARIES, library
from perfhooks.trace.tables import collectives, kernels

# as they stand in recorded traces, or in the source that the table names
COMMUNICATE = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("nccl", "all_reduce"),
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)": ("nccl", "broadcast"),
    "rcclGenericKernel": ("rccl", None),
    "hcom_allReduce__503_0_1": ("hccl", "all_reduce"),
    "allgatherAicpuKernel": ("hccl", "all_gather"),
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": ("deep_ep", "all_to_all"),
    "void ep::internode_ll::combine<true, 3, 7168, 8>(void*)": ("deep_ep", "all_to_all"),
    "void dpsk::ep::internode::cached_notify<false>(int, int)": ("deep_ep", "all_to_all"),
    "void deep_ep::elastic::dispatch<8>(int4*)": ("deep_ep", "all_to_all"),
    "_ZN7deep_ep9internode8dispatchILb0ELi8EEEvP4int4": ("deep_ep", "all_to_all"),
    "void hybrid_ep::dispatch_kernel<unsigned short>": ("deep_ep", "all_to_all"),
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<WarpPolicy, 8>(int const*)": (
        *("moe_all_to_all", "all_to_all"),
    ),
    "EpCombineInterNodeV1Kernel_bf16": ("mori", "all_to_all"),
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": ("custom_all_reduce", "all_reduce"),
    "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)": ("custom_all_reduce", "all_reduce"),
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>": ("quickreduce", "all_reduce"),
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>": (
        *("allreduce_fusion", "all_reduce"),
    ),
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(AllReduceParams)": ("one_two_shot", "all_reduce"),
    "void tensorrt_llm::kernels::mnnvl::twoshotAllreduceKernel<4>(float*)": ("one_two_shot", "all_reduce"),
    "multimem_all_gather_kernel": ("symmetric_memory", "all_gather"),
    "void two_shot_all_reduce_kernel<float, 16>(float**)": ("symmetric_memory", "all_reduce"),
    "void c10d::symmetric_memory::multimem_reduce_scatter_kernel": ("symmetric_memory", "reduce_scatter"),
    "nvshmemi_proxy_rma_entrypoint(void*)": ("nvshmem", None),
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)": ("userbuffers", None),
    "kuserbuffers_pushsend(int*)": ("userbuffers", "send"),
    "void mscclpp::allreduce<float>(float*)": ("msccl", "all_reduce"),
    "oneccl_allreduce_pcie": ("oneccl", "all_reduce"),
}
COMPUTE = (
    *(
        "gemm",
        "synccl",
        "void at::native::vectorized_elementwise_kernel<4>",
        "void deep_ep::layout::get_dispatch_layout<9>",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>",
        "void hybrid_ep::scan<4>",
        "void cutlass::device_kernel<dpsk::ep::x>",
    ),
    *("void step::ep_kernel", "void cutlass::gemm<sleep::x>", "reduce_kernel<512, 1>"),
    *(
        "void cub::DeviceReduceKernel",
        "triton_red_fused__to_copy_add_0",
        "ampere_sgemm_128x64_tn",
        "void deepep_like::run",
    ),
)


@pytest.mark.parametrize("name", COMMUNICATE)
def test_a_kernel_of_a_library_communicates(name):
    found = library(name)
    assert found is not None
    assert found.name == COMMUNICATE[name][0]


@pytest.mark.parametrize("name", COMPUTE)
def test_a_kernel_that_computes_does_not(name):
    assert library(name) is None


def test_every_library_has_a_source_and_a_kernel_here():
    assert all(re.search(r"https://\S+", each.source) for each in LIBRARIES)
    untried = {each.name for each in LIBRARIES} - {name for name, _ in COMMUNICATE.values()}
    assert untried == {"xccl", "cncl", "mccl", "eccl"}, "those of vendors of whom no kernel's name was seen"


def test_collective_has_its_operation(tmp_path):
    events = [step_mark(0, 0, 10_000)]
    events += [kernel(1 + place, 100 * place, 100 * place + 50, name=name) for place, name in enumerate(COMMUNICATE)]
    found = collectives.table(read(testing.write_trace(tmp_path / "t.json", events)))
    assert dict(zip(found["name"], zip(found["backend"], found["operation"], strict=True), strict=True)) == COMMUNICATE


def test_a_user_can_name_more(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", [kernel(1, 0, 10, name="my_exchange_v2"), kernel(2, 20, 30)])
    assert set(kernels.table(read(path))["class"]) == {"compute"}
    classes = dict(kernels.table(read(path, communication="another|my_exchange")).select("name", "class").iter_rows())
    assert classes == {"my_exchange_v2": "communication", "gemm": "compute"}


def test_communication_option_is_stored_with_its_windows(tmp_path):
    """So the worker reads them with it, and so does whoever shows them later."""
    prof = Profiler(schedule="wait=9 warmup=1 active=1", out=tmp_path, communication="my_exchange")
    place = Place(tmp_path / "train-000002-000002")
    place.folder.mkdir()
    said = prof._course.windows.handover.options
    capture = Capture(first=2, last=2, reached=3, state="spooled", token="0a1b", options=said,
                      handlers=({"type": "steps"},))  # fmt: skip
    place.save(capture)
    testing.write_trace(place.saved_trace("0a1b"), [step_mark(2, 0, 100), kernel(1, 0, 10, name="my_exchange_v2")])
    publish_json(tmp_path / "run.json", {"format": 1})
    finish(place)
    assert pl.read_csv(place.artifact("steps.csv"))["comm_ms"].item() > 0


def test_communication_option_applies_to_shown_traces(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", [kernel(1, 0, 10, name="my_exchange_v2")])
    assert show.tables(str(path), ["kernels"], communication="exchange")["kernels"]["class"].item() == "communication"


@pytest.mark.parametrize("value", ["", "mine|", 7])
def test_invalid_parts_of_names_are_rejected(tmp_path, value):
    path = testing.write_trace(tmp_path / "t.json", [kernel(1, 0, 10)])
    with pytest.raises(OptionError, match="communication must be parts of kernel names"):
        read(path, communication=value)
    with pytest.raises(OptionError, match="communication must be parts of kernel names"):
        check_options({**DEFAULTS, "communication": value})
