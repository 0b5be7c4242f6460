"""Reproducers confirm what is there, do not confirm what is not, and say so by their last line and exit status."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from numalign.evidence.records import Case, Direction
from numalign.evidence.reproducer import render, reproducer_name
from numalign.scan.fresh import FreshProcesses
from records import plan_of, ramp

INDEX_ADD = ramp(
    operator="index_add",
    inputs="x = torch.ones(n)\nbase = torch.zeros(1)\nindex = torch.zeros(n, dtype=torch.int64)",
    call="base.index_add(0, index, x)",
    reference="base + x.sum()",
)
FORMATS = {"float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126)}


def text(
    case: Case, sign: str, code: str, sizes: tuple[int, ...], dtype: str = "float16", direction: Direction = "forward"
) -> str:
    plan = plan_of(case, dtypes=(dtype,))
    track = next(track for track in plan.tracks if track.direction == direction)
    precision, emin = FORMATS[dtype]
    return render(
        plan,
        track,
        sign=sign,
        code=code,
        sizes=sizes,
        first=sizes[-1],
        rung=sizes[-1],
        noise=0.0,
        precision=precision,
        emin=emin,
        accumulate=("float32", 24),
        failure=1e-10,
    )


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = folder / "reproducer.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, path.name, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def fresh() -> Iterator[FreshProcesses]:
    processes = FreshProcesses()
    yield processes
    processes.close()


def test_a_fault_is_confirmed_and_a_right_size_is_not(tmp_path: Path) -> None:
    script = text(INDEX_ADD, "precision", "NA201", (2048, 2050))
    done = run(script, tmp_path)
    assert done.stdout.splitlines()[-1] == "RESULT: confirmed", done.stdout + done.stderr
    assert done.returncode == 1
    done = run(script, tmp_path, "--size", "2048")
    assert done.stdout.splitlines()[-1] == "RESULT: not-reproduced"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("sign", "code", "call", "reference", "direction", "confirmed"),
    [
        ("overflow", "NA101", "(x * 300) * (x * 300) / 300", "x * 300", "forward", True),
        ("overflow", "NA101", "x * 300", "x * 300", "forward", False),
        ("overflow", "NA101", "x * 300 * 300", "x * 300 * 300", "forward", False),
        ("undefined", "NA102", "(x * 300 * 300) / (x * 300 * 300)", "x", "forward", True),
        ("undefined", "NA102", "x * 300 * 300", "x", "forward", False),
        ("zero", "NA301", "(x * 2.0**-20) * (x * 2.0**-20)", "x * 2.0**-19", "backward", True),
        ("zero", "NA301", "x * 2.0**-19", "x * 2.0**-19", "backward", False),
        ("zero", "NA301", "x * 2.0**-30", "x * 2.0**-30", "backward", False),
        ("flushed", "NA302", "x * torch.arange(n).to(x)", "x * (torch.arange(n) + 1).to(x)", "backward", True),
        ("flushed", "NA302", "x * (torch.arange(n) + 1).to(x)", "x * (torch.arange(n) + 1).to(x)", "backward", False),
    ],
)
def test_every_sign_shows_and_does_not(
    fresh: FreshProcesses,
    tmp_path: Path,
    sign: str,
    code: str,
    call: str,
    reference: str,
    direction: Direction,
    confirmed: bool,
) -> None:
    case = ramp(call=call, reference=reference, grad=("x",))
    path = tmp_path / "reproducer.py"
    path.write_text(text(case, sign, code, (4,), direction=direction))
    ended = fresh.run(path, 60)
    assert ended.output.splitlines()[-1] == ("RESULT: confirmed" if confirmed else "RESULT: not-reproduced"), (
        ended.output
    )
    assert ended.status == int(confirmed)


def test_an_operator_that_raises_cannot_be_told(tmp_path: Path) -> None:
    done = run(text(ramp(call="x.no_such_thing()", reference="x"), "overflow", "NA101", (4,)), tmp_path)
    assert done.stdout.splitlines()[-1] == "RESULT: cannot-tell"
    assert done.returncode == 2


def test_names_tell_case_direction_dtype_and_code() -> None:
    track = plan_of(INDEX_ADD).tracks[0]
    assert reproducer_name(track, "NA201") == "index_add-ones-forward-float16-NA201.py"
