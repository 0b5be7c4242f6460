"""The native code of the CPU: as other processors have it, and how it is compiled, kept, and done without."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import numalign
from numalign.ops import _native
from ops import loss_reference as reference

# Levels of the x86-64 psABI, and a feature that tells a processor has the level: vectors of 4 and neither fused products nor
# conversions of fp16, of 8 with both, of 16.
LEVELS = {"x86-64": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx512vl"}
DTYPES = [torch.float16, torch.bfloat16, torch.float32]

pytestmark = [pytest.mark.native, pytest.mark.skipif(_native._compiler() is None, reason="no C compiler")]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, and a function that is not loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_native, "function", lru_cache(maxsize=1)(_native.function.__wrapped__))
    return tmp_path / "numalign"


def check(
    x: Tensor, target: Tensor, *, incoming: float = 1.0, loss_dtype: torch.dtype | None = None, **options: Any
) -> None:
    """Loss and gradient against fp64."""
    x = x.detach().requires_grad_()
    loss = numalign.cross_entropy(x, target, out_dtype=loss_dtype, **options)
    assert "GradientAhead" in type(loss.grad_fn).__name__
    (grad,) = torch.autograd.grad(loss, x, torch.tensor(incoming, dtype=loss.dtype))
    exact = reference.cross_entropy(x, target, incoming=incoming, **options)
    reference.check_loss(loss, exact, loss.dtype)
    reference.check_grad(grad, exact, x.dtype)


def problems() -> list[tuple[Tensor, Tensor, dict[str, Any]]]:
    """Every way of reading and writing: images, volumes, classes innermost, gaps, short axes, long rows, one sample."""
    torch.manual_seed(0)
    image, labels = torch.randn(2, 21, 33, 19) * 4, torch.randint(0, 21, (2, 33, 19))
    rows = torch.randn(5, 3000) * 4
    return [
        (image, labels, {}),
        (image.contiguous(memory_format=torch.channels_last), labels, {"ignore_index": 3}),
        (torch.cat([image, image], -1)[..., :19], labels, {"weight": torch.rand(21) + 0.5}),
        (image.transpose(2, 3), labels.transpose(1, 2), {"reduction": "sum"}),
        (image[..., ::3], labels[..., ::3], {}),
        (torch.randn(700, 5, 3), torch.randint(0, 5, (700, 3)), {}),
        (torch.randn(3, 400, 37), torch.randint(0, 400, (3, 37)), {}),
        (rows, torch.randint(0, 3000, (5,)), {}),
        (torch.cat([rows, rows], 1)[:, ::2], torch.randint(0, 3000, (5,)), {}),
        (torch.randn(40, 64), torch.randint(0, 64, (40,)), {"weight": torch.rand(64), "ignore_index": 7}),
        (torch.randn(9), torch.tensor(4), {}),
        (torch.randn(1, 2, 40000), torch.randint(0, 2, (1, 40000)), {}),
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_processors_with_other_vectors(level: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if LEVELS[level] not in _native._features().split():
        pytest.skip(f"this processor is none of {level}")
    monkeypatch.setattr(_native, "_OPTIONS", [o.replace("native", level) for o in _native._OPTIONS])
    for dtype in DTYPES:
        for x, target, options in problems():
            check(x.to(dtype), target, **options)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_number(level: str, dtype: torch.dtype, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As logits, as vectors and one by one. The gradients take all sizes from the smallest subnormal number on."""
    if LEVELS[level] not in _native._features().split():
        pytest.skip(f"this processor is none of {level}")
    monkeypatch.setattr(_native, "_OPTIONS", [o.replace("native", level) for o in _native._OPTIONS])
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    # Neither nan, nor so large that the sum of the losses overflows.
    numbers = numbers[numbers.float().abs() <= 2.0**60]
    logits = torch.stack([numbers, torch.zeros_like(numbers), torch.full_like(numbers, -20.0)], 1)
    target = torch.arange(len(numbers)) % 3
    for x in (logits, logits.T.contiguous().T):
        for incoming in (1.0, 2.0**-10, 2.0**-24):
            check(x, target, incoming=incoming, loss_dtype=torch.float32, reduction="sum")


