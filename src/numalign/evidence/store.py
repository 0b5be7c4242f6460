"""The store: one SQLite file a run, written after every cell, so that a run can be killed anywhere and resumed.

The file carries its own application id and schema version. It is checked before anything is written to it; a file that
fails the check is left as it was.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from numalign.errors import StoreError
from numalign.evidence.records import SCHEMA_VERSION, Finding, Observation, Plan, Record

APPLICATION_ID = 0x4E414C47
"""``NALG`` in ASCII: marks a SQLite file as one of ours."""

FILE_NAME = "store.sqlite"

_SCHEMA = """
CREATE TABLE plan (id INTEGER PRIMARY KEY CHECK (id = 1), json BLOB NOT NULL);
CREATE TABLE observation (cell TEXT PRIMARY KEY, json BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE finding (id TEXT PRIMARY KEY, json BLOB NOT NULL) WITHOUT ROWID;
"""

_R = TypeVar("_R", bound=Record)


class Store:
    """A run's records on disk. Use ``create`` or ``open``; close it, or use it as a context manager."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int | None) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock

    @classmethod
    def create(cls, folder: Path, plan: Plan) -> Store:
        """Make the store of a new run in ``folder``.

        Raises:
            StoreError: If the folder holds a store already, or cannot be written to.
        """
        path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot write a run to {folder}: {error.strerror}; name another folder with --out"
            ) from error
        if path.exists():
            raise StoreError(
                f"{folder} holds a run already; go on with it by --resume {folder}, or name another folder with --out"
            )
        lock = _locked(folder)
        # Written under another name and renamed: a kill in between leaves no half-made store behind.
        draft = folder / f".{FILE_NAME}.{os.getpid()}"
        try:
            connection = sqlite3.connect(draft)
            connection.executescript(
                f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION}; {_SCHEMA}"
            )
            connection.execute("INSERT INTO plan VALUES (1, ?)", (msgspec.json.encode(plan),))
            connection.commit()
            connection.close()
            draft.rename(path)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot write a run to {folder}: {error}; name another folder with --out") from error
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        return cls(path, _writable(path), lock)

    @classmethod
    def open(cls, folder: Path, *, write: bool = False) -> Store:
        """Open the store of a run, to read or, locked against others, to go on writing.

        Raises:
            StoreError: If there is none, it is no store, is damaged, has another version, or is being written to by
                another process.
        """
        path = folder / FILE_NAME if folder.is_dir() else folder
        if not path.is_file():
            raise StoreError(f"no run at {folder}: there is no {FILE_NAME}; `numalign scan --out {folder}` makes one")
        lock = None
        try:
            _check(path)
            lock = _locked(path.parent) if write else None
            connection = _writable(path) if write else sqlite3.connect(_uri(path), uri=True)
            store = cls(path, connection, lock)
            store.plan()
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            if lock is not None:
                os.close(lock)
            raise _damaged(path, error) from error
        return store

    def plan(self) -> Plan:
        """The plan that the run was made from."""
        row = self._connection.execute("SELECT json FROM plan").fetchone()
        if row is None:
            raise StoreError(f"{self.path} is damaged (it holds no plan); it is left as it is")
        return msgspec.json.decode(row[0], type=Plan)

    def add(self, observation: Observation) -> None:
        """Store an observation, for good, before the next cell starts."""
        with self._connection:
            self._connection.execute(
                "INSERT INTO observation VALUES (?, ?)", (observation.cell.id, msgspec.json.encode(observation))
            )

    def conclude(self, findings: list[Finding]) -> None:
        """Store the findings, in place of any from before."""
        with self._connection:
            self._connection.execute("DELETE FROM finding")
            self._connection.executemany(
                "INSERT INTO finding VALUES (?, ?)",
                [(finding.id, msgspec.json.encode(finding)) for finding in findings],
            )

    def observations(self) -> list[Observation]:
        """Every observation, by cell id."""
        return list(self._all("SELECT json FROM observation ORDER BY cell", Observation))

    def findings(self) -> list[Finding]:
        """Every finding, by id."""
        return list(self._all("SELECT json FROM finding ORDER BY id", Finding))

    def _all(self, query: str, kind: type[_R]) -> Iterator[_R]:
        try:
            for (row,) in self._connection.execute(query):
                yield msgspec.json.decode(row, type=kind)
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise _damaged(self.path, error) from error

    def close(self) -> None:
        """Close the file and let others write to it."""
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(_uri(path), uri=True)
    try:
        yield connection
    finally:
        connection.close()


def _check(path: Path) -> None:
    """Read the marks of the file without touching it."""
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            raise StoreError(f"{path} is not a numalign store (no SQLite header); it is left as it is")
    with _reading(path) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID:
            raise StoreError(f"{path} is not a numalign store (application id {application:#x}); it is left as it is")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path} has store version {version}, this numalign reads version {SCHEMA_VERSION}; it is left as it "
                f"is: use the numalign that wrote it, or start a new run"
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _damaged(path, verdict)


def _damaged(path: Path, what: object) -> StoreError:
    return StoreError(f"{path} is damaged ({' '.join(str(what).split())}); it is left as it is")


def _uri(path: Path) -> str:
    """To read only. A file without a write-ahead log was closed in order and nobody writes to it: nothing is put beside it."""
    log = path.with_name(f"{path.name}-wal")
    return f"{path.resolve().as_uri()}?mode=ro{'' if log.exists() else '&immutable=1'}"


def _writable(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    return connection


def _locked(folder: Path) -> int:
    """Hold the folder's lock. The kernel lets go of it when the process ends, however it ends."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}; name another folder with --out") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(
            f"another process is writing to the run at {folder}; wait for it, or name another folder with --out"
        ) from error
    return descriptor
