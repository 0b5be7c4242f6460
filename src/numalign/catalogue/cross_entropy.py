"""Negative log likelihood and cross-entropy: a mean over rows or pixels, which is a sum over a weight sum.

Stressed: the sum of the losses (past 65504 in float16 from some 19000 terms of 3.5 on, 32000 of 2), the weight sum (past
65504 from 65520 terms on, and short of significant bits long before), and the same weight sum again where the
backward divides by it. Pixels form a square image where their number is a square, else a single row. Gradients
that reach the logits carry a loss scale of 1024, as in mixed-precision training, so that they are no subnormals
of float16.
"""

from __future__ import annotations

from numalign.evidence.records import Case

_IMAGE = """\
h = math.isqrt(n)
h, w = (h, h) if h * h == n else (1, n)
"""

_PIXELS = """\
logp = F.log_softmax(torch.randn(1, 21, h, w), 1)
target = torch.randint(21, (1, h, w))
"""

_LOGITS = """\
logits = torch.randn(1, 21, h, w)
target = torch.randint(21, (1, h, w))
"""

_FEW_CLASSES = _PIXELS.replace("21", "5")
_FEW_LOGITS = _LOGITS.replace("21", "5")
"""The variants stress the sums, which do not depend on the number of classes; with five of them they run faster."""

_GENTLE_LOGITS = "logits = 2 * torch.rand(1, 21, h, w) - 1\n"
"""Probabilities between 0.01 and 0.15: far from the targets they are subtracted from, so that no gradient cancels."""

_CLASS_WEIGHT = "weight = 1 + torch.rand(5)\n"

_CROSS_ENTROPY = "(logits.logsumexp(1) - logits.gather(1, target[:, None])[:, 0])"

_SIZES = (64, 1024, 4096, 16384, 32761, 65536)

_LOSS_SCALE = "torch.full_like(output, 1024.0)"