def test_nothing_undefined_is_done(tmp_path: Path) -> None:
    """The compiler's own check of bounds, shifts, overflows and alignment, which ends the process with a signal."""
    script = f"""
import sys
sys.path[:0] = {[p for p in sys.path if p]!r}
from numalign.ops import _native
from ops.test_native import DTYPES, check, problems
_native._OPTIONS = [*_native._OPTIONS, "-fsanitize=undefined,bounds-strict", "-fsanitize-undefined-trap-on-error"]
for dtype in DTYPES:
    for x, target, options in problems():
        check(x.to(dtype), target, **options)
print("done")
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    if "fsanitize" in run.stderr:
        pytest.skip("the compiler cannot check itself")
    assert run.stdout == "done\n", run.stderr


def test_it_is_compiled_once(folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        libraries = list(pool.map(_native._load, [["cc"]] * 2))
    assert all(hasattr(library, "numalign_cross_entropy") for library in libraries)
    (path,) = folder.iterdir()
    before = path.stat()
    assert _native.function() is not None
    (path,) = folder.iterdir()
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino


def test_a_cache_folder_that_cannot_be(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder.write_text("in the way")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    check(torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))
    assert folder.read_text() == "in the way"
    assert not list(temporary.iterdir())


def test_a_library_that_was_spoiled(folder: Path) -> None:
    assert _native.function() is not None
    (path,) = folder.iterdir()
    path.unlink()  # and not overwritten: this process has it mapped
    path.write_bytes(b"")
    _native.function.cache_clear()
    check(torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize(("compiler", "told"), [("", False), ("no-such-compiler", False), ("false --flag", True)])
def test_without_a_compiler(compiler: str, told: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks do the same. Nothing is said unless a compiler is there and fails, and then once."""
    monkeypatch.setenv("CC", compiler)
    x, target = torch.randn(4, 5, 6, requires_grad=True), torch.randint(0, 5, (4, 6))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            loss = numalign.cross_entropy(x, target)
    assert [("could not compile" in str(w.message), compiler in str(w.message)) for w in said] == [(True, True)] * told
    exact = reference.cross_entropy(x, target)
    reference.check_loss(loss, exact, torch.float32)
    reference.check_grad(torch.autograd.grad(loss, x)[0], exact, torch.float32)


def test_options_of_the_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -g")
    check(torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))
    assert len(list(folder.iterdir())) == 1


class Losses(torch.utils.data.Dataset[float]):
    """Each item is a loss that is large enough for threads."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        torch.manual_seed(index)
        return float(numalign.cross_entropy(torch.randn(200, 300), torch.randint(0, 300, (200,))))


def test_in_processes_that_were_forked() -> None:
    here = [Losses()[i] for i in range(2)]
    loader = torch.utils.data.DataLoader(
        Losses(), batch_size=1, num_workers=1, multiprocessing_context="fork", timeout=60
    )
    assert [float(batch) for batch in loader] == here


def test_values_that_are_not_in_memory() -> None:
    """A negative view and a tensor of zeros without memory are read as what they stand for."""
    torch.manual_seed(0)
    complex_numbers = torch.randn(4, 5, dtype=torch.complex64)
    negated, target = complex_numbers.conj().imag, torch.tensor([0, 1, 2, 3])
    assert negated.is_neg()
    check(negated, target)
    assert torch.equal(numalign.cross_entropy(negated, target), numalign.cross_entropy(negated.resolve_neg(), target))
    nothing = torch._efficientzerotensor((4, 5))
    assert torch.equal(numalign.cross_entropy(nothing, target), numalign.cross_entropy(torch.zeros(4, 5), target))
