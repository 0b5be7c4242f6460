"""The two paths through the losses: blocks of PyTorch's operators, and kernels.

On the CPU a test takes both, the kernels by Triton's interpreter. That takes a second for what a GPU does in no time, so the
default is a share of the parameters of each test; ``--all-kernels`` takes them all. With ``--device cuda`` every test that is not
about blocks takes the kernels, compiled.
"""

from __future__ import annotations

import importlib.util
import os
import zlib

import pytest

from numalign.ops import _path

# One test in so many goes through the interpreter.
SHARE = 80


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-kernels", action="store_true", help="interpret the kernels for every parameter of every test"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "blocks: about the blocked path alone")
    config.addinivalue_line("markers", "kernels: about the kernels alone")
    config.addinivalue_line("markers", "large: through kernels only where they are compiled")
    if config.getoption("--device") == "cpu":
        # Read when the kernels are imported, which is when they are first asked for.
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_device = metafunc.config.getoption("--device") != "cpu"
    paths = ["kernels"] if on_device else ["blocks", "kernels"]
    if not on_device and metafunc.definition.get_closest_marker("large"):
        paths = ["blocks"]
    for path in ("blocks", "kernels"):
        if metafunc.definition.get_closest_marker(path):
            paths = [p for p in paths if p == path]
    if importlib.util.find_spec("triton") is None:
        paths = [p for p in paths if p != "kernels"]
    metafunc.parametrize("path", paths, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") != "cpu" or config.getoption("--all-kernels"):
        return
    seen: set[str] = set()
    left_out = []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("path") != "kernels" or item.get_closest_marker("kernels"):
            continue
        function = item.nodeid.partition("[")[0]
        if function in seen and zlib.crc32(item.nodeid.encode()) % SHARE:
            left_out.append(item)
        seen.add(function)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


@pytest.fixture(autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which path the losses take in this test."""
    if request.param == "kernels" and request.config.getoption("--device") == "cpu":
        from ops import interpreter

        interpreter.make_faithful()
        monkeypatch.setattr(_path, "kernel_devices", {"cpu"})
    return str(request.param)
