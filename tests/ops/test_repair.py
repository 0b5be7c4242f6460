"""``repair()``: unchanged code is right while it is in force, and as before when it is not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import numalign
from numalign.errors import NotRepairedError
from numalign.ops import repaired_operators
from ops import loss_reference as reference

pytestmark = pytest.mark.large
SIDE = 256
DEVICE = torch.get_default_device().type


@pytest.fixture(scope="module")
def image() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(1, 21, SIDE, SIDE).half(), torch.randint(0, 21, (1, SIDE, SIDE))


@pytest.fixture(autouse=True)
def _leave_nothing_behind() -> Iterator[None]:
    yield
    with pytest.raises(NotRepairedError):
        numalign.unrepair()


def stock_is_wrong(image: tuple[Tensor, Tensor]) -> bool:
    return not torch.isfinite(F.cross_entropy(*image))


def is_right(loss: Tensor, x: Tensor, image: tuple[Tensor, Tensor], *, log_probabilities: bool = False) -> None:
    (grad,) = torch.autograd.grad(loss, x)
    exact = reference.cross_entropy(x, image[1], log_probabilities=log_probabilities)
    reference.check_loss(loss, exact, torch.float16)
    reference.check_grad(grad, exact, torch.float16)


def test_every_way_to_the_losses(image: tuple[Tensor, Tensor]) -> None:
    x = image[0].clone().requires_grad_()
    log_p = F.log_softmax(image[0].float(), 1).half().requires_grad_()
    rows = log_p.detach().movedim(1, -1).reshape(-1, 21).requires_grad_()
    target = image[1]
    assert stock_is_wrong(image)
    with numalign.repair():
        is_right(F.cross_entropy(x, target), x, image)
        is_right(nn.CrossEntropyLoss()(x, target), x, image)
        for loss in (
            F.nll_loss(log_p, target),
            nn.NLLLoss()(log_p, target),
            torch._C._nn.nll_loss2d(log_p, target, None, 1, -100),
            torch.ops.aten.nll_loss2d_forward(log_p, target, None, 1, -100)[0],
        ):
            is_right(loss, log_p, image, log_probabilities=True)
        flat = (rows, target.flatten())
        for loss in (F.nll_loss(*flat), torch.ops.aten.nll_loss_forward(*flat, None, 1, -100)[0]):
            is_right(loss, rows, flat, log_probabilities=True)
        assert torch.isfinite(F.cross_entropy(x.flatten(2), target.flatten(1)))
        with torch.inference_mode():
            assert torch.isfinite(F.cross_entropy(*image))
    assert stock_is_wrong(image)


def test_aten_schema_is_kept(image: tuple[Tensor, Tensor]) -> None:
    """The total weight comes back in the input's type, inf if need be, and the backward does not believe it."""
    x, target = image
    with numalign.repair():
        loss, total_weight = torch.ops.aten.nll_loss2d_forward(x, target, None, 1, -100)
        assert total_weight.dtype == loss.dtype == torch.float16
        assert torch.isinf(total_weight)
        one = torch.ones((), dtype=torch.float16)
        grad = torch.ops.aten.nll_loss2d_backward(one, x, target, None, 1, -100, total_weight)
    exact = reference.cross_entropy(x, target, log_probabilities=True)
    reference.check_grad(grad, exact, torch.float16)


def test_context_managers_nest(image: tuple[Tensor, Tensor]) -> None:
    with numalign.repair():
        with numalign.repair(DEVICE):
            assert not stock_is_wrong(image)
        assert not stock_is_wrong(image)
        with pytest.raises(KeyError), numalign.repair():
            raise KeyError
        assert not stock_is_wrong(image)
    assert stock_is_wrong(image)


def test_decorators(image: tuple[Tensor, Tensor]) -> None:
    @numalign.repair
    def plain() -> bool:
        return stock_is_wrong(image)

    @numalign.repair(DEVICE)
    def with_device() -> bool:
        return stock_is_wrong(image)

    assert stock_is_wrong(image)
    assert not plain()
    assert not with_device()
    assert stock_is_wrong(image)
    assert plain.__name__ == "plain"


def test_for_good_and_back(image: tuple[Tensor, Tensor]) -> None:
    numalign.repair()
    numalign.repair()
    assert not stock_is_wrong(image)
    numalign.unrepair()
    assert stock_is_wrong(image)
    with pytest.raises(NotRepairedError, match="repair"):
        numalign.unrepair(DEVICE)


def test_unrepair_inside_a_block(image: tuple[Tensor, Tensor]) -> None:
    with numalign.repair():
        numalign.unrepair()
        assert stock_is_wrong(image)
        numalign.repair()
    assert not stock_is_wrong(image)  # the second one was not the block's
    numalign.unrepair()


