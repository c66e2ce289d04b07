"""Whose line a frame is: the one definition of the user's code for findings, synchronisations, memory and flame graphs.

The recorder cuts the folders of ``sys.path`` off file names: ``lightning/pytorch/x.py`` lies where packages are
installed, ``models/net.py`` beside the user's script, and the name does not tell them apart. So the worker looks up
the first part of each name on the machine that recorded, and the capture keeps what it found (see
`perfhooks.run.installation`). Where nobody looked, as for traces that others recorded, names of the standard library
and of well-known packages are what they usually are, and everything else is the user's.
"""

from __future__ import annotations

import enum
import re
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.once import once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags


class Origin(str, enum.Enum):
    """Where the code of a frame comes from."""

    USER = "user"
    INSTALLED = "installed"
    """An installed package, of any environment; a package in editable mode is the user's if it is not well known."""
    STANDARD = "standard"
    """The standard library."""
    TORCH = "torch"
    """torch, and the code that it generates."""
    PERFHOOKS = "perfhooks"
    """perfhooks and its integrations."""
    NO_SOURCE = "no source"
    """No line of Python: a function written in C, a module's name, an operator."""


Owners: TypeAlias = tuple[tuple[str, str], ...]
"""The first parts of file names (``lightning``, ``train.py``) or whole absolute names, and the `Origin` of each."""

PREFERENCE: Final = ((Origin.USER,), (Origin.INSTALLED,), (Origin.TORCH, Origin.STANDARD))
"""Whose lines are named: what `spoken` takes; never our own."""

