"""Compile, for a GPU that need not be there, what a few calls of the losses would launch: Triton's interpreter takes what its
compiler refuses. Prints the number of compiled kernels. Run as a program of its own, with the interpreter off.

    python tests/ops/compile_kernels.py
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

import numalign
from numalign.ops import _path

TARGET = GPUTarget("cuda", 90, 32)
compiled: set[str] = set()


def signature_of(value: Any) -> tuple[Any, dict[tuple[int, ...], Any]]:
    """The type of an argument as a launch would specialise it, and the constants inside."""
    if isinstance(value, tuple):
        types = [signature_of(v)[0] for v in value]
        return tuple(types), {(i,): v for i, (v, t) in enumerate(zip(value, types, strict=True)) if t == "constexpr"}
    if value is None or (isinstance(value, int) and value == 1):
        return "constexpr", {(): value}
    return mangle_type(value), {}


def compile_instead(function: Any) -> Any:
    """What ``function.run`` does, short of the launch."""

    def run(*arguments: Any, grid: Any, warmup: bool, num_warps: int = 4, **options: Any) -> None:
        fusion = options.pop("enable_fp_fusion")
        bound = {**dict(zip(function.arg_names, arguments, strict=False)), **options}
        fixed = {p.name for p in function.params if p.is_constexpr}
        signature: dict[str, Any] = {}
        constants: dict[tuple[int, ...], Any] = {}
        aligned = {}
        for i, name in enumerate(function.arg_names):
            value = bound[name]
            if name in fixed:
                signature[name], constants[i,] = "constexpr", value
                continue
            signature[name], inner = signature_of(value)
            constants |= {(i, *at): v for at, v in inner.items()}
            if isinstance(value, torch.Tensor):
                aligned[i,] = [["tt.divisibility", 16]]
        key = repr((function.__name__, signature, constants, num_warps))
        if key not in compiled:
            source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)
            triton.compile(source, target=TARGET, options={"num_warps": num_warps, "enable_fp_fusion": fusion})
            compiled.add(key)

    return run


def step(x: torch.Tensor, target: torch.Tensor, **options: Any) -> None:
    z = x.detach().requires_grad_()
    loss = numalign.cross_entropy(z, target, **options)
    loss.backward(torch.ones_like(loss))


def main() -> None:
    _path.kernel_devices.add("cpu")
    from numalign.ops.kernels import launch_index, launch_nll, launch_soft, plan

    for owner, names in (
        (launch_index, ("strided", "packed", "rows", "long_rows")),
        (launch_nll, ("picked", "put_back")),
        (launch_soft, ("soft",)),
        (plan, ("prepare", "finish")),
    ):
        for name in names:
            function = getattr(owner, name)
            function.run = compile_instead(function)
    # Classes in registers and not, innermost and not, in vectors, in rows that fit and that do not; one to four element axes.
    for shape, order, dtype in (
        ((2, 3, 4, 6), (0, 1, 2, 3), torch.float16),
        ((2, 40, 4, 6), (0, 1, 2, 3), torch.float64),
        ((3, 3, 4, 6, 7), (0, 1, 3, 2, 4), torch.float32),
        ((2, 4, 6, 3), (0, 3, 1, 2), torch.float16),
        ((6, 70), (0, 1), torch.float32),
        ((2, 5000), (0, 1), torch.float16),
    ):
        x = torch.zeros(shape, dtype=dtype).permute(order)
        target = torch.zeros((x.shape[0], *x.shape[2:]), dtype=torch.int64)
        step(x, target)
        step(x, target, weight=torch.ones(x.shape[1]), label_smoothing=0.1, reduction="none")
        step(x, x.softmax(1))
        numalign.nll_loss(x.detach().requires_grad_(), target).backward()
    sys.stdout.write(f"{len(compiled)}\n")


if __name__ == "__main__":
    main()
