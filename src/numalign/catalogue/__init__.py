"""The catalogue: operators under test, one file a family, each entry a case with its float64 reference.

Adding an operator is one entry in the family's ``CASES``; nothing else has to know of it.
"""

from __future__ import annotations

from importlib import import_module

from numalign.evidence.records import Case

FAMILIES = (
    "cross_entropy",
    "losses",
    "reductions",
    "indexing",
    "pooling",
    "normalisation",
    "embedding",
    "softmax",
    "linear",
)
"""The family modules, in the order in which they are listed and run."""


def cases() -> tuple[Case, ...]:
    """Every case of the catalogue, in family order."""
    return tuple(case for family in FAMILIES for case in import_module(f"numalign.catalogue.{family}").CASES)
