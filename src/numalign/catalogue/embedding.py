"""Embeddings: many positions that look up one row, and bags of many rows.

Stressed: the running sum that a row's gradient is, and a bag's sum and count.
"""

from __future__ import annotations

from numalign.evidence.records import Case

_SIZES = (16, 256, 1024, 5000, 20000, 60000)

_POWERS = (16, 256, 1024, 4096, 16384, 65536)
"""Sizes whose reciprocals, the terms of some of these sums, are exact."""

_ONE_BAG = """\
weight = torch.ones(2, 4)
index = torch.zeros(1, n, dtype=torch.int64)
"""

CASES: tuple[Case, ...] = (
    Case(
        operator="embedding",
        name="one-row",
        family="embedding",
        why="A row that is looked up n times, as frequent tokens are, receives n gradients of 1 (mxnet#17703).",
        inputs="weight = torch.ones(2, 4)\nindex = torch.zeros(n, dtype=torch.int64)\n",
        call="F.embedding(index, weight)",
        reference="weight[:1].expand(len(index), 4)",
        grad=("weight",),
        forward=False,
        sizes=_SIZES,
        unit="hits",
        exact=True,
    ),
    Case(
        operator="embedding",
        name="scale-grad-by-freq",
        family="embedding",
        why="n gradients of 3, each divided by the n hits of its row, sum to 3.",
        inputs="weight = torch.ones(2, 4)\nindex = torch.zeros(n, dtype=torch.int64)\n",
        call="F.embedding(index, weight, scale_grad_by_freq=True)",
        reference="weight[:1].expand(len(index), 4) / len(index)",
        grad=("weight",),
        grad_output="torch.full_like(output, 3.0)",
        forward=False,
        sizes=_POWERS,
        unit="hits",
    ),
    Case(
        operator="embedding_bag",
        name="sum",
        family="embedding",
        why="A bag of n ones sums to n; its row receives n gradients of 1.",
        inputs=_ONE_BAG,
        call='F.embedding_bag(index, weight, mode="sum")',
        reference="weight[:1].expand(index.shape[1], 4).sum(0, keepdim=True)",
        grad=("weight",),
        sizes=_SIZES,
        unit="hits",
        exact=True,
    ),
    Case(
        operator="embedding_bag",
        name="mean",
        family="embedding",
        why="A bag of n entries of 3 has the mean 3; its row receives n gradients of 3 / n.",
        inputs=_ONE_BAG + "weight = 3 * weight\n",
        call='F.embedding_bag(index, weight, mode="mean")',
        reference="weight[:1].expand(index.shape[1], 4).mean(0, keepdim=True)",
        grad=("weight",),
        grad_output="torch.full_like(output, 3.0)",
        sizes=(*_POWERS, 131072),
        unit="hits",
    ),
    Case(
        operator="embedding_bag",
        name="many-bags",
        family="embedding",
        why="n bags of one entry each hit one row, which receives n gradients of 1.",
        inputs="weight = torch.ones(2, 4)\nindex = torch.zeros(n, 1, dtype=torch.int64)\n",
        call='F.embedding_bag(index, weight, mode="sum")',
        reference="weight[:1].expand(len(index), 4)",
        grad=("weight",),
        forward=False,
        sizes=_SIZES,
        unit="bags",
        exact=True,
    ),
    Case(
        operator="embedding_bag",
        name="max",
        family="embedding",
        why="n bags of one entry share one maximum, which receives n gradients of 1.",
        inputs="weight = torch.ones(2, 4)\nindex = torch.zeros(n, 1, dtype=torch.int64)\n",
        call='F.embedding_bag(index, weight, mode="max")',
        reference="weight[:1].expand(len(index), 4)",
        grad=("weight",),
        forward=False,
        sizes=_SIZES,
        unit="bags",
        exact=True,
    ),
    Case(
        operator="embedding_bag",
        name="per-sample-weights",
        family="embedding",
        why="A bag of n ones, each weighted by 1, sums to n.",
        inputs=_ONE_BAG + "scale = torch.ones(1, n)\n",
        call='F.embedding_bag(index, weight, mode="sum", per_sample_weights=scale)',
        reference="scale @ weight[:1].expand(index.shape[1], 4)",
        grad=("weight",),
        sizes=_SIZES,
        unit="hits",
        exact=True,
    ),
)
