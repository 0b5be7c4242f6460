"""Runs with real worker processes: a planted crash, hang or failed allocation loses one cell."""

from __future__ import annotations

import time
from pathlib import Path

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
