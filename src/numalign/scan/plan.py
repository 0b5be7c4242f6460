"""The plan: what is selected, crossed into tracks. Names and numbers only; every name is checked here, before anything
runs."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from importlib import import_module

import torch

import numalign
from numalign.catalogue import cases
from numalign.errors import DeviceUnavailableError, UsageError
from numalign.evidence.records import Case, Environment, Plan, Track
from numalign.scan.select import Selection, check_pattern, near, selected

DTYPES = ("float16", "bfloat16", "float32", "float64")
DIRECTIONS = ("forward", "backward")

MOST_SIZE = (1 << 63) - 1
"""The largest size, and the largest seed, that PyTorch takes."""

MOST_THREADS = 1024
"""More than any machine gives one process; OpenMP aborts the process where it cannot make what it was asked for."""


def make_plan(selection: Selection) -> Plan:
    """Check every name and cross what is selected.

    Raises:
        UsageError: If a name matches nothing, or a number is out of range; the message names near matches.
        DeviceUnavailableError: If a device is not there.
    """
    _import(selection.imports)
    known = cases()
    _check(selection, known)
    chosen = [
        case for case in known if selected(case, selection.select or ("*",)) and not selected(case, selection.ignore)
    ]
    tracks = tuple(
        Track(case=case.id, dtype=dtype, device=device, direction=direction)
        for device in selection.device
        for case in chosen
        for dtype in selection.dtype or case.dtypes
        for direction in case.directions
        if (not selection.direction or direction in selection.direction) and case.ladder(dtype)[0] <= selection.max_size
    )
    used = {track.case for track in tracks}
    return Plan(
        environment=environment(selection.threads, selection.device),
        cases=tuple(case for case in chosen if case.id in used),
        tracks=tracks,
        max_size=selection.max_size,
        repaired=selection.repaired,
        seed=selection.seed,
        timeout=selection.timeout,
        threads=selection.threads,
        imports=selection.imports,
    )


def _check(selection: Selection, known: Sequence[Case]) -> None:
    for pattern in (*selection.select, *selection.ignore):
        check_pattern(pattern, known)
    for dtype in selection.dtype:
        _check_name(dtype, DTYPES, "dtype")
    for direction in selection.direction:
        _check_name(direction, DIRECTIONS, "direction")
    for device in selection.device:
        check_device(device)
    for option, value, least, most in (
        ("--max-size", selection.max_size, 1, MOST_SIZE),
        ("--threads", selection.threads, 1, MOST_THREADS),
        ("--seed", selection.seed, 0, MOST_SIZE),
    ):
        if not least <= value <= most:
            raise UsageError(f"{option} is {value}; wanted a whole number from {least} to {most}")
    if not 0 < selection.timeout < math.inf:
        raise UsageError(f"--timeout is {selection.timeout:g}; wanted a number of seconds above 0")


def environment(threads: int, devices: Sequence[str]) -> Environment:
    """The machine and the versions, as they are now."""
    return Environment(
        numalign=numalign.__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        threads=threads,
        devices=tuple(f"{device}: {_device_name(device)}" for device in devices),
    )


def check_resumable(plan: Plan) -> None:
    """Make sure that this process would observe what the one that made ``plan`` did.

    Raises:
        UsageError: If PyTorch is another version, or a module cannot be imported.
        DeviceUnavailableError: If a device is gone.
    """
    if plan.environment.torch != torch.__version__:
        raise UsageError(
            f"the run was made with torch {plan.environment.torch}, this is torch {torch.__version__}: "
            "its cells would not be comparable; start a new run"
        )
    _import(plan.imports)
    for device in sorted({track.device for track in plan.tracks}):
        check_device(device)


def check_device(device: str) -> None:
    """Make sure that ``device`` exists, by allocating on it.

    Raises:
        UsageError: If PyTorch does not know the name.
        DeviceUnavailableError: If nothing can be allocated there.
    """
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        names = ("cpu", "cuda", "xpu", "mps", "npu", "hpu", "mtia", "privateuseone")
        raise UsageError(
            f"unknown device {device!r}{near(device, names)}; wanted a name such as cpu, cuda or xpu:1"
        ) from error
    if parsed.type == "meta":
        raise DeviceUnavailableError("device 'meta' holds no numbers; name a device that computes")
    if parsed.type == "cpu" and parsed.index:
        raise DeviceUnavailableError(f"device {device!r} is not there: PyTorch has one cpu")
    try:
        torch.zeros(1, device=parsed).item()
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceUnavailableError(f"device {device!r} is not there: {first}") from error


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            with redirect_stdout(sys.stderr):  # a backend's banner is no result
                import_module(module)
        except (Exception, SystemExit) as error:
            raise UsageError(f"--import {module} failed: {type(error).__name__}: {error}") from error


def _check_name(name: str, known: Sequence[str], kind: str) -> None:
    if name not in known:
        raise UsageError(f"unknown {kind} {name!r}{near(name, known)}; wanted one of {', '.join(known)}")


def _device_name(device: str) -> str:
    parsed = torch.device(device)
    module = getattr(torch, parsed.type, None)
    name = getattr(module, "get_device_name", None)
    return str(name(parsed)) if callable(name) else _processor() if parsed.type == "cpu" else parsed.type


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
