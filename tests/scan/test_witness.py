"""The witness names what ran and where; a result from elsewhere does not count."""

from __future__ import annotations

import torch

from numalign.scan.witness import Witness, off_device


def test_operators_and_devices_are_seen() -> None:
    x = torch.ones(3, requires_grad=True)
    with Witness() as witness:
        x.exp().sum().backward()
    assert {"aten::exp", "aten::sum"} <= witness.operators
    assert witness.devices == {"cpu"}


def test_a_result_on_the_device_counts() -> None:
    with Witness() as witness:
        result = torch.ones(3) * 2
    assert off_device("cpu", witness, {"output": result}, []) == ""


def test_a_result_elsewhere_does_not() -> None:
    with Witness() as witness:
        result = torch.ones(3) * 2
    assert "lies on cpu, not on meta" in off_device("meta", witness, {"output": result}, [])


def test_a_detour_does_not() -> None:
    """The result comes back to the device, but an operator in between worked on the CPU."""
    with Witness() as witness:
        torch.ones(3) * 2
        result = torch.ones(3, device="meta") * 2
    assert "returned a tensor on cpu" in off_device("meta", witness, {"output": result}, [])


def test_a_fallback_warning_does_not() -> None:
    with Witness() as witness:
        result = torch.ones(3, device="meta") * 2
    said = ["The operator 'aten::mul' will fall back to run on the CPU."]
    assert off_device("meta", witness, {"output": result}, said) == said[0]
    assert off_device("meta", witness, {"output": result}, ["something else"]) == ""
