"""The worker process: rebuilds a cell's inputs, runs the operator and its reference, and measures the one against the
other.

The reference is always computed while nothing is repaired, on the CPU, in float64, from the values already rounded to
the dtype under test. The worker judges nothing.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import msgspec
import torch

from numalign.catalogue.evaluate import Values, evaluate, evaluation, make_inputs, moved, widened
from numalign.evidence.records import Case, Cell, Observation, Outcome, TensorFacts
from numalign.scan.measure import facts, measured
from numalign.scan.witness import Witness, off_device

OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "out of memory", "Cannot allocate memory", "std::bad_alloc")
"""What allocators say where they do not raise a type of their own."""

_pending_imports: list[str] = []
"""Modules that this worker still has to import. Its first cell does it, under that cell's time limit and protection."""

UNSUPPORTED_TEXTS = (
    "not implemented for",
    "not supported",
    "is not implemented",
    "not yet implemented",
    "Could not run",
)
"""How backends say that a dtype or an operator is not theirs."""


def start(stderr_folder: str, threads: int, memory_limit: int | None, imports: tuple[str, ...]) -> None:
    """Prepare a fresh worker process; called once, before its first cell.

    Args:
        stderr_folder: Folder for this process's standard error, one file a process, so that last words survive a crash.
        threads: Threads for operators on the CPU.
        memory_limit: Most bytes of private memory; an allocation past it fails in this process alone. None: no limit.
        imports: Modules to import before the first cell, such as an out-of-tree backend.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    log = os.open(stderr_path(stderr_folder, os.getpid()), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    faulthandler.enable()
    if memory_limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(log, 1)  # a backend's banner belongs to no result
    torch.set_num_threads(threads)
    _pending_imports.extend(imports)


def stderr_path(folder: str, pid: int) -> Path:
    """Where the worker with this process id writes its standard error."""
    return Path(folder) / f"{pid}.txt"


def ended_by_itself(status: int) -> str:
    """What is said of a cell that ended its process, with ``exit`` or in any other way."""
    return f"the process ended by itself with exit status {status}"


def run_cell(cell: Cell, case: Case, seed: int) -> Observation:
    """Run one cell to its end. Whatever the operator raises becomes an observation.

    The first line of standard error names the cell, so that one whose process ends without a word is known.
    """
    os.ftruncate(2, 0)
    os.write(2, f"{cell.id}\n".encode())
    began = time.perf_counter()
    try:
        while _pending_imports:
            import_module(_pending_imports[0])
            del _pending_imports[0]
        observation = _observe(cell, case, seed)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)  # as the interpreter does
        observation = Observation(cell=cell, outcome=Outcome.CRASHED, detail=ended_by_itself(code))
    except Exception as error:
        observation = Observation(cell=cell, outcome=_outcome(error), detail=_message(error))
    return _timed(observation, time.perf_counter() - began)


def _observe(cell: Cell, case: Case, seed: int) -> Observation:
    dtype = getattr(torch, cell.dtype)
    inputs = make_inputs(case, cell.n, dtype, seed)
    on_device = moved(inputs, cell.device)
    with warnings.catch_warnings(record=True) as said, _arm(cell), Witness(cell.device) as witness:
        warnings.simplefilter("always")
        observed, between = evaluation(case, case.call, on_device, cell.direction)
    wide = widened(inputs)
    expected = evaluate(case, case.reference or case.call, wide, cell.direction)
    magnitudes = _magnitudes(case, wide, cell, expected)
    astray = off_device(cell.device, witness, observed, [str(warning.message) for warning in said])
    return Observation(
        cell=cell,
        outcome=Outcome.FALLBACK if astray else Outcome.RAN,
        results=tuple(
            measured(name, value, expected[name], magnitudes[name], cell.n) for name, value in observed.items()
        ),
        inputs=_facts(on_device),
        between=_facts(between),
        operators=tuple(sorted(witness.operators)),
        returned=tuple(sorted(witness.returned)),
        detail=astray,
    )


def _magnitudes(case: Case, wide: Values, cell: Cell, expected: Values) -> Values:
    if not case.magnitude:
        return {name: value.double().abs() for name, value in expected.items()}
    return {name: value.abs() for name, value in evaluate(case, case.magnitude, wide, cell.direction).items()}


def _facts(values: Values) -> tuple[TensorFacts, ...]:
    return tuple(facts(name, value) for name, value in values.items() if isinstance(value, torch.Tensor))


@contextmanager
def _arm(cell: Cell) -> Iterator[None]:
    if cell.arm == "stock":
        yield
        return
    from numalign.ops import repair

    with repair(torch.device(cell.device).type):
        yield


def _timed(observation: Observation, seconds: float) -> Observation:
    return msgspec.structs.replace(observation, seconds=round(seconds, 4))


def _outcome(error: BaseException) -> Outcome:
    text = str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(part in text for part in OUT_OF_MEMORY_TEXTS):
        return Outcome.OUT_OF_MEMORY
    if isinstance(error, NotImplementedError) or any(part in text for part in UNSUPPORTED_TEXTS):
        return Outcome.UNSUPPORTED
    return Outcome.RAISED


def _message(error: BaseException) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _die_with_parent() -> None:
    """Ask Linux to end this process when the scan is killed, so that nothing outlives a ``kill -9``. The scan may be gone
    already: this process has had torch to load."""
    try:
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        os._exit(1)
