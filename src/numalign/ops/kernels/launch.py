"""The kernels as implementations of the operators, by the names under which :mod:`numalign.ops._path` asks for them."""

from numalign.ops.kernels.launch_index import (
    divisor_of,
    index_ahead,
    index_backward,
    index_forward,
    index_settle,
    memory_of,
)
from numalign.ops.kernels.launch_nll import nll_backward, nll_forward, nll_total_weight
from numalign.ops.kernels.launch_soft import soft_backward, soft_backward_target, soft_forward

__all__ = [
    "divisor_of",
    "index_ahead",
    "index_backward",
    "index_forward",
    "index_settle",
    "memory_of",
    "nll_backward",
    "nll_forward",
    "nll_total_weight",
    "soft_backward",
    "soft_backward_target",
    "soft_forward",
]
