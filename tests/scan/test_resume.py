"""Runs that are killed or interrupted store what they have and go on where they stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from numalign.evidence.records import Observation
from numalign.evidence.store import Store


def undated(folder: Path) -> dict[str, Observation]:
    with Store.open(folder) as store:
        plain = {}
        for o in store.observations():
            fields = {name: getattr(o, name) for name in o.__struct_fields__}
            plain[o.cell.id] = Observation(**{**fields, "seconds": 0.0})
        assert len(plain) == len(store.observations())
        return plain


SCAN = [sys.executable, "-m", "numalign", "scan", "-q"]
SELECTION = ["--select", "index_put", "--select", "nll_loss/loss-one", "--dtype", "float16"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    done = subprocess.run([*SCAN, *SELECTION, "--out", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return folder


def workers_of(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_at_random_moments_then_resume(calm: Path, tmp_path: Path, seed: int) -> None:
    """The store of a run killed again and again equals that of an undisturbed one, timings aside."""
    dice = random.Random(seed)
    folder = tmp_path / "killed"
    command = [*SCAN, *SELECTION, "--out", str(folder)]
    kills, stored = 0, 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        limit = time.monotonic() + dice.uniform(4.0, 7.0)
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        if process.poll() is None and kills < 2:
            family = workers_of(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            psutil.wait_procs(family, timeout=60)  # one that is starting must first load torch
            assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], (
                "workers outlived the scan"
            )
        else:
            _, errors = process.communicate()
            assert process.returncode == 1, errors
            break
        if (folder / "store.sqlite").exists():
            now = len(undated(folder))
            assert now >= stored, "stored cells were lost"
            stored = now
            command = [*SCAN, "--resume", str(folder)]
    assert kills > 0
    assert undated(folder) == undated(calm)
    names = [sorted(p.name for p in (run / "reproducers").iterdir()) for run in (folder, calm)]
    assert names[0] == names[1]


def test_interrupt_stores_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*SCAN, *SELECTION, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (folder / "store.sqlite").exists() or not undated(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"--resume {folder}" in errors
    assert "Traceback" not in errors
    before = undated(folder)
    resumed = subprocess.run([*SCAN, "--resume", str(folder)], capture_output=True, text=True, check=False)
    assert resumed.returncode == 1, resumed.stderr
    after = undated(folder)
    assert before.items() <= after.items()
    assert len(after) > len(before)
