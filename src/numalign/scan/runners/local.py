"""Worker processes on this machine. A crash, a hang or a failed allocation loses one cell and no other."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from numalign.evidence.records import Cell, Observation, Outcome, Plan
from numalign.scan.worker import ended_by_itself, run_cell, start, stderr_path

MEMORY_SHARE = 0.8
"""Part of the machine's memory that all workers together may take: past it the kernel would choose a process to
kill."""

LAST_WORDS = re.compile(
    r"^(Fatal Python error: .*|\s*File \".*\", line \d+ in .*|terminate called.*|\s*what\(\):.*|.*[Aa]ssert.*)$"
)
"""Lines of a dead worker's standard error that tell the same story every time: no addresses, no thread ids."""

MOST_LAST_WORDS = 6

CHECK_INTERVAL = 0.2
"""Seconds between looks at whether the workers still live."""

GRACE = 1.0
"""Seconds that the pool gets to say itself how a dead worker ended. It looks ten times a second, and keeps quiet about exit
status 0 alone."""


class LocalRunner:
    """A pool of worker processes, each with its own limits; see ``Runner``."""

    def __init__(self, plan: Plan, jobs: int) -> None:
        self._plan = plan
        self._cases = {case.id: case for case in plan.cases}
        self._stderr = tempfile.mkdtemp(prefix="numalign-")
        self._running: dict[Future[Observation], Cell] = {}
        # Threads of a worker that wait for work must not spin: they would take the cores from the other workers.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._pool = ProcessPool(
            max_workers=jobs,
            context=multiprocessing.get_context("spawn"),
            initializer=start,
            initargs=(self._stderr, plan.threads, _memory_limit(plan, jobs), plan.imports),
        )
        self.slots = jobs
        # Born deaf to Ctrl-C, which is for the scan: until `start` runs they would answer it with a traceback.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._pool.active  # noqa: B018  # reading it starts the workers
        signal.signal(signal.SIGINT, before)

    def submit(self, cell: Cell) -> None:
        """Take a cell; returns at once."""
        arguments = (cell, self._cases[cell.case], self._plan.seed)
        self._running[self._pool.schedule(run_cell, args=arguments, timeout=self._plan.timeout)] = cell

    def next(self) -> list[Observation]:
        """Wait until at least one submitted cell has ended, well or badly, and give all that have."""
        while True:
            ended, _ = wait(self._running, timeout=CHECK_INTERVAL, return_when=FIRST_COMPLETED)
            observations = [self._observation(future, self._running.pop(future)) for future in ended]
            if observations := observations + self._deserted():
                return observations

    def _deserted(self) -> list[Observation]:
        """Cells whose worker is gone and that the pool does not give back, because it takes exit status 0 for a good end."""
        logs = {int(log.stem): log for log in Path(self._stderr).iterdir()}
        dead = {_cell_at(log): pid for pid, log in logs.items() if not _lives(pid)}
        deserted = {future: dead[cell.id] for future, cell in self._running.items() if cell.id in dead}
        if not deserted:
            return []
        wait(deserted, timeout=GRACE)
        return [
            Observation(
                cell=self._running.pop(future),
                outcome=Outcome.CRASHED,
                detail=self._last_words(pid, ended_by_itself(0)),
            )
            for future, pid in deserted.items()
            if future.cancel()
        ]

    def _observation(self, future: Future[Observation], cell: Cell) -> Observation:
        try:
            return future.result()
        except FutureTimeout:
            limit = self._plan.timeout
            return Observation(cell=cell, outcome=Outcome.TIMEOUT, detail=f"killed after {limit:g} s", seconds=limit)
        except ProcessExpired as death:
            code = death.exitcode
            outcome = Outcome.OUT_OF_MEMORY if -code == signal.SIGKILL else Outcome.CRASHED
            cause = f"the process was ended by {signal.Signals(-code).name}" if code < 0 else ended_by_itself(code)
            return Observation(cell=cell, outcome=outcome, detail=self._last_words(death.pid, cause))

    def _last_words(self, pid: int, cause: str) -> str:
        try:
            text = stderr_path(self._stderr, pid).read_text(errors="replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if LAST_WORDS.match(line)]
        return "; ".join([cause, *lines[:MOST_LAST_WORDS]])

    def close(self) -> None:
        """Stop all workers, whatever they are at."""
        self._pool.stop()
        self._pool.join()
        shutil.rmtree(self._stderr, ignore_errors=True)


def _cell_at(log: Path) -> str:
    """Id of the cell that a worker took last: the first line of its standard error."""
    with log.open(errors="replace") as file:
        return file.readline().strip()


def _lives(pid: int) -> bool:
    """Whether there is such a process. One that has ended counts as living until the pool has looked at it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _memory_limit(plan: Plan, jobs: int) -> int | None:
    """Bytes a worker may take. None with an accelerator, whose runtime maps far more memory than it uses."""
    if any(not track.device.startswith("cpu") for track in plan.tracks):
        return None
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(physical * MEMORY_SHARE / jobs)
