"""The witness names what ran and where; a result from elsewhere does not count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from numalign.scan.witness import Witness, off_device


@pytest.fixture(scope="module")
def peek() -> Iterator[None]:
    """Operators that read values out of a tensor, as ``item`` does, on ``meta`` too, where ``item`` raises."""
    with torch.library._scoped_library("numalign_test", "FRAGMENT") as library:
        library.define("peek(Tensor x) -> Scalar", tags=(torch.Tag.data_dependent_output,))
        library.define("test(Tensor x) -> bool", tags=(torch.Tag.data_dependent_output,))
        library.define("count(Tensor x) -> int")
        library.impl("peek", lambda x: 1.0, "CompositeExplicitAutograd")
        library.impl("test", lambda x: True, "CompositeExplicitAutograd")
        library.impl("count", lambda x: x.numel(), "CompositeExplicitAutograd")
        yield


def test_operators_dtypes_and_devices_are_seen() -> None:
    x = torch.ones(3, requires_grad=True)
    with Witness("cpu") as witness:
        x.half().exp().sum().backward()
    assert {"aten::exp", "aten::sum"} <= witness.operators
    assert witness.returned == {"float16 on cpu", "float32 on cpu"}


def test_scalars_are_seen() -> None:
    x = torch.ones((), dtype=torch.bfloat16)
    with Witness("cpu") as witness:
        x.exp()
    assert witness.returned == {"bfloat16 on cpu"}


def test_a_result_on_the_device_counts() -> None:
    with Witness("cpu") as witness:
        result = torch.ones(3) * 2
    assert off_device("cpu", witness, {"output": result}, []) == ""


def test_a_result_elsewhere_does_not() -> None:
    with Witness("meta") as witness:
        result = torch.ones(3) * 2
    assert "lies on cpu, not on meta" in off_device("meta", witness, {"output": result}, [])


def test_the_state_of_random_numbers_is_no_detour() -> None:
    """Attention on CUDA returns its seed as an integer of no dimensions on the CPU."""
    with torch.library._scoped_library("numalign_test", "FRAGMENT") as library:
        library.define("seeded(Tensor x) -> (Tensor, Tensor)")
        library.define("summed(Tensor x) -> (Tensor, Tensor)")
        library.impl("seeded", lambda x: (x.clone(), torch.tensor(7)), "CompositeExplicitAutograd")
        library.impl("summed", lambda x: (x.clone(), torch.tensor(7.0)), "CompositeExplicitAutograd")
        for operator, counts in ((torch.ops.numalign_test.seeded, True), (torch.ops.numalign_test.summed, False)):
            with Witness("meta") as witness:
                result, _ = operator(torch.ones(3, device="meta"))
            assert (off_device("meta", witness, {"output": result}, []) == "") == counts


def test_a_detour_does_not() -> None:
    """The result comes back to the device, but an operator in between worked on the CPU."""
    with Witness("meta") as witness:
        torch.ones(3) * 2
        result = torch.ones(3, device="meta") * 2
    said = off_device("meta", witness, {"output": result}, [])
    assert "aten::mul returned a tensor on cpu, not on meta" in said


def test_a_detour_of_a_scalar_does_not() -> None:
    """Data leaves the device in a tensor of no dimensions: here from the CPU, since data cannot leave ``meta``."""
    x = torch.ones(3)
    with Witness("cpu") as witness:
        loss = x.sum()
        loss.to("meta")
        result = x * 2
    assert off_device("cpu", witness, {"output": result}, []) == "aten::_to_copy returned a tensor on meta, not on cpu"
    assert "float32 on meta" in witness.returned


def test_a_detour_to_a_scalar_on_the_cpu_does_not() -> None:
    x = torch.ones((), device="meta")
    with Witness("meta") as witness:
        torch.zeros_like(x, device="cpu")
    assert "aten::zeros_like returned a tensor on cpu" in off_device("meta", witness, {"output": x}, [])


@pytest.mark.usefixtures("peek")
def test_a_number_read_out_of_the_device_does_not() -> None:
    x = torch.ones((), device="meta")
    with Witness("meta") as witness:
        result = x * torch.ops.numalign_test.peek(x)
    said = off_device("meta", witness, {"output": result}, [])
    assert said == "numalign_test::peek read a number out of a tensor on meta"
    assert witness.returned == {"float32 on meta", "float on the host"}


@pytest.mark.usefixtures("peek")
def test_a_truth_value_read_out_of_the_device_is_no_detour() -> None:
    """As a check of the arguments does: ``F.gaussian_nll_loss`` asks whether a variance is negative."""
    x = torch.ones((), device="meta")
    with Witness("meta") as witness:
        result = x * 2 if torch.ops.numalign_test.test(x) else x
    assert off_device("meta", witness, {"output": result}, []) == ""
    assert "bool on the host" in witness.returned


@pytest.mark.usefixtures("peek")
def test_a_number_that_depends_on_no_data_is_no_detour() -> None:
    x = torch.ones((), device="meta")
    with Witness("meta") as witness:
        result = x * torch.ops.numalign_test.count(x)
    assert off_device("meta", witness, {"output": result}, []) == ""


def test_on_the_cpu_a_number_is_where_it_was() -> None:
    with Witness("cpu") as witness:
        result = torch.ones(3) * torch.ones(()).item()
    assert "aten::_local_scalar_dense" in witness.operators
    assert off_device("cpu", witness, {"output": result}, []) == ""


def test_what_item_does_is_told_by_its_tag() -> None:
    """Which the test with an operator of its own relies on."""
    for operator in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
        assert torch.Tag.data_dependent_output in operator.tags


def test_a_constant_is_no_detour() -> None:
    """PyTorch takes zero-dimensional CPU tensors in arithmetic on any device; it makes them of Python numbers."""
    x = torch.ones(3, device="meta", dtype=torch.float16)
    with Witness("meta") as witness:
        result = x * torch.tensor(2.0) + torch.tensor(3.0).exp()
    assert off_device("meta", witness, {"output": result}, []) == ""
    assert witness.returned == {"float16 on meta", "float32 on cpu (constant)"}


def test_a_fallback_warning_does_not() -> None:
    with Witness("meta") as witness:
        result = torch.ones(3, device="meta") * 2
    said = ["The operator 'aten::mul' will fall back to run on the CPU."]
    assert off_device("meta", witness, {"output": result}, said) == said[0]
    assert off_device("meta", witness, {"output": result}, ["something else"]) == ""
