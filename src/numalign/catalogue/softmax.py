"""Softmax, its logarithm and log-sum-exp: a sum of n exponentials between two elementwise steps.

Stressed: the sum of exponentials, which is n for n zeros, past 65504 for today's vocabularies of 128256; and
the exponential itself, where the answer is of the size of the input.
"""

from __future__ import annotations

from numalign.evidence.records import Case

_VOCABULARIES = (16, 256, 1024, 4096, 32000, 65536, 128256)

_POWERS = (16, 256, 1024, 4096, 16384, 65536, 131072)
"""Sizes whose reciprocals, the probabilities, are exact."""

_CLASSES = """\
classes = round(math.exp(round(16 * math.log(n)) / 16))
"""
"""About n, with a logarithm next to a multiple of 1/16. The backward starts from the rounded logarithm, whose own
rounding, up to a thirtieth in bfloat16, would otherwise drown what the sum does."""

_ROUND_LOGARITHMS = (16, 1024, 4096, 32000, 65536, 128256)

CASES: tuple[Case, ...] = (
    Case(
        operator="log_softmax",
        name="zeros",
        family="softmax",
        why="n equal logits have the log-probability -log n: -11.76 for a vocabulary of 128256 (pytorch#158310).",
        inputs="x = torch.zeros(4, n)\n",
        call="F.log_softmax(x, 1)",
        reference="x - x.logsumexp(1, keepdim=True)",
        sizes=_VOCABULARIES,
        unit="classes",
    ),
    Case(
        operator="log_softmax",
        name="columns",
        family="softmax",
        why="The same along the first dimension, through the strided kernel.",
        inputs="x = torch.zeros(n, 4)\n",
        call="F.log_softmax(x, 0)",
        reference="x - x.logsumexp(0)",
        sizes=_VOCABULARIES,
        unit="classes",
    ),
    Case(
        operator="log_softmax",
        name="gradient-sum",
        family="softmax",
        why="Gradients of 1 into three classes in four: each class receives its own gradient less p times their sum.",
        inputs=_CLASSES + "x = torch.zeros(4, classes)\nmask = (torch.arange(classes) % 4 > 0).double()\n",
        call="F.log_softmax(x, 1)",
        reference="x - x.logsumexp(1, keepdim=True)",
        grad=("x",),
        grad_output="mask.expand_as(output)",
        forward=False,
        sizes=_ROUND_LOGARITHMS,
        unit="classes, about",
    ),
    Case(
        operator="softmax",
        name="zeros",
        family="softmax",
        why="n equal logits have the probability 1 / n each.",
        inputs="x = torch.zeros(4, n)\n",
        call="F.softmax(x, 1)",
        reference="x.exp() / x.exp().sum(1, keepdim=True)",
        sizes=_VOCABULARIES,
        unit="classes",
    ),
    Case(
        operator="softmax",
        name="columns",
        family="softmax",
        why="The same along the first dimension, through the strided kernel.",
        inputs="x = torch.zeros(n, 4)\n",
        call="F.softmax(x, 0)",
        reference="x.exp() / x.exp().sum(0)",
        sizes=_VOCABULARIES,
        unit="classes",
    ),
    Case(
        operator="softmax",
        name="gradient-sum",
        family="softmax",
        why="Gradients of 1024 into three classes in four: each class receives p times its own less their mean.",
        inputs="x = torch.zeros(4, n)\nmask = 1024 * (torch.arange(n) % 4 > 0).double()\n",
        call="F.softmax(x, 1)",
        reference="x.exp() / x.exp().sum(1, keepdim=True)",
        grad=("x",),
        grad_output="mask.expand_as(output)",
        forward=False,
        sizes=_POWERS,
        unit="classes",
    ),
    Case(
        operator="logsumexp",
        name="zeros",
        family="softmax",
        why="n zeros have the log-sum-exp log n and the gradient 1 / n; the sum of exponentials is n.",
        inputs=_CLASSES + "x = torch.zeros(classes)\n",
        call="x.logsumexp(0)",
        reference="x.exp().sum().log()",
        grad=("x",),
        sizes=_ROUND_LOGARITHMS,
        unit="classes, about",
    ),
    Case(
        operator="softplus",
        name="format-limit",
        family="softmax",
        why="With beta = 1e-5 the softplus of 60000 is 104000: too large for float16 itself, where inf is right.",
        inputs="x = torch.linspace(0, 60000, n)\n",
        call="F.softplus(x, beta=1e-5)",
        reference="(x * 1e-5).exp().log1p() / 1e-5",
        sizes=(16, 256),
        stress="exponential",
    ),
    Case(
        operator="softplus",
        name="large",
        family="softmax",
        why="The softplus of a large x is x; exp(x) overflows every dtype.",
        inputs="x = torch.linspace(1, 60000, n)\n",
        call="F.softplus(x)",
        reference="torch.logaddexp(x, torch.zeros_like(x))",
        grad=("x",),
        sizes=(16, 256, 4096),
        stress="exponential",
    ),
    Case(
        operator="logsigmoid",
        name="large",
        family="softmax",
        why="The log-sigmoid of a large negative x is x; exp(-x) overflows every dtype.",
        inputs="x = -torch.linspace(1, 60000, n)\n",
        call="F.logsigmoid(x)",
        reference="-torch.logaddexp(-x, torch.zeros_like(x))",
        grad=("x",),
        sizes=(16, 256, 4096),
        stress="exponential",
    ),
)
