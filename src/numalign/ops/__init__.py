"""Repaired operators: they compute in the accumulate type and round once.

The functions and modules are drop-in for PyTorch's; :func:`repair` puts them behind PyTorch's own names, so that an
unchanged model uses them.
"""

from __future__ import annotations

from numalign.ops._functional import cross_entropy, nll_loss
from numalign.ops._modules import CrossEntropyLoss, NLLLoss
from numalign.ops._repair import repair, repaired_operators, unrepair

__all__ = ["CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss", "repair", "repaired_operators", "unrepair"]
