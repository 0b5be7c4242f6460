"""References against answers worked out by hand: the other source of truth, which shares no code with the catalogue."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from numalign.catalogue import cases
from numalign.catalogue.evaluate import evaluate, make_inputs, widened
from numalign.evidence.records import Direction

CASES = {case.id: case for case in cases()}

Answer = Callable[[int], float]


def count(n: int) -> float:
    return float(n)


def one(n: int) -> float:
    return 1.0


# Cases of which every entry of the one output, or of every gradient that is not zero, has the same value.
UNIFORM: list[tuple[str, Direction, int, Answer]] = [
    ("nll_loss/loss-one", "forward", 1000, one),
    ("nll_loss/mean", "backward", 1000, lambda n: -1 / n),
    ("nll_loss2d/mean", "backward", 1024, lambda n: -1 / n),
    ("nll_loss2d/ignored", "backward", 1024, lambda n: -1 / (0.75 * n)),
    ("l1_loss/mean", "backward", 1000, lambda n: 1 / n),
    ("mse_loss/outlier", "forward", 16, lambda n: (800.0**2 + n - 1) / n),
    ("smooth_l1_loss/large-beta", "forward", 16, lambda n: 128.0),
    ("gaussian_nll_loss/outlier", "forward", 16, lambda n: 8192 + math.log(64) / 2),
    ("soft_margin_loss/wide-confident", "forward", 16, lambda n: 100.0),
    ("multi_margin_loss/rows", "forward", 16, lambda n: 11 / 4),
    ("cosine_embedding_loss/long-vectors", "forward", 256, one),
    ("triplet_margin_loss/long-vectors", "forward", 256, lambda n: math.sqrt(n) + 1),
    ("sum/ones", "forward", 100000, count),
    ("var/alternating", "forward", 256, lambda n: 128.0**2),
    ("std/alternating", "forward", 256, lambda n: 2048.0),
    ("linalg.norm/ones", "forward", 10000, lambda n: 100.0),
    ("linalg.norm/ones", "backward", 10000, lambda n: 1 / 100),
    ("linalg.norm/tiny", "backward", 4096, lambda n: 1 / 64),
    ("dist/ones", "forward", 10000, lambda n: 100.0),
    ("cdist/rows", "forward", 10000, lambda n: 100.0),
    ("cosine_similarity/long-vectors", "forward", 100, one),
    ("prod/there-and-back", "forward", 64, one),
    ("amax/ties", "backward", 1000, lambda n: 1 / n),
    ("trace/ones", "forward", 100, count),
    ("segment_reduce/one-segment-sum", "forward", 5000, count),
    ("index_add/one-destination", "forward", 20_000_000, count),
    ("index_add/rows", "forward", 5000, count),
    ("scatter_add/one-destination", "forward", 20_000_000, count),
    ("scatter_add/rows", "forward", 5000, count),
    ("scatter_reduce/sum", "forward", 5000, count),
    ("scatter_reduce/mean", "backward", 5000, lambda n: 1 / n),
    ("scatter_reduce/amax-ties", "backward", 5000, lambda n: 1 / n),
    ("index_reduce/mean", "forward", 5000, one),
    ("index_put/accumulate", "forward", 5000, count),
    ("put/accumulate", "forward", 5000, count),
    ("gather/one-source", "backward", 5000, count),
    ("index_select/one-source", "backward", 5000, count),
    ("take/one-source", "backward", 5000, count),
    ("index/one-source", "backward", 5000, count),
    ("repeat_interleave/one-source", "backward", 5000, count),
    ("bincount/weights", "forward", 5000, count),
    ("histc/one-bin", "forward", 5000, count),
    ("Tensor.unfold/overlapping", "backward", 500, count),
    ("sparse_coo_tensor/coalesce", "forward", 5000, count),
    ("sparse_coo_tensor/to-dense", "forward", 5000, count),
    ("avg_pool2d/one-window", "forward", 300, one),
    ("avg_pool2d/one-window", "backward", 300, lambda n: 1 / 90000),
    ("avg_pool2d/channels-last", "backward", 300, lambda n: 1 / 90000),
    ("avg_pool1d/one-window", "backward", 4096, lambda n: 1 / n),
    ("avg_pool3d/one-window", "backward", 16, lambda n: 1 / 4096),
    ("max_pool2d/overlapping", "backward", 1000, count),
    ("max_pool1d/overlapping", "backward", 1000, count),
    ("max_pool3d/overlapping", "backward", 1000, count),
    ("adaptive_avg_pool2d/two-windows", "backward", 300, lambda n: 1 / 90000),
    ("adaptive_avg_pool2d/one-source", "backward", 5000, count),
    ("adaptive_avg_pool1d/one-source", "backward", 5000, count),
    ("adaptive_max_pool2d/one-source", "backward", 5000, count),
    ("lp_pool2d/one-window", "forward", 300, count),
    ("lp_pool2d/one-window", "backward", 300, lambda n: 1 / 300),
    ("lp_pool1d/large", "forward", 4096, lambda n: 256 * 64.0),
    ("pad/replicate", "backward", 5000, count),
    ("interpolate/nearest", "backward", 5000, count),
    ("interpolate/bilinear", "backward", 5000, count),
    ("interpolate/bicubic", "backward", 5000, count),
    ("grid_sample/one-pixel", "backward", 5000, count),
    ("fold/overlapping", "forward", 500, count),
    ("unfold/overlapping", "backward", 500, count),
    ("rms_norm/rows", "backward", 5000, lambda n: n / 2),
    ("normalize/long-rows", "forward", 10000, lambda n: 1 / 100),
    ("embedding/one-row", "backward", 5000, count),
    ("embedding/scale-grad-by-freq", "backward", 4096, lambda n: 3.0),
    ("embedding_bag/sum", "forward", 5000, count),
    ("embedding_bag/sum", "backward", 5000, count),
    ("embedding_bag/mean", "forward", 4096, lambda n: 3.0),
    ("embedding_bag/mean", "backward", 4096, lambda n: 3.0),
    ("embedding_bag/many-bags", "backward", 5000, count),
    ("embedding_bag/max", "backward", 5000, count),
    ("embedding_bag/per-sample-weights", "forward", 5000, count),
    ("log_softmax/zeros", "forward", 128256, lambda n: -math.log(n)),
    ("log_softmax/columns", "forward", 1000, lambda n: -math.log(n)),
    ("softmax/zeros", "forward", 1000, lambda n: 1 / n),
    ("softmax/columns", "forward", 1000, lambda n: 1 / n),
    ("logsumexp/zeros", "forward", 8103, lambda n: math.log(8103)),
    ("addbmm/batch", "forward", 5000, count),
    ("sparse.mm/one-row", "forward", 5000, count),
    ("bilinear/rows", "backward", 5000, count),
    ("conv_transpose1d/overlapping", "forward", 500, count),
]

SUMS_OVER_ROWS = ("layer_norm/rows", "group_norm/samples")


@pytest.mark.parametrize(
    ("name", "direction", "n", "answer"), UNIFORM, ids=lambda value: "" if callable(value) else str(value)
)
def test_reference_gives_the_known_answer(name: str, direction: Direction, n: int, answer: Answer) -> None:
    results = reference(name, direction, n)
    for tensor in results.values():
        entries = tensor[tensor != 0] if direction == "backward" else tensor
        peak = entries.max() if name.startswith("max_pool") else entries
        torch.testing.assert_close(peak, torch.full_like(peak, answer(n)), rtol=1e-11, atol=0.0)
        assert entries.numel()


@pytest.mark.parametrize("name", SUMS_OVER_ROWS)
def test_norm_gradients_are_sums_over_rows(name: str) -> None:
    gradients = reference(name, "backward", 5000)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(gradients["gradient of weight"], 2500 * signs, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(gradients["gradient of bias"], torch.full_like(signs, 5000.0), rtol=1e-12, atol=0.0)


def test_cumsum_counts_up_and_its_gradient_down() -> None:
    up = torch.arange(1, 101, dtype=torch.float64)
    assert torch.equal(reference("cumsum/ones", "forward", 100)["output"], up)
    assert torch.equal(reference("cumsum/ones", "backward", 100)["gradient of x"], up.flip(0))


def test_logcumsumexp_of_zeros_is_the_logarithm_of_the_index() -> None:
    expected = [math.log(k) for k in range(1, 101)]
    assert reference("logcumsumexp/zeros", "forward", 100)["output"].tolist() == pytest.approx(expected, rel=1e-12)


def test_huge_norm_has_the_gradient_of_the_report() -> None:
    case = CASES["linalg.norm/huge"]
    values = widened(make_inputs(case, 3, torch.float64, seed=0))
    assert evaluate(case, case.reference, values, "forward")["output"].item() == pytest.approx(1e20, rel=1e-15)
    gradient = evaluate(case, case.reference, values, "backward")["gradient of x"]
    assert gradient.tolist() == pytest.approx([1.0, 1e-20, 1e-20], rel=1e-12)


@pytest.mark.parametrize(
    "name", ["batch_norm/training", "batch_norm/images", "group_norm/pixels", "instance_norm/pixels"]
)
def test_norm_gradients_are_sums_over_the_positive_half(name: str) -> None:
    gradients = reference(name, "backward", 4096)
    assert gradients["gradient of weight"].tolist() == pytest.approx([1024.0] * 4, rel=1e-12)
    assert gradients["gradient of bias"].tolist() == pytest.approx([2048.0] * 4, rel=1e-12)


def test_batch_statistics_of_two_values() -> None:
    mean, var = reference("batch_norm/statistics", "forward", 100).values()
    assert mean.tolist() == [128.0] * 4
    assert var.tolist() == pytest.approx([128.0**2 * 100 / 99] * 4, rel=1e-14)


@pytest.mark.parametrize(
    ("name", "classes"), [("cross_entropy/rows", 5), ("cross_entropy/spatial", 21), ("nll_loss2d/mean", 21)]
)
def test_losses_of_normal_logits_are_what_a_simulation_gives(name: str, classes: int) -> None:
    """The mean of log sum exp of standard-normal numbers; the logit of a random class has the mean 0."""
    draws = np.random.default_rng(1).standard_normal((100_000, classes))
    simulated = float(np.log(np.exp(draws).sum(axis=1)).mean())
    # Both are means of at least 16384 values with a standard deviation below 1.2: 0.03 is three deviations.
    assert reference(name, "forward", 16384)["output"].item() == pytest.approx(simulated, abs=0.03)


@pytest.mark.parametrize(
    "name", ["rows", "spatial", "sequence", "volume", "weighted", "label-smoothing", "probabilities"]
)
def test_gradients_of_a_cross_entropy_sum_to_zero_over_the_classes(name: str) -> None:
    """Softmax and target both sum to 1 over the classes, whatever the weights."""
    gradient = reference(f"cross_entropy/{name}", "backward", 1024)["gradient of logits"]
    assert gradient.abs().max() > 1e-3
    # targets given as probabilities sum to 1 as rounded: to 2^-10 of a term in float16
    assert gradient.sum(1).abs().max() < 1e-3 * gradient.abs().max()


def test_log_softmax_gradient_is_the_gradient_less_its_share() -> None:
    gradient = reference("log_softmax/gradient-sum", "backward", 8103)["gradient of x"][0]
    ones = 8103 - math.ceil(8103 / 4)
    assert gradient[1].item() == pytest.approx(1 - ones / 8103, rel=1e-12)
    assert gradient[0].item() == pytest.approx(-ones / 8103, rel=1e-12)


def reference(name: str, direction: Direction, n: int) -> dict[str, torch.Tensor]:
    case = CASES[name]
    values = widened(make_inputs(case, n, getattr(torch, case.dtypes[0]), seed=0))
    return evaluate(case, case.reference or case.call, values, direction)