def test_other_devices_are_left_alone(image: tuple[Tensor, Tensor]) -> None:
    with numalign.repair("cuda" if DEVICE == "cpu" else "cpu"):
        assert stock_is_wrong(image)
        x, target = torch.randn(2, 3, 4), torch.randint(0, 4, (2, 3))
        torch.testing.assert_close(
            torch.func.vmap(F.cross_entropy)(x, target),
            torch.stack([F.cross_entropy(x[i], target[i]) for i in range(2)]),
        )


@pytest.mark.cpu
@pytest.mark.parametrize("device", ["toaster", "meta", "cpu:zero"])
def test_unknown_devices(device: str) -> None:
    with pytest.raises(RuntimeError, match=device.split(":", maxsplit=1)[0]):
        numalign.repair(device)


@pytest.mark.cpu
def test_operators_are_named() -> None:
    assert {"aten::cross_entropy_loss", "aten::nll_loss2d_forward", "aten::nll_loss2d_backward"} <= repaired_operators
    for name in repaired_operators:
        assert hasattr(torch.ops.aten, name.removeprefix("aten::"))


@pytest.mark.slow
@pytest.mark.cpu
def test_models_compiled_before(image: tuple[Tensor, Tensor]) -> None:
    x = image[0].clone().requires_grad_()
    log_p = F.log_softmax(image[0].float(), 1).half().requires_grad_()
    compiled = torch.compile(F.cross_entropy, fullgraph=True)
    compiled_nll = torch.compile(F.nll_loss, fullgraph=True)
    assert not torch.isfinite(compiled(x, image[1]))
    with numalign.repair():
        is_right(compiled(x, image[1]), x, image)
        is_right(compiled_nll(log_p, image[1]), log_p, image, log_probabilities=True)
        with torch.inference_mode():
            assert torch.isfinite(compiled(*image))
    assert not torch.isfinite(compiled(x, image[1]))


CACHED = """
import sys, torch, torch.nn.functional as F, numalign
torch.manual_seed(0)
x, t = torch.randn(1, 21, 256, 256).half().requires_grad_(), torch.randint(0, 21, (1, 256, 256))
if sys.argv[1] == "repaired":
    numalign.repair()
loss = torch.compile(lambda x, t: F.cross_entropy(x, t))(x, t)
loss.backward()
print(bool(torch.isfinite(loss)), bool(x.grad.abs().max() > 0))
"""


@pytest.mark.slow
@pytest.mark.cpu
def test_code_cached_on_disk_is_kept_apart(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    answers = {"stock": "False False", "repaired": "True True"}
    for kind in ("stock", "repaired", "stock"):
        run = subprocess.run(
            [sys.executable, "-c", CACHED, kind], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == answers[kind].split(), kind


@pytest.mark.cpu
def test_cache_tag_is_seen_by_other_threads_and_put_back() -> None:
    from torch.compiler import config

    before = config.cache_key_tag
    seen: list[str] = []
    with numalign.repair():
        thread = threading.Thread(target=lambda: seen.append(config.cache_key_tag))
        thread.start()
        thread.join()
        assert seen[0] == config.cache_key_tag != before
    assert config.cache_key_tag == before


def test_autocast_and_transforms(image: tuple[Tensor, Tensor]) -> None:
    x, target = image
    with numalign.repair():
        with torch.autocast(DEVICE):
            loss = F.cross_entropy(x, target)
        assert loss.dtype == torch.float32
        small, labels = torch.randn(3, 4, 5).half(), torch.randint(0, 5, (3, 4))
        expected = torch.stack([torch.func.grad(numalign.cross_entropy)(small[i], labels[i]) for i in range(3)])
        assert torch.equal(torch.func.vmap(torch.func.grad(F.cross_entropy))(small, labels), expected)
        many = torch.func.vmap(F.cross_entropy)(x.expand(2, -1, -1, -1, -1), target.expand(2, -1, -1, -1))
        assert torch.isfinite(many).all()
        many = torch.func.vmap(F.nll_loss)(x.expand(2, -1, -1, -1, -1), target.expand(2, -1, -1, -1))
        assert torch.isfinite(many).all()


def test_double_backward() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, (3,))
    with numalign.repair():
        assert torch.autograd.gradgradcheck(lambda x: F.cross_entropy(x, target, label_smoothing=0.1), (x,))
        assert torch.autograd.gradgradcheck(lambda x: F.nll_loss(x.log_softmax(1), target), (x,))


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["nll_loss_forward", "nll_loss2d_forward"])
def test_opcheck(operator: str) -> None:
    x = -torch.rand(2, 3, 4, 4) if "2d" in operator else -torch.rand(5, 3)
    target = torch.randint(0, 3, (2, 4, 4) if "2d" in operator else (5,))
    with numalign.repair():
        overload = getattr(torch.ops.aten, operator).default
        torch.library.opcheck(overload, (x.requires_grad_(), target, None, 1, -100))
        torch.library.opcheck(torch.ops.aten.cross_entropy_loss.default, (x, target))


QUIET = "import numalign; numalign.repair(); numalign.unrepair(); numalign.repair()"


@pytest.mark.cpu
def test_nothing_is_printed() -> None:
    run = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert run.stdout == run.stderr == ""
