"""The cross-entropy of class indices on the CPU as one function in C, compiled for this processor when it is first asked for.

PyTorch's operators take a small input longer to start than to work through, and each passes through memory once. Where there
is no C compiler the general path of :mod:`numalign.ops._index_loss` does the same with them.

The library lies in a cache folder of the user's, under a name made of all that decides what is in it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numalign.ops._elements import read_classes
from numalign.ops._layout import BLOCK_CLASSES, class_axis, merge
from numalign.ops._reduction import MEAN, NONE

_SOURCE = Path(__file__).with_name("native.c")
# No option that lets the compiler change the order of sums or forget about nan. Fused products are welcome.
_OPTIONS = ["-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC"]
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 120

# As native.c has them.
_MAX_AXES = 64
_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_MEAN, _EMPTY_IS_ZERO, _DIVISOR_IS_GIVEN = 1, 2, 4
_DONE, _CLASS_OUT_OF_RANGE = 0, 1


_NUMBERS = ("axes", "elements", "classes", "logits_class_stride", "grad_class_stride")
_PER_AXIS = ("sizes", "logits", "grad", "target")


class _Layout(ctypes.Structure):
    _fields_ = [  # read by ctypes
        *[(name, ctypes.c_int64) for name in _NUMBERS],
        *[(name, ctypes.c_int64 * _MAX_AXES) for name in _PER_AXIS],
    ]


def covers(logits: Tensor, reduction: int, smoothing: float) -> bool:
    """Whether this module does it: not single losses, smoothed ones, fp64, other devices, or where nothing can be compiled."""
    return (
        logits.is_cpu
        and smoothing == 0
        and reduction != NONE
        and logits.dtype in _DTYPES
        and 0 < logits.size(class_axis(logits)) <= BLOCK_CLASSES
        and function() is not None
    )


def loss_and_gradient(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    empty_is_zero: bool,
    incoming: float | None,
    out_dtype: torch.dtype,
) -> tuple[Tensor, float, Tensor | None]:
    """The loss in ``out_dtype``, the divisor of a mean, and the gradient unless ``incoming`` is None.

    Raises:
        IndexError: a class that is neither ignored nor in 0 .. C - 1.
        MemoryError: not even the work area could be had.
    """
    options = (_MEAN if reduction == MEAN else 0) | (_EMPTY_IS_ZERO if empty_is_zero else 0)
    result = None if incoming is None else torch.empty_like(logits)
    loss, divisor = _call(logits, result, target, weight, ignore_index, options, incoming or 0.0, 0.0)
    return scalar(loss, out_dtype), divisor, result


def gradient(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    divisor: Tensor,
    reduction: int,
    ignore_index: int,
) -> Tensor:
    """What :func:`loss_and_gradient` returns for the incoming gradient ``grad``, 0-D."""
    options = _DIVISOR_IS_GIVEN | (_MEAN if reduction == MEAN else 0)
    result = torch.empty_like(logits)
    _call(logits, result, target, weight, ignore_index, options, grad.item(), divisor.item())
    return result


def scalar(value: float, dtype: torch.dtype) -> Tensor:
    """0-D, rounded. What ``torch.scalar_tensor`` might find too large for the type goes by way of fp64."""
    if abs(value) <= 2.0**15:
        return torch.scalar_tensor(value, dtype=dtype, device="cpu")
    return torch.scalar_tensor(value, dtype=torch.float64, device="cpu").to(dtype)


def _call(
    logits: Tensor,
    result: Tensor | None,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    options: int,
    incoming: float,
    divisor: float,
) -> tuple[float, float]:
    """The loss and its divisor; the gradient into ``result``, if there is one."""
    call: Any = function()
    if logits.is_neg() or logits._is_zerotensor():
        logits = torch.empty_like(logits).copy_(logits)  # such a tensor's memory does not hold its values
    if target.dtype != torch.int64:
        target = target.to(torch.int64)
    if weight is not None:
        weight = weight.resolve_neg().to(torch.float32).contiguous()
    layout = _layout(logits.shape, logits.stride(), (logits if result is None else result).stride(), target.stride())
    numbers = (ctypes.c_double * 2)(0.0, divisor)
    outcome = call(
        layout,
        logits.data_ptr(),
        None if result is None else result.data_ptr(),
        target.data_ptr(),
        None if weight is None else weight.data_ptr(),
        ignore_index,
        _DTYPES[logits.dtype],
        options,
        incoming,
        numbers,
        torch.get_num_threads(),
        *_team(),
    )
    if outcome == _CLASS_OUT_OF_RANGE:
        read_classes(target, logits.shape[class_axis(logits)], ignore_index, (logits.shape, target.shape))
    if outcome != _DONE:
        raise MemoryError(f"no memory for the work area of a cross-entropy of logits of shape {list(logits.shape)}")
    return numbers[0], numbers[1]


@lru_cache(maxsize=256)
def _layout(
    shape: torch.Size, logits: tuple[int, ...], grad: tuple[int, ...], target: tuple[int, ...]
) -> ctypes.Array[Any]:
    """Where everything lies, from the strides: element axes as the logits lie in memory, merged where all strides allow."""
    axis = 0 if len(shape) == 1 else 1
    by_class = [s[:axis] + s[axis + 1 :] for s in (logits, grad)]
    elements = tuple(shape[:axis]) + tuple(shape[axis + 1 :])
    # An unbatched sample may come with a target of shape (1).
    sizes, strides = merge(elements, (*by_class, target if len(target) == len(elements) else (1,) * len(elements)))
    layout = _Layout(len(sizes), torch.Size(elements).numel(), shape[axis], logits[axis], grad[axis])
    for name, values in zip(_PER_AXIS, (sizes, *strides), strict=True):
        getattr(layout, name)[: len(sizes)] = values
    return (_Layout * 1)(layout)


@lru_cache(maxsize=1)
def _team() -> tuple[int | None, int | None, int | None]:
    """How to have OpenMP's threads do something, and how they are numbered and counted; or nothing, for one thread."""
    here = ctypes.CDLL(None)
    try:
        addresses = [
            ctypes.cast(getattr(here, name), ctypes.c_void_p).value
            for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        ]
    except AttributeError:
        return None, None, None
    return addresses[0], addresses[1], addresses[2]


