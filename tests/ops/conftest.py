"""The three paths through the losses: native code, blocks of PyTorch's operators where that does not serve, and kernels.

On the CPU a test takes all three, the kernels by Triton's interpreter. That takes a second for what a GPU does in no time, so the
default is a share of the parameters of each test, and of the blocks a larger one; ``--all-paths`` takes them all. With ``--device
cuda`` every test that is not about the CPU takes the kernels, compiled.
"""

from __future__ import annotations

import importlib.util
import os
import zlib

import pytest

from numalign.ops import _native, _path

# One test in so many takes this path as well.
SHARES = {"blocks": 8, "kernels": 80}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-paths", action="store_true", help="take every path with every parameter of every test")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu: not about the kernels")
    config.addinivalue_line("markers", "native: about the native code alone")
    config.addinivalue_line("markers", "kernels: about the kernels alone")
    config.addinivalue_line("markers", "slow: through blocks only with --all-paths")
    config.addinivalue_line("markers", "large: through kernels only where they are compiled")
    if config.getoption("--device") == "cpu":
        # Read when the kernels are imported, which is when they are first asked for.
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_device = metafunc.config.getoption("--device") != "cpu"
    paths = ["kernels"] if on_device else ["native", "blocks", "kernels"]
    if not on_device and metafunc.definition.get_closest_marker("large"):
        paths = ["native", "blocks"]
    for marker, taken in {"cpu": ["native", "blocks"], "native": ["native"], "kernels": ["kernels"]}.items():
        if metafunc.definition.get_closest_marker(marker):
            paths = [p for p in paths if p in taken]
    if importlib.util.find_spec("triton") is None:
        paths = [p for p in paths if p != "kernels"]
    metafunc.parametrize("path", paths, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") != "cpu" or config.getoption("--all-paths"):
        return
    seen: set[tuple[str, str]] = set()
    left_out = []
    for item in items:
        path = item.callspec.params.get("path") if hasattr(item, "callspec") else None
        if path == "native" and item.callspec.params.get("blocks", "whole") != "whole":
            left_out.append(item)  # it has no blocks
        if path not in SHARES or item.get_closest_marker("kernels"):
            continue
        if path == "blocks" and item.get_closest_marker("slow"):
            left_out.append(item)
            continue
        function = (item.nodeid.partition("[")[0], path)
        if function in seen and zlib.crc32(item.nodeid.encode()) % SHARES[path]:
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
    if request.param == "native" and _native.function() is None:
        pytest.skip("no C compiler")
    if request.param == "blocks":
        monkeypatch.setattr(_native, "function", lambda: None)
    return str(request.param)
