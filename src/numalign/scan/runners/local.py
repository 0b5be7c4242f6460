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

from pebble import ProcessExpired, ProcessPool

from numalign.evidence.records import Cell, Observation, Outcome, Plan
from numalign.scan.worker import run_cell, start, stderr_path

MEMORY_SHARE = 0.8
"""Part of the machine's memory that all workers together may take: past it the kernel would choose a process to
kill."""

LAST_WORDS = re.compile(
    r"^(Fatal Python error: .*|\s*File \".*\", line \d+ in .*|terminate called.*|\s*what\(\):.*|.*[Aa]ssert.*)$"
)
"""Lines of a dead worker's standard error that tell the same story every time: no addresses, no thread ids."""

MOST_LAST_WORDS = 6


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
        ended, _ = wait(self._running, return_when=FIRST_COMPLETED)
        return [self._observation(future, self._running.pop(future)) for future in ended]

    def _observation(self, future: Future[Observation], cell: Cell) -> Observation:
        try:
            return future.result()
        except FutureTimeout:
            limit = self._plan.timeout
            return Observation(cell=cell, outcome=Outcome.TIMEOUT, detail=f"killed after {limit:g} s", seconds=limit)
        except ProcessExpired as death:
            killed = -death.exitcode == signal.SIGKILL
            outcome = Outcome.OUT_OF_MEMORY if killed else Outcome.CRASHED
            return Observation(cell=cell, outcome=outcome, detail=self._last_words(death))

    def _last_words(self, death: ProcessExpired) -> str:
        code = death.exitcode
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        try:
            text = stderr_path(self._stderr, death.pid).read_text(errors="replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if LAST_WORDS.match(line)]
        return "; ".join([f"worker ended by {cause}", *lines[:MOST_LAST_WORDS]])

    def close(self) -> None:
        """Stop all workers, whatever they are at."""
        self._pool.stop()
        self._pool.join()
        shutil.rmtree(self._stderr, ignore_errors=True)


def _memory_limit(plan: Plan, jobs: int) -> int | None:
    """Bytes a worker may take. None with an accelerator, whose runtime maps far more memory than it uses."""
    if any(not track.device.startswith("cpu") for track in plan.tracks):
        return None
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(physical * MEMORY_SHARE / jobs)