CASES: tuple[Case, ...] = (
    Case(
        operator="nll_loss",
        name="mean",
        family="cross_entropy",
        why="The sum of n losses of about 2 and the weight sum n both pass 65504 while the mean stays 2.",
        inputs="logp = F.log_softmax(torch.randn(n, 5), 1)\ntarget = torch.randint(5, (n,))\n",
        call="F.nll_loss(logp, target)",
        reference="-logp.gather(1, target[:, None]).mean()",
        grad=("logp",),
        sizes=_SIZES,
        unit="rows",
    ),
    Case(
        operator="nll_loss",
        name="loss-one",
        family="cross_entropy",
        why="100000 losses of 1 have the mean 1; neither their sum nor their number fits float16 (pytorch#61523).",
        inputs="logp = torch.full((n, 2), -1.0)\ntarget = torch.zeros(n, dtype=torch.int64)\n",
        call="F.nll_loss(logp, target)",
        reference="-logp.gather(1, target[:, None]).mean()",
        sizes=(16, 256, 1024, 4096, 16384, 65536, 100000),
        unit="rows",
    ),
    Case(
        operator="nll_loss",
        name="weighted",
        family="cross_entropy",
        why="With class weights the divisor is a sum of n weights of about 1.5, which float16 cannot hold.",
        inputs="logp = F.log_softmax(torch.randn(n, 5), 1)\ntarget = torch.randint(5, (n,))\n" + _CLASS_WEIGHT,
        call="F.nll_loss(logp, target, weight)",
        reference="-(logp.gather(1, target[:, None])[:, 0] * weight[target]).sum() / weight[target].sum()",
        grad=("logp",),
        sizes=_SIZES,
        unit="rows",
    ),
    Case(
        operator="nll_loss2d",
        name="mean",
        family="cross_entropy",
        why="At 181 x 181 pixels the sum of the losses passes 65504, at 256 x 256 the weight sum; the mean is 3.5.",
        inputs=_IMAGE + _PIXELS,
        call="F.nll_loss(logp, target)",
        reference="-logp.gather(1, target[:, None]).mean()",
        grad=("logp",),
        sizes=_SIZES,
        unit="pixels",
    ),
    Case(
        operator="nll_loss2d",
        name="weighted",
        family="cross_entropy",
        why="With class weights the divisor is a sum of n weights of about 1.5, which float16 cannot hold.",
        inputs=_IMAGE + _FEW_CLASSES + _CLASS_WEIGHT,
        call="F.nll_loss(logp, target, weight)",
        reference="-(logp.gather(1, target[:, None])[:, 0] * weight[target]).sum() / weight[target].sum()",
        grad=("logp",),
        sizes=_SIZES,
        unit="pixels",
    ),
    Case(
        operator="nll_loss2d",
        name="ignored",
        family="cross_entropy",
        why="Ignored pixels count neither in the sum nor in the divisor; the others are three in four.",
        inputs=_IMAGE + _FEW_CLASSES + "target[..., ::4] = -100\n",
        call="F.nll_loss(logp, target)",
        reference="-logp.gather(1, target.clamp(min=0)[:, None])[:, 0][target >= 0].mean()",
        grad=("logp",),
        sizes=(64, 1024, 4096, 16384, 65536, 131072),
        unit="pixels",
    ),
    Case(
        operator="nll_loss2d",
        name="sum",
        family="cross_entropy",
        why="The sum of 65536 losses of 3.5 is too large for float16 itself: inf is then the right answer.",
        inputs=_IMAGE + _PIXELS,
        call='F.nll_loss(logp, target, reduction="sum")',
        reference="-logp.gather(1, target[:, None]).sum()",
        sizes=_SIZES,
        unit="pixels",
    ),
    Case(
        operator="cross_entropy",
        name="rows",
        family="cross_entropy",
        why="The mean over n rows of logits, the usual classifier: sum and divisor overflow past 65504 rows.",
        inputs="logits = torch.randn(n, 5)\ntarget = torch.randint(5, (n,))\n",
        call="F.cross_entropy(logits, target)",
        reference=_CROSS_ENTROPY + ".mean()",
        grad=("logits",),
        grad_output=_LOSS_SCALE,
        sizes=_SIZES,
        unit="rows",
    ),
    Case(
        operator="cross_entropy",
        name="spatial",
        family="cross_entropy",
        why="Segmentation: at 256 x 256 pixels the weight sum is inf in float16, and every gradient is divided by it.",
        inputs=_IMAGE + _LOGITS,
        call="F.cross_entropy(logits, target)",
        reference=_CROSS_ENTROPY + ".mean()",
        grad=("logits",),
        grad_output=_LOSS_SCALE,
        sizes=_SIZES,
        unit="pixels",
    ),
    Case(
        operator="cross_entropy",
        name="sequence",
        family="cross_entropy",
        why="Language-model layout (N, C, d1): the loss of all tokens is summed before the division (pytorch#85791).",
        inputs="logits = torch.randn(2, 5, n // 2)\ntarget = torch.randint(5, (2, n // 2))\n",
        call="F.cross_entropy(logits, target)",
        reference=_CROSS_ENTROPY + ".mean()",
        grad=("logits",),
        grad_output=_LOSS_SCALE,
        sizes=(64, 1024, 4096, 16384, 32768, 65536),
        unit="tokens",
    ),
    Case(
        operator="cross_entropy",
        name="volume",
        family="cross_entropy",
        why="5-D input, as for medical volumes: reshaped to 2-D pixels inside, with the same sum and divisor.",
        inputs="logits = torch.randn(1, 5, 4, 4, n // 16)\ntarget = torch.randint(5, (1, 4, 4, n // 16))\n",
        call="F.cross_entropy(logits, target)",
        reference=_CROSS_ENTROPY + ".mean()",
        grad=("logits",),
        grad_output=_LOSS_SCALE,
        sizes=(64, 1024, 4096, 16384, 32768, 65536),
        unit="voxels",
    ),
    Case(
        operator="cross_entropy",
        name="weighted",
        family="cross_entropy",
        why="Class weights make the divisor a sum of n weights, and enter every gradient.",
        inputs=_IMAGE + _FEW_LOGITS + _CLASS_WEIGHT,
        call="F.cross_entropy(logits, target, weight)",
        reference="(" + _CROSS_ENTROPY + " * weight[target]).sum() / weight[target].sum()",
        grad=("logits",),
        grad_output=_LOSS_SCALE,
        sizes=_SIZES,
        unit="pixels",
    ),
    Case(
        operator="cross_entropy",
        name="label-smoothing",
        family="cross_entropy",
        why="The smoothing term is a sum over classes and pixels of its own, formed apart from the loss.",
        inputs=_IMAGE + _GENTLE_LOGITS + "target = torch.randint(21, (1, h, w))\n",
        call="F.cross_entropy(logits, target, label_smoothing=0.1)",
        reference="(logits.logsumexp(1) - 0.9 * logits.gather(1, target[:, None])[:, 0] - 0.1 * logits.mean(1)).mean()",
        grad=("logits",),
        grad_output=_LOSS_SCALE,
        sizes=_SIZES,
        unit="pixels",
    ),
    Case(
        operator="cross_entropy",
        name="probabilities",
        family="cross_entropy",
        why="Targets given as probabilities: the whole sum is formed in one reduction and divided afterwards.",
        inputs=_IMAGE
        + _GENTLE_LOGITS
        + "label = F.one_hot(torch.randint(21, (1, h, w)), 21).movedim(-1, 1)\n"
        + "target = F.softmax(8.0 * label, 1)\n",
        call="F.cross_entropy(logits, target)",
        reference="(target * (logits.logsumexp(1, keepdim=True) - logits)).sum(1).mean()",
        grad=("logits",),
        grad_output=_LOSS_SCALE,
        sizes=_SIZES,
        unit="pixels",
    ),
)
