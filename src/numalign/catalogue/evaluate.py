"""Turns a case's text into tensors and results: the inputs, the operator under test and its float64 reference.

A reference is evaluated by the caller while nothing is repaired, on the CPU, from the very values that the operator
under test receives. It uses stock PyTorch in float64 and never this project's own operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from numalign.evidence.records import Case, Direction

Values = dict[str, Any]
"""The names a case's text can use: tensors and plain values."""


class Evaluation(NamedTuple):
    """What evaluating an expression gave.

    Attributes:
        results: The outputs, or the gradients of the case's differentiable inputs, by name.
        between: Backward only: the output, and the gradient that flows into it.
    """

    results: Values
    between: Values


@contextmanager
def float64_by_default() -> Iterator[None]:
    """Inputs are made in float64 and only then rounded, whatever the dtype under test."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_inputs(case: Case, n: int, dtype: torch.dtype, seed: int) -> Values:
    """The inputs of ``case`` at size ``n`` on the CPU, every floating tensor rounded to ``dtype``.

    The seed alone decides the random values: two calls give the same bits.
    """
    names: Values = {"torch": torch, "F": F, "math": math, "n": n}
    torch.manual_seed(seed)
    with float64_by_default():
        exec(compile(case.inputs, f"<inputs of {case.id}>", "exec"), names)
    names.pop("__builtins__")
    return {name: _converted(value, dtype=dtype) for name, value in names.items()}


def moved(values: Values, device: str) -> Values:
    """The same values with every tensor on ``device``."""
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def widened(values: Values) -> Values:
    """The same values, every floating tensor in float64: what a reference is computed from."""
    return {name: _converted(value, dtype=torch.float64) for name, value in values.items()}


def evaluate(case: Case, expression: str, values: Values, direction: Direction) -> Values:
    """The named results of ``evaluation``."""
    return evaluation(case, expression, values, direction).results


def evaluation(case: Case, expression: str, values: Values, direction: Direction) -> Evaluation:
    """Evaluate ``expression``: its outputs, or the gradients of the case's differentiable inputs.

    Args:
        case: The case whose ``grad`` and ``grad_output`` apply.
        expression: ``case.call``, ``case.reference`` or ``case.magnitude``.
        values: What ``make_inputs`` gave, moved or widened. Left as it is.
        direction: ``forward`` for the outputs, ``backward`` for the gradients.
    """
    code = compile(expression, f"<{case.id}>", "eval")
    if direction == "forward":
        with torch.no_grad():
            return Evaluation(_named("output", eval(code, dict(values))), {})
    leaves = {name: values[name].detach().requires_grad_() for name in case.grad}
    output = eval(code, {**values, **leaves})
    grad_output = eval(case.grad_output, {**values, "output": output.detach()})
    gradients = torch.autograd.grad(output, list(leaves.values()), grad_output)
    return Evaluation(
        {f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)},
        {"output": output, "gradient of output": grad_output},
    )


def _named(name: str, value: Any) -> Values:
    if isinstance(value, torch.Tensor):
        return {name: value}
    return {f"{name} {i}": entry for i, entry in enumerate(value)}


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value
