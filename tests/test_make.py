"""``make scan``: findings are its result, while a scan that could not run, or is incomplete, fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("status", "fails"), [(0, False), (1, False), (2, True), (3, True), (5, True), (101, True)])
def test_only_what_is_no_result_fails(tmp_path: Path, status: int, fails: bool) -> None:
    program = tmp_path / "numalign"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    program.chmod(0o755)
    command = ["make", "--silent", "--old-file=.venv/ready", f"BIN={tmp_path}", "scan"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "scan --repaired\n"
    assert (done.returncode != 0) == fails
    assert (f"Error {status}" in done.stderr) == fails
