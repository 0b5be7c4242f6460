"""The store keeps what it is given, and leaves alone what it cannot read."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from numalign.errors import StoreError
from numalign.evidence.records import Plan
from numalign.evidence.store import APPLICATION_ID, FILE_NAME, Store
from records import environment, observation, plan_of, ramp


@pytest.fixture
def plan() -> Plan:
    return plan_of(ramp())


def test_what_was_added_is_read_back(tmp_path: Path, plan: Plan) -> None:
    seen = [observation(plan.tracks[0].cell(n), value=1.0) for n in (16, 64)]
    with Store.create(tmp_path / "run", plan) as store:
        for one in seen:
            store.add(one)
    with Store.open(tmp_path / "run") as store:
        assert store.plan() == plan
        assert sorted(store.observations(), key=lambda o: o.cell.n) == seen
        assert store.plan().environment == environment()


def test_non_finite_values_survive(tmp_path: Path, plan: Plan) -> None:
    seen = observation(plan.tracks[0].cell(16), value=float("nan"))
    with Store.create(tmp_path / "run", plan) as store:
        store.add(seen)
        (back,) = store.observations()
    assert back == seen
    assert back.results[0].observed == "nan"


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path, plan: Plan) -> None:
    Store.create(tmp_path / "run", plan).close()
    before = (tmp_path / "run" / FILE_NAME).read_bytes()
    with pytest.raises(StoreError, match="holds a run already"):
        Store.create(tmp_path / "run", plan)
    assert (tmp_path / "run" / FILE_NAME).read_bytes() == before


def test_a_second_writer_is_refused(tmp_path: Path, plan: Plan) -> None:
    with Store.create(tmp_path / "run", plan):
        imports = "from pathlib import Path; from numalign.evidence.store import Store; "
        code = f"{imports}Store.open(Path({str(tmp_path / 'run')!r}), write=True)"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process is writing" in other.stderr
    Store.open(tmp_path / "run", write=True).close()


def _write_text(path: Path) -> None:
    path.write_text("this is a diary\n")


def _write_empty(path: Path) -> None:
    path.write_bytes(b"")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    path.write_bytes(raw)


def _other_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=999")
    connection.commit()
    connection.close()


def _other_application(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA application_id=7; CREATE TABLE plan (id INTEGER);")
    connection.close()


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_write_text, "not a numalign store"),
        (_write_empty, "not a numalign store"),
        (_truncate, "damaged"),
        (_damage, "damaged"),
        (_other_version, "version 999"),
        (_other_application, "not a numalign store"),
    ],
)
def test_a_spoilt_store_is_refused_and_left_alone(
    tmp_path: Path, plan: Plan, spoil: object, says: str, write: bool
) -> None:
    Store.create(tmp_path / "run", plan).close()
    path = tmp_path / "run" / FILE_NAME
    spoil(path)  # type: ignore[operator]
    before = path.read_bytes()
    with pytest.raises(StoreError, match=says):
        Store.open(tmp_path / "run", write=write)
    assert path.read_bytes() == before


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run at"):
        Store.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_the_file_says_what_it_is(tmp_path: Path, plan: Plan) -> None:
    Store.create(tmp_path / "run", plan).close()
    connection = sqlite3.connect(tmp_path / "run" / FILE_NAME)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()
