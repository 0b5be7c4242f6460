"""The device that tests run on, and how many threads they take."""

from __future__ import annotations

import os

import pytest
import torch

# Where tests run side by side, each process keeps to one thread, so that they do not take each other's cores. A test that needs
# more sets the number itself; scans and reproducers set theirs.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tensors are made that a test asks no device for")


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("--device")
    if device != "cpu":
        torch.set_default_device(device)
