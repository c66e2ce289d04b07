from __future__ import annotations

import re
from typing import Final

_MARKS: Final = (
    (
        "TensorFlow's or JAX's profiler",
        rb'"highres-ticks"|"hlo_(?:op|module)"|"tf_op"|/job:localhost|"/(?:host|device):\w+|tf_Compute|TfOp|XLA Ops',
    ),
    ("rocprof", rb'"(?:BeginNs|DurationNs)"|CPU H(?:IP|SA) API|"(?:hip|hsa) api"|rocprof|"COPY"\s*\}'),
    ("VizTracer", rb"viztracer|\"FEE\""),
    ("ONNX Runtime", rb'model_loading_(?:uri|array|from)|"session_initialization"|SequentialExecutor|_kernel_time"'),
    ("py-spy", rb"py-spy"),
    ("Clang's -ftime-trace", rb'"Total (?:ExecuteCompiler|Frontend)"|ExecuteCompiler'),
    ("a browser", rb'"(?:devtools\.timeline|blink|v8|disabled-by-default[^"]*)[",]|Cr(?:Browser|Renderer|GpuMain)'),
    ("Nsight Systems", rb"nsys|\"NVTX_|cuda_api_call"),
)


_ARCHIVES: Final = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"7z\xbc\xaf": "7z",
    b"\x04\x22\x4d\x18": "lz4",
}


def archive(head: bytes | bytearray) -> str | None:
    """Return the format of an archive other than gzip, or None."""
    return next((name for magic, name in _ARCHIVES.items() if head.startswith(magic)), None)


def written_by(sample: bytes) -> str | None:
    return next((name for name, mark in _MARKS if re.search(mark, sample)), None)


def refusal(path: str, sample: bytes) -> str:
    program = written_by(sample)
    origin = f"it is a trace of {program}" if program else "its format is unknown"
    return f"{path} contains no PyTorch event: {origin}; perfhooks reads traces of torch.profiler"