@lru_cache(maxsize=1)
def function() -> Callable[..., int] | None:
    """The function in C, or None where it cannot be had."""
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        call = _load(compiler).numalign_cross_entropy
    except (OSError, subprocess.SubprocessError) as error:
        details = getattr(error, "stderr", None) or str(error)
        warnings.warn(
            f"numalign could not compile its CPU kernel with {shlex.join(compiler)} and does without it, more slowly. Set CC to "
            f"another compiler, or to nothing to do without. It said: {details.strip()[-500:]}",
            stacklevel=2,
        )
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    call.restype = integer
    call.argtypes = [
        *[pointer] * 5,  # layout, logits, grad, target, weight
        ctypes.c_int64,  # ignore_index
        *[integer] * 2,  # dtype, options
        ctypes.c_double,  # incoming
        pointer,  # result
        integer,  # threads
        *[pointer] * 3,  # OpenMP's functions
    ]
    return call


def _compiler() -> list[str] | None:
    """The command of a compiler that is there: what CC says, if it is set."""
    commands = [shlex.split(os.environ["CC"])] if "CC" in os.environ else [[name] for name in _COMPILERS]
    return next((command for command in commands if command and shutil.which(command[0])), None)


def _load(compiler: list[str]) -> ctypes.CDLL:
    """The compiled library: what lies in the cache, or made anew, and kept there if that can be."""
    try:
        folder = _cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"cross_entropy-{_digest(compiler)}.so"
        if not path.exists():
            _compile(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError):  # no home, no room, not allowed to write or to run what was written
        with tempfile.TemporaryDirectory(prefix="numalign-") as elsewhere:
            path = Path(elsewhere) / "cross_entropy.so"
            _compile(compiler, path)
            return ctypes.CDLL(str(path))


def _compile(compiler: list[str], path: Path) -> None:
    """Compile beside the place where the library is to lie and move it there, so that nobody finds half of it."""
    handle, draft = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        command = [*compiler, *_OPTIONS, str(_SOURCE), "-o", draft, "-lm"]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _digest(compiler: list[str]) -> str:
    """Names the source, the compiler, its options, and the processor."""
    program = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    facts = program.stat()
    content = hashlib.sha256(_SOURCE.read_bytes())
    content.update(
        repr(
            (compiler, str(program), facts.st_mtime_ns, facts.st_size, _OPTIONS, platform.machine(), _features())
        ).encode()
    )
    return content.hexdigest()[:16]


def _features() -> str:
    """What instructions this processor has, as Linux lists them, or its name elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numalign"
