"""Runs with real worker processes: a planted crash, hang or failed allocation loses one cell, and a killed run goes on."""

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

from numalign.evidence.records import Case, Observation, Outcome, Plan
from numalign.evidence.store import Store
from numalign.scan.judge import Status, Verdict
from numalign.scan.run import conclude, scan
from numalign.scan.runners.local import LocalRunner
from records import plan_of

SEGFAULT = "torch.from_numpy(__import__('numpy').array([__import__('ctypes').string_at(0)[0]]))"
HANG = "[x, __import__('time').sleep(3600)][0]"
GREEDY = "torch.empty(1 << 44, dtype=torch.uint8)[:1].to(x)"
EXIT = "[x, __import__('os')._exit(7)][0]"
EXIT_CLEANLY = "[x, __import__('os')._exit(0)][0]"
SYSTEM_EXIT = "[x, __import__('sys').exit()][0]"
KILLED = "[x, __import__('os').kill(__import__('os').getpid(), 9)][0]"
RAISES = "x.reshape(n + 1)"


def case(name: str, call: str, **changes: object) -> Case:
    fields = {
        "operator": name,
        "name": "planted",
        "family": "planted",
        "why": "Planted.",
        "inputs": "x = torch.ones(n)",
        "call": call,
        "sizes": (4, 8, 16),
        "exact": True,
        **changes,
    }
    return Case(**fields)  # type: ignore[arg-type]


def at_eight(call: str) -> str:
    """Runs ``call`` at the middle size only."""
    return f"({call}) if n == 8 else x * 1.0"


def ran(plan: Plan, folder: Path, jobs: int = 2) -> tuple[list[Verdict], list[Observation]]:
    with Store.create(folder, plan) as store:
        runner = LocalRunner(plan, jobs)
        try:
            verdicts = scan(store, runner)
        finally:
            runner.close()
        return verdicts, store.observations()


def test_each_way_to_die_loses_one_cell(tmp_path: Path) -> None:
    deaths = {
        "segfault": (SEGFAULT, Outcome.CRASHED),
        "hang": (HANG, Outcome.TIMEOUT),
        "greedy": (GREEDY, Outcome.OUT_OF_MEMORY),
        "exit": (EXIT, Outcome.CRASHED),
        "exit-cleanly": (EXIT_CLEANLY, Outcome.CRASHED),
        "system-exit": (SYSTEM_EXIT, Outcome.CRASHED),
        "killed": (KILLED, Outcome.OUT_OF_MEMORY),
        "raises": (RAISES, Outcome.RAISED),
    }
    # The reference runs in the worker too, so it must be harmless.
    planted = [case(name, at_eight(call), reference="x * 1.0") for name, (call, _) in deaths.items()]
    plan = plan_of(*planted, case("healthy", "x * 1.0"), timeout=8.0)
    verdicts, seen = ran(plan, tmp_path / "run")
    by_cell = {(o.cell.case.partition("/")[0], o.cell.n): o for o in seen}
    assert len(seen) == 3 * (len(deaths) + 1)
    for name, (_, outcome) in deaths.items():
        assert by_cell[name, 8].outcome is outcome, by_cell[name, 8]
        assert by_cell[name, 8].detail
        assert {by_cell[name, n].outcome for n in (4, 16)} == {Outcome.RAN}
    assert "SIGSEGV" in by_cell["segfault", 8].detail
    assert by_cell["exit", 8].detail == "the process ended by itself with exit status 7"
    for name in ("exit-cleanly", "system-exit"):
        assert by_cell[name, 8].detail == "the process ended by itself with exit status 0"
    assert {v.track.operator: v.status for v in verdicts}["healthy"] is Status.CLEAN
    assert {v.status for v in verdicts if v.track.operator != "healthy"} == {Status.INCOMPLETE}


def test_a_clean_exit_does_not_wait_for_the_time_limit(tmp_path: Path) -> None:
    """Nor does it take others with it: the worker that follows runs the rest."""
    plan = plan_of(case("exit-cleanly", at_eight(EXIT_CLEANLY), reference="x * 1.0"), timeout=3600.0)
    began = time.monotonic()
    verdicts, seen = ran(plan, tmp_path / "run", jobs=1)
    assert time.monotonic() - began < 60
    assert {o.cell.n: o.outcome for o in seen} == {4: Outcome.RAN, 8: Outcome.CRASHED, 16: Outcome.RAN}
    assert verdicts[0].status is Status.INCOMPLETE


def test_an_operator_without_a_kernel_is_told_apart(tmp_path: Path) -> None:
    call = "torch.linalg.inv(x.diag())"
    verdicts, seen = ran(plan_of(case("inv", call), dtypes=("float16",)), tmp_path / "run", jobs=1)
    assert {o.outcome for o in seen} == {Outcome.UNSUPPORTED}
    assert verdicts[0].status is Status.UNSUPPORTED


def test_the_proof_names_operator_dtype_and_device(tmp_path: Path) -> None:
    _, seen = ran(
        plan_of(
            case(
                "index_add",
                "torch.zeros_like(x[:1]).index_add(0, i, x)",
                inputs="x = torch.ones(n)\ni = torch.zeros(n, dtype=torch.int64)",
            )
        ),
        tmp_path / "run",
        jobs=1,
    )
    last = seen[-1]
    assert "aten::index_add" in last.operators or "aten::index_add_" in last.operators
    assert last.returned == ("float16 on cpu",)
    assert {(t.name, t.dtype, t.device) for t in last.inputs} == {("x", "float16", "cpu"), ("i", "int64", "cpu")}
    assert last.results[0].tensor.dtype == "float16"


def test_the_proof_covers_scalars_and_what_flows_back(tmp_path: Path) -> None:
    """A loss is a scalar, and so is the gradient that flows into it."""
    loss = case("loss", "x.exp().sum()", grad=("x",), inputs="x = torch.full((n,), math.log(n))")
    _, seen = ran(plan_of(loss), tmp_path / "run", jobs=1)
    forward, backward = (next(o for o in seen if o.cell.direction == d) for d in ("forward", "backward"))
    assert [(r.tensor.name, r.tensor.dtype, r.tensor.device, r.tensor.shape) for r in forward.results] == [
        ("output", "float16", "cpu", ())
    ]
    assert forward.between == ()
    assert [(t.name, t.dtype, t.device, t.shape) for t in backward.between] == [
        ("output", "float16", "cpu", ()),
        ("gradient of output", "float16", "cpu", ()),
    ]
    assert [r.tensor.name for r in backward.results] == ["gradient of x"]
    assert forward.returned == backward.returned == ("float16 on cpu",)


def test_a_finding_needs_a_reproducer_that_confirms_it(tmp_path: Path) -> None:
    """A fault that shows in the worker alone is not believed."""
    flaky = "x * (1.0 if 'numalign' not in __import__('sys').modules or n < 16 else float('inf'))"
    plan = plan_of(case("flaky", flaky, reference="x * 1.0"))
    with Store.create(tmp_path / "run", plan) as store:
        runner = LocalRunner(plan, 1)
        try:
            verdicts = scan(store, runner)
        finally:
            runner.close()
        (finding,) = conclude(store, verdicts, tmp_path / "run", 1)
    assert verdicts[0].status is Status.FAULT
    assert not finding.confirmed
    assert not (tmp_path / "run" / "drafts").exists()


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
            psutil.wait_procs(family, timeout=10)
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
