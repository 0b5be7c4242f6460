"""Normalisation: statistics over n entries, and weight and bias gradients that are sums over n rows or pixels.

Stressed: the gradients' running sums, of which some kernels keep a partial one for each thread; statistics of
values whose squares overflow float16. Inputs are +-1, so that normalised values stay clear of zero, where they
would cancel; with eps = 3 the divisor sqrt(1 + 3) is exactly 2, so that every term of a gradient is exact.
"""

from __future__ import annotations

from numalign.evidence.records import Case

_AFFINE = "weight = torch.ones(4)\nbias = torch.zeros(4)\n"

_SIGNED_ROWS = "x = torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(n, 1)\n" + _AFFINE

_SIGNED_COLUMNS = "x = torch.tensor([[1.0], [-1.0]]).repeat(n // 2, 4)\n" + _AFFINE

_POSITIVE = "(output > 0).to(output)"
"""Where the normalised value is positive: both sums then have terms of one sign."""

CASES: tuple[Case, ...] = (
    Case(
        operator="layer_norm",
        name="rows",
        family="normalisation",
        why="n rows of +-1: the bias gradient is n, the weight gradient +-n / 2 (llm.c#476).",
        inputs=_SIGNED_ROWS,
        call="F.layer_norm(x, (4,), weight, bias, eps=3.0)",
        reference="(x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 3).sqrt() * weight + bias",
        grad=("weight", "bias"),
        forward=False,
        sizes=(16, 256, 1024, 5000, 20000, 60000),
        exact=True,
        unit="rows",
    ),
    Case(
        operator="layer_norm",
        name="long-rows",
        family="normalisation",
        why="Rows of n entries of +-256: the squares, 65536, overflow float16, the normalised values are +-1.",
        inputs="x = torch.tensor([256.0, -256.0]).repeat(4, n // 2)\nshape = x.shape[1:]\n",
        call="F.layer_norm(x, shape)",
        reference="(x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()",
        stress="square",
    ),
    Case(
        operator="batch_norm",
        name="training",
        family="normalisation",
        why="Statistics over n rows; the bias gradient sums n / 2 ones, the weight gradient as many normalised values.",
        inputs=_SIGNED_COLUMNS,
        call="F.batch_norm(x, None, None, weight, bias, training=True, eps=3.0)",
        reference="(x - x.mean(0)) / (x.var(0, correction=0) + 3).sqrt() * weight + bias",
        grad=("weight", "bias"),
        grad_output=_POSITIVE,
        unit="rows",
    ),
    Case(
        operator="batch_norm",
        name="images",
        family="normalisation",
        why="The same over the pixels of an image, n in all.",
        inputs="x = torch.tensor([1.0, -1.0]).repeat(2, 4, 1, n // 4)\n" + _AFFINE,
        call="F.batch_norm(x, None, None, weight, bias, training=True, eps=3.0)",
        reference="x / (x.var((0, 2, 3), correction=0, keepdim=True) + 3).sqrt() * weight[:, None, None] "
        "+ bias[:, None, None]",
        grad=("weight", "bias"),
        grad_output=_POSITIVE,
        unit="pixels",
    ),
    Case(
        operator="batch_norm",
        name="statistics",
        family="normalisation",
        why="Mean and variance themselves, read from running statistics that are replaced at momentum 1.",
        inputs="x = torch.tensor([[0.0], [256.0]]).repeat(n // 2, 4)\nmean = torch.zeros(4)\nvar = torch.ones(4)\n",
        call="(m := mean.clone(), v := var.clone(), F.batch_norm(x, m, v, training=True, momentum=1.0))[:2]",
        reference="(x.mean(0), x.var(0))",
        unit="rows",
        stress="square",
    ),
    Case(
        operator="group_norm",
        name="samples",
        family="normalisation",
        why="n samples of +-1: the bias gradient is n, the weight gradient +-n / 2.",
        inputs=_SIGNED_ROWS,
        call="F.group_norm(x, 1, weight, bias, eps=3.0)",
        reference="(x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 3).sqrt() * weight + bias",
        grad=("weight", "bias"),
        forward=False,
        sizes=(16, 256, 1024, 5000, 20000, 60000),
        exact=True,
        unit="samples",
    ),
    Case(
        operator="group_norm",
        name="pixels",
        family="normalisation",
        why="One sample of n pixels a channel: statistics over 2 n entries, gradients that sum n / 2 of them.",
        inputs="x = torch.tensor([1.0, -1.0]).repeat(1, 4, n // 2)\n" + _AFFINE,
        call="F.group_norm(x, 2, weight, bias, eps=3.0)",
        reference="x / (x.square().mean(2, keepdim=True) + 3).sqrt() * weight[:, None] + bias[:, None]",
        grad=("weight", "bias"),
        grad_output=_POSITIVE,
        unit="pixels",
    ),
    Case(
        operator="instance_norm",
        name="pixels",
        family="normalisation",
        why="One sample of n pixels a channel: statistics over n entries, gradients that sum n / 2 of them.",
        inputs="x = torch.tensor([1.0, -1.0]).repeat(1, 4, n // 2)\n" + _AFFINE,
        call="F.instance_norm(x, weight=weight, bias=bias, eps=3.0)",
        reference="x / (x.square().mean(2, keepdim=True) + 3).sqrt() * weight[:, None] + bias[:, None]",
        grad=("weight", "bias"),
        grad_output=_POSITIVE,
        unit="pixels",
    ),
    Case(
        operator="rms_norm",
        name="rows",
        family="normalisation",
        why="n rows of ones: the weight gradient is n / 2.",
        inputs="x = torch.ones(n, 4)\nweight = torch.ones(4)\n",
        call="F.rms_norm(x, (4,), weight, eps=3.0)",
        reference="x / (x.square().mean(1, keepdim=True) + 3).sqrt() * weight",
        grad=("weight",),
        forward=False,
        sizes=(16, 256, 1024, 5000, 20000, 60000),
        exact=True,
        unit="rows",
    ),
    Case(
        operator="rms_norm",
        name="long-rows",
        family="normalisation",
        why="Rows of n entries of 256: the squares, 65536, overflow float16, the normalised values are 1.",
        inputs="x = torch.full((4, n), 256.0)\nshape = x.shape[1:]\n",
        call="F.rms_norm(x, shape, eps=1e-5)",
        reference="x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()",
        stress="square",
    ),
    Case(
        operator="normalize",
        name="long-rows",
        family="normalisation",
        why="A row of n entries of 256 has the norm 256 sqrt(n), and entries of 1 / sqrt(n) once divided by it.",
        inputs="x = torch.full((4, n), 256.0)\n",
        call="F.normalize(x)",
        reference="x / x.square().sum(1, keepdim=True).sqrt()",
        stress="square",
    ),
)