KNOWN: Final = frozenset(
    (
        *("torchvision", "torchaudio", "torchtext", "torchmetrics", "torchdata", "torchao", "ignite"),
        *("lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "jsonargparse"),
        *("mmengine", "mmcv", "mmdet", "mmpretrain", "mmseg", "transformers", "accelerate", "datasets", "peft", "trl"),
        *("tokenizers", "safetensors", "evaluate", "diffusers", "deepspeed", "megatron", "transformer_engine"),
        *("timm", "apex", "xformers", "flash_attn", "vllm", "sglang", "einops", "composer", "torchrec", "fbgemm_gpu"),
        *("numpy", "scipy", "pandas", "polars", "pyarrow", "sklearn", "PIL", "cv2", "albumentations", "skimage"),
        *("tqdm", "rich", "tensorboard", "tensorboardX", "wandb", "mlflow", "hydra", "omegaconf", "yaml", "requests"),
        *("fsspec", "huggingface_hub", "filelock", "typing_extensions", "six.py", "decorator.py", "packaging", "click"),
        *("IPython", "ipykernel", "tornado", "zmq", "nest_asyncio.py", "debugpy", "_pytest", "pytest", "pluggy"),
    )
)
"""Packages that nobody profiles as their own, for traces of which nobody looked up whose they are."""

_TORCH: Final = frozenset(("torch", "functorch", "torchgen", "triton"))
_PLACE: Final = re.compile(r"(?P<file><[^>]*>[.\d]*|.+\.py\w?)\(\d+\): ")
_STARTS: Final = re.compile(r"torch/(?:autograd/profiler|profiler/profiler)\.py\(\d+\): _?start_trace$")
"""What begins a recording."""
_DEEPEST: Final = 1000
"""Frames between the outermost one and that."""
_INSTALLED: Final = re.compile(r"/(?:site-packages|dist-packages)/(?P<rest>.+)")
_STANDARD: Final = re.compile(r"/(?:lib/)?python3(?:\.\d+)?/(?!(?:site|dist)-packages/)|\.zip/")
# what torch.compile writes may lie below a folder of sys.path, which the recorder cuts off, or in a cache of any name
_GENERATED: Final = re.compile(
    r"(?:^|/)torchinductor_|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{51}\.py$|^<eval_with_key>|(?:^|/)\.triton/"
)
_GENERATORS: Final = ("torchinductor_", "<eval_with_key>", ".triton/")
_HASHED: Final = 55  # letters in the name of a file that is called by what is in it
_OURS: Final = re.compile(r"perfhooks(?:_\w+)?$")
_OUR_FILES: Final = re.compile(r"/(?:perfhooks|integrations/perfhooks_\w+)/(?!examples/|tests/|benchmarks/)[\w/]+\.py$")


def first_part(name: str) -> str | None:
    """The first part of the file of a frame, which decides whose it is; None where it has no such part.

    Args:
        name: the name of a frame: ``lightning/pytorch/x.py(12): f`` has ``lightning``, ``train.py(3): f`` ``train.py``.
    """
    file = file_of(name)
    return None if file is None else _first_part(file)


def _first_part(file: str) -> str | None:
    return None if file.startswith(("/", "<")) or file[1:2] == ":" else file.partition("/")[0]


def file_of(name: str) -> str | None:
    """The file of a frame as the recorder names it, with slashes; None where the frame is no line of Python."""
    place = _PLACE.match(name)
    return place["file"].replace("\\", "/") if place else None


def origin(name: str, owners: Mapping[str, str] | None = None) -> Origin:
    """Say whose line a frame is.

    Args:
        name: the name of a frame, as ``with_stack`` records it.
        owners: what the machine that recorded knew of first parts; None where nobody looked.
    """
    file = file_of(name)
    if file is None:
        return Origin.NO_SOURCE
    if _is_generated(file):
        return Origin.TORCH
    first = _first_part(file)
    if first is None:
        found = _of_absolute(file)
        return Origin(owners[file]) if found is Origin.USER and owners and file in owners else found
    return _of_first(first, owners or {})


def _is_generated(file: str) -> bool:
    """Whether torch.compile wrote it; the expression is slow for long names, and of hardly any it need be asked."""
    may_be = len(file.rpartition("/")[2]) == _HASHED or any(word in file for word in _GENERATORS)
    return may_be and _GENERATED.search(file) is not None


def _of_absolute(file: str) -> Origin:
    """Of a file that does not lie below ``sys.path``, or has no name: what a cell of a notebook runs is the user's."""
    if file.startswith("<"):
        return Origin.USER if file.startswith("<ipython") else Origin.STANDARD
    installed = _INSTALLED.search(file)
    if installed:
        found = _of_first(installed["rest"].partition("/")[0], {})
        return found if found in (Origin.TORCH, Origin.PERFHOOKS) else Origin.INSTALLED
    if _OUR_FILES.search(file):
        return Origin.PERFHOOKS
    return Origin.STANDARD if _STANDARD.search(file) else Origin.USER


def _of_first(first: str, owners: Mapping[str, str]) -> Origin:
    if first in _TORCH:
        return Origin.TORCH
    if _OURS.match(first):
        return Origin.PERFHOOKS
    if first in owners:
        return Origin(owners[first])
    if first.removesuffix(".py") in sys.stdlib_module_names:
        return Origin.STANDARD
    return Origin.INSTALLED if first in KNOWN else Origin.USER


def lines(trace: Trace, rows: Ints, owners: Owners = (), *, otherwise: bool = False) -> list[str | None]:
    """The innermost line of the user around each slice of the host; None where there is none, or no slice (-1).

    Where that line runs inside of an installed package, the line of the package in which it does is named as well
    (``train.py(5): main, in lightning/pytorch/x.py(7): fit``), and alone where no line of the user is on the stack.
    The line is the first one of the function; of those in which recording began it is not known
    (``train.py: main``).

    Args:
        trace: any trace; without Python frames there are no lines.
        rows: slices of the host, in any order, or -1.
        owners: what the machine that recorded knew.
        otherwise: name any other innermost line but our own where there is neither.
    """
    around = [_around(trace, rows, each, owners).tolist() for each in PREFERENCE[: 3 if otherwise else 2]]
    return [spoken(trace, *each) for each in zip(*around, strict=True)]


def of_rows(trace: Trace, rows: Ints, owners: Owners = ()) -> tuple[list[str], Ints]:
    """The same for many slices: the distinct lines, and for each slice the place of its line among them, or -1."""
    return _numbered(trace, *(_around(trace, rows, each, owners) for each in PREFERENCE[:2]))


def at_rows(trace: Trace, rows: Ints, owners: Owners = ()) -> tuple[list[str], Ints]:
    """The same of what runs itself: a frame is its own line, and where neither user nor library has one, anybody's is.

    Args:
        trace: any trace; without Python frames there are no lines.
        rows: slices of the host, in any order, or -1.
        owners: what the machine that recorded knew.
    """
    from perfhooks.trace.nesting import host, slices  # a training needs the names alone

    tree = host.tree(trace)
    names, parent = trace.name[tree.row], tree.nesting.parent
    found = [slices.nearest(parent, tree.entry[rows], names_of(trace, each, owners)[names]) for each in PREFERENCE]
    return _numbered(trace, *(np.append(tree.row, -1)[each] for each in found))


def _numbered(trace: Trace, user: Ints, library: Ints, other: Ints | None = None) -> tuple[list[str], Ints]:
    """What is spoken of the frames of some slices, each text once, and for each slice the place of its text, or -1."""
    names = np.append(trace.name, -1).astype(np.int64) + 1
    begun = np.fromiter(begun_in(trace), np.int64)
    names[begun] += len(trace.names)  # of the same name another may have a line of its own
    other = np.full(len(user), -1) if other is None else np.where((user < 0) & (library < 0), other, -1)
    # what is said of some frames depends on their names, and on which of them is the inner one: one number for it
    said = 2 * (names[user] * (2 * len(trace.names) + 1) + names[library]) + (library > user)
    said = np.where(other >= 0, -names[other], said)
    _, first, place = np.unique(said, return_index=True, return_inverse=True)
    frames = zip(user[first].tolist(), library[first].tolist(), other[first].tolist(), strict=True)
    texts = [spoken(trace, *each) for each in frames]
    known = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text))}
    numbers = np.array([known.get(text or "", -1) for text in texts] or [-1], np.int64)
    return list(known), numbers[place]


