"""Plain mistakes that are no matter of precision must be found at once, and their clean twins must not."""

from __future__ import annotations

import pytest

from numalign.evidence.records import Case
from numalign.evidence.store import Store
from numalign.scan.judge import Status
from numalign.scan.run import conclude, scan
from numalign.scan.runners.local import LocalRunner
from records import plan_of

# Name, inputs, faulty call, right call.
MISTAKES = [
    ("double", "x = torch.rand(n)", "x.sum() * 2", "x.sum()"),
    ("sign", "x = torch.rand(n)", "-x", "x * 1"),
    ("five-percent", "x = torch.rand(n)", "x.mean() * 1.05", "x.mean()"),
    ("spurious", "x = torch.rand(n)", "x * 0 + 1e-3", "x * 0"),
    ("swallowed-nan", "x = torch.rand(n)\nx[0] = math.nan", "x.nan_to_num()", "x * 1"),
    ("swallowed-inf", "x = torch.rand(n)\nx[0] = math.inf", "x.nan_to_num(posinf=1.0)", "x * 1"),
    ("nan-for-inf", "x = torch.full((n,), 60000.0)", "(x + x) * math.nan", "x + x"),
    ("zero-for-inf", "x = torch.full((n,), 60000.0)", "(x + x) * 0", "x + x"),
    ("integer", "x = torch.rand(n)", "x.argmax() + 1", "x.argmax()"),
    ("truth", "x = torch.rand(n)", "x < 0", "x >= 0"),
    ("vanished", "x = torch.rand(n)", "x * 0", "x * 1"),
]


def case(name: str, inputs: str, call: str, reference: str) -> Case:
    return Case(
        operator=name,
        name="planted",
        family="planted",
        why="Planted.",
        inputs=inputs,
        call=call,
        reference=reference,
        sizes=(16, 256, 4096),
        dtypes=("float16",),
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Codes by case, each confirmed by its reproducer."""
    faulty = [case(name, inputs, wrong, right) for name, inputs, wrong, right in MISTAKES]
    clean = [case(f"{name}-twin", inputs, right, right) for name, inputs, _, right in MISTAKES]
    plan = plan_of(*faulty, *clean)
    folder = tmp_path_factory.mktemp("planted") / "run"
    with Store.create(folder, plan) as store:
        runner = LocalRunner(plan, 2)
        try:
            verdicts = scan(store, runner)
        finally:
            runner.close()
        assert not [verdict for verdict in verdicts if verdict.status is Status.INCOMPLETE]
        found: dict[str, set[str]] = {verdict.track.operator: set() for verdict in verdicts}
        for finding in conclude(store, verdicts, folder, 2):
            assert finding.confirmed, finding
            found[finding.track.operator].add(finding.code)
    return found


@pytest.mark.parametrize("name", [name for name, *_ in MISTAKES])
def test_a_planted_mistake_is_found_and_its_twin_is_not(planted: dict[str, set[str]], name: str) -> None:
    assert planted[name] == {"NA203"}
    assert not planted[f"{name}-twin"]
