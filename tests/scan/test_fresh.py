"""Fresh processes: each script gets one with torch and nothing else, and no script can harm the next."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from numalign.scan.fresh import FreshProcesses


@pytest.fixture(scope="module")
def fresh() -> Iterator[FreshProcesses]:
    processes = FreshProcesses()
    yield processes
    processes.close()


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_torch_is_there_and_numalign_is_not(fresh: FreshProcesses, tmp_path: Path) -> None:
    text = "import sys\nassert __name__ == '__main__'\nprint('torch' in sys.modules, 'numalign' in sys.modules)"
    assert fresh.run(script(tmp_path, text), 30) == (0, "True False\n")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys; sys.exit(1)", 1),
        ("import sys; sys.exit('words')", 1),
        ("raise ValueError('no')", 70),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import time; time.sleep(60)", -signal.SIGALRM),
    ],
)
def test_each_end_is_told_and_leaves_no_trace(fresh: FreshProcesses, tmp_path: Path, text: str, status: int) -> None:
    assert fresh.run(script(tmp_path, text), 2).status == status
    assert fresh.run(script(tmp_path, "print(1)"), 30) == (0, "1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_one_script_does_not_see_what_another_did(fresh: FreshProcesses, tmp_path: Path) -> None:
    fresh.run(script(tmp_path, "import torch; torch.set_default_dtype(torch.float64); torch.leftover = 1"), 30)
    text = "import torch; print(torch.get_default_dtype(), hasattr(torch, 'leftover'))"
    assert fresh.run(script(tmp_path, text), 30).output == "torch.float32 False\n"