def spoken(trace: Trace, user: int, library: int, other: int = -1) -> str | None:
    """What `lines` says of the innermost frames of the user, of a library and of anybody else; slices, or -1."""
    line, inner = _place(trace, user), _place(trace, library)
    if line is None and inner is None:
        return _place(trace, other)
    # of two slices around the same one, the inner is the later
    return f"{line}, in {inner}" if line and library > user else line or inner


def _place(trace: Trace, frame: int) -> str | None:
    """The name of a frame, without the number of its line where that is none of its own."""
    name = trace.name_of(frame)
    place = _PLACE.match(name) if name is not None and frame in begun_in(trace) else None
    return name if place is None else f"{place['file']}: {place.string[place.end() :]}"


@once
def begun_in(trace: Trace) -> frozenset[int]:
    """The frames in which recording began.

    The recorder writes those that are open then one after the other, from the outermost to its own, and each with the
    line that runs: as a place to look at, the line in which a step ends is innocent. Any other has its first line.
    """
    from perfhooks.trace.nesting import host  # as above

    tree = host.tree(trace)
    frames = np.flatnonzero(trace.kind[tree.row] == Kind.PYTHON)
    _, first = np.unique(tree.thread[frames], return_index=True)
    found: set[int] = set()
    for begin in first.tolist():
        chain: list[int] = []
        for entry in frames[begin : begin + _DEEPEST].tolist():
            row = int(tree.row[entry])
            if chain and trace.start[row] >= trace.end[chain[-1]]:
                break
            if _STARTS.search(trace.names[trace.name[row]]):
                found.update(chain)
                break
            chain.append(row)
    return frozenset(found)


def _around(trace: Trace, rows: Ints, origins: tuple[Origin, ...], owners: Owners) -> Ints:
    """The innermost frame of some origins around each slice, or -1."""
    from perfhooks.trace.nesting import device  # as above

    frames = trace.rows(Kind.PYTHON)
    frames = frames[names_of(trace, origins, owners)[trace.name[frames]]]
    found = np.full(len(rows), -1, np.int64)
    known = np.flatnonzero(rows >= 0)
    if len(frames) and len(known):
        found[known] = device.holders(trace, rows[known], frames)
    return found


@once
def names_of(trace: Trace, origins: tuple[Origin, ...], owners: Owners = ()) -> Flags:
    """Which of `Trace.names` are lines of one of these origins; at least one value.

    Args:
        trace: any trace.
        origins: those that are wanted.
        owners: what the machine that recorded knew.
    """
    return np.array([each in origins for each in _origins(trace, owners)] or [False], np.bool_)


@once
def _origins(trace: Trace, owners: Owners) -> list[Origin]:
    known = dict(owners)
    return [origin(name, known) for name in trace.names]
