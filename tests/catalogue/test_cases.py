"""What every case promises: unique, deterministic, self-contained text, and a reference that the operator meets."""

from __future__ import annotations

import ast
import builtins
import re
from typing import Any

import pytest
import torch

from numalign.catalogue import FAMILIES, cases
from numalign.catalogue.evaluate import Values, evaluate, make_inputs, moved, widened
from numalign.evidence.records import Case, Direction

pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]

CASES = cases()
DTYPES = ("float16", "bfloat16", "float32")
NAMESPACE = {"torch", "F", "math", "n"}
TRACKS = [(case, direction) for case in CASES for direction in case.directions]

FACTORY = re.compile(r"\btorch\.(arange|empty|eye|full|linspace|ones|rand|randint|randn|scalar_tensor|tensor|zeros)\(")
"""Functions that make a tensor on the default device, in the default dtype."""

RELATIVE = 1e-12
"""float64 has 1.1e-16 to a rounding; the smallest sizes make some thousand of them, on well-conditioned data."""


def case_id(value: object) -> str:
    return value.id if isinstance(value, Case) else str(value)


def names_in(expression: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(expression.strip())) if isinstance(node, ast.Name)]
    stored = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes} - stored - set(dir(builtins))


def made(values: Values) -> Values:
    return {name: value for name, value in values.items() if name not in NAMESPACE}


def bits(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return str(value.dtype), value.shape, value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def test_ids_are_unique() -> None:
    ids = [case.id for case in CASES]
    assert sorted(set(ids)) == sorted(ids)


def test_every_family_is_the_module_that_holds_it() -> None:
    assert tuple(dict.fromkeys(case.family for case in CASES)) == FAMILIES


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_ladders_ascend_from_a_short_size(case: Case) -> None:
    for dtype in case.dtypes:
        ladder = case.ladder(dtype)
        assert list(ladder) == sorted(set(ladder))
        assert ladder[0] <= 64, "a low-precision accumulator would already show at the size that noise is measured at"
    assert set(case.dtypes) <= set(DTYPES)
    assert case.directions


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_expressions_use_only_the_inputs(case: Case) -> None:
    inputs = names_in(case.inputs) | {
        node.id for node in ast.walk(ast.parse(case.inputs)) if isinstance(node, ast.Name)
    }
    known = (inputs | NAMESPACE) - {"n"}
    for expression in filter(None, (case.call, case.reference, case.magnitude)):
        assert names_in(expression) <= known, f"{expression!r} needs names that the inputs do not bind"
    assert names_in(case.grad_output) <= known | {"output"}
    assert set(case.grad) <= inputs
    assert case.why.endswith(".")


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_operator_is_given_every_tensor_it_uses(case: Case) -> None:
    assert not FACTORY.search(case.call), "a tensor made inside the call would not follow the device under test"
    assert not FACTORY.search(case.grad_output)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_references_are_elementary(case: Case) -> None:
    """A reference that calls an operator which ``repair()`` overrides would be judged by the repaired one."""
    forbidden = ("nll_loss", "cross_entropy", "numalign")
    expression = case.reference or case.call
    assert not any(name in expression for name in forbidden)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_inputs_are_the_same_bits_twice(case: Case) -> None:
    for dtype in DTYPES:
        first, second = (make_inputs(case, case.sizes[1], getattr(torch, dtype), seed=7) for _ in range(2))
        for name, value in made(first).items():
            plain = isinstance(value, (torch.Tensor, bool, int, float, tuple))
            assert plain, f"{name} is a {type(value).__name__}; wanted a tensor or a plain value"
            assert bits(value) == bits(second[name]), name
            if isinstance(value, torch.Tensor):
                assert value.device.type == "cpu"
                assert not value.is_floating_point() or value.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(("case", "direction"), TRACKS, ids=case_id)
def test_the_operator_agrees_with_the_reference_in_float64(case: Case, direction: Direction) -> None:
    n = case.sizes[0]
    for dtype in case.dtypes:
        values = widened(make_inputs(case, n, getattr(torch, dtype), seed=3))
        got = evaluate(case, case.call, values, direction)
        expected = evaluate(case, case.reference or case.call, values, direction)
        assert got.keys() == expected.keys()
        for name, value in got.items():
            assert value.shape == expected[name].shape, name
            torch.testing.assert_close(value, expected[name], rtol=RELATIVE, atol=RELATIVE * scale(expected[name]))
            assert expected[name].isfinite().all(), name


def scale(value: torch.Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


@pytest.mark.parametrize(("case", "direction"), TRACKS, ids=case_id)
def test_inputs_are_left_as_they_are(case: Case, direction: Direction) -> None:
    values = widened(make_inputs(case, case.sizes[0], torch.float32, seed=3))
    before = {name: bits(value) for name, value in made(values).items()}
    for expression in filter(None, (case.call, case.reference)):
        evaluate(case, expression, values, direction)
    assert {name: bits(value) for name, value in made(values).items()} == before


@pytest.mark.parametrize(("case", "direction"), TRACKS, ids=case_id)
def test_the_operator_stays_on_the_device_of_its_inputs(case: Case, direction: Direction) -> None:
    values = moved(make_inputs(case, case.sizes[0], torch.float32, seed=3), "meta")
    try:
        results = evaluate(case, case.call, values, direction)
    except (NotImplementedError, RuntimeError) as error:
        if "meta" in str(error).lower() or isinstance(error, NotImplementedError):
            pytest.skip("depends on values, or has no shape function")
        raise
    assert {value.device.type for value in results.values()} == {"meta"}
