"""From a suspicion to a finding: write the reproducer, run it in a fresh process, and write the draft of what it
confirmed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from numalign.evidence.codes import CODES
from numalign.evidence.draft import draft_name, render_draft
from numalign.evidence.records import Finding, Observation, Plan, Result
from numalign.evidence.reproducer import CONFIRMED, render, reproducer_name
from numalign.numerics import FORMATS, accumulate, format_named
from numalign.scan.bound import BOUND_FAILURE
from numalign.scan.fresh import FreshProcesses
from numalign.scan.judge import MOST_NOISE, NOISE_FACTOR, Suspicion, Verdict, sizes

REPRODUCER_TIMEOUT = 120
"""Seconds a reproducer may take: it starts PyTorch and runs a few sizes that the scan has already run."""


class Proof(NamedTuple):
    """What running a reproducer gave."""

    confirmed: bool
    output: str


def prove(plan: Plan, verdicts: Sequence[Verdict], folder: Path, jobs: int) -> Iterator[Finding]:
    """Put every suspicion to its reproducer, ``jobs`` at a time, each in a fresh process."""
    suspects = [(verdict, suspicion) for verdict in verdicts for suspicion in verdict.suspicions]
    if not suspects:
        return
    idle: Queue[FreshProcesses] = Queue()
    servers = [FreshProcesses() for _ in range(min(jobs, len(suspects)))]
    for server in servers:
        idle.put(server)
    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            yield from pool.map(lambda suspect: _proved(plan, suspect[0], suspect[1], folder, idle), suspects)
    finally:
        for server in servers:
            server.close()


def write_drafts(plan: Plan, findings: Iterable[Finding], observations: Iterable[Observation], folder: Path) -> None:
    """Write one issue draft for every operator and device that has confirmed findings."""
    by_draft: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.confirmed:
            by_draft.setdefault(finding.draft, []).append(finding)
    seen = list(observations)
    for name, group in by_draft.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        ordered = sorted(group, key=lambda finding: (plan.tracks.index(finding.track), finding.first_failing_n))
        path.write_text(render_draft(plan, ordered, seen))


def _proved(plan: Plan, verdict: Verdict, suspicion: Suspicion, folder: Path, idle: Queue[FreshProcesses]) -> Finding:
    name = f"reproducers/{reproducer_name(suspicion.track, suspicion.code)}"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_reproducer(plan, verdict, suspicion))
    proof = _run(path, idle)
    shown = _worst(suspicion.first_failing)
    return Finding(
        id=path.stem,
        code=suspicion.code,
        track=suspicion.track,
        first_failing_n=suspicion.first_failing.cell.n,
        last_passing_n=suspicion.last_passing.cell.n if suspicion.last_passing else None,
        rung=suspicion.rung.cell.n,
        observed=shown.observed,
        expected=shown.rounded,
        error_ulp=None if shown.infinite or shown.nan or shown.misplaced else shown.error_ulp,
        summary=CODES[suspicion.code].title,
        reproducer=name,
        reproducer_output=proof.output,
        confirmed=proof.confirmed,
        repaired=suspicion.repaired,
        draft=f"drafts/{draft_name(suspicion.track)}",
    )


def _worst(observation: Observation) -> Result:
    return max(observation.results, key=lambda r: (r.nan + r.infinite + r.misplaced, r.flushed, r.excess))


def _reproducer(plan: Plan, verdict: Verdict, suspicion: Suspicion) -> str:
    track = suspicion.track
    result = suspicion.first_failing.results[0]
    fmt = format_named(result.tensor.dtype if result.tensor.dtype in FORMATS else track.dtype)
    wide = accumulate(fmt)
    passing = suspicion.last_passing.cell.n if suspicion.last_passing else None
    first, rung = suspicion.first_failing.cell.n, suspicion.rung.cell.n
    ladder = [n for n in sizes(plan, track) if n < first][-1:]
    return render(
        plan,
        track,
        sign=suspicion.sign,
        code=suspicion.code,
        sizes=sorted({n for n in (*ladder, passing, first, rung) if n is not None}),
        first=first,
        rung=rung,
        noise=MOST_NOISE[track.dtype] if suspicion.sign == "wrong" else NOISE_FACTOR * verdict.noise,
        precision=fmt.precision,
        emin=fmt.emin,
        accumulate=(wide.name, wide.precision),
        failure=BOUND_FAILURE,
    )


def _run(path: Path, idle: Queue[FreshProcesses]) -> Proof:
    server = idle.get()
    try:
        ended = server.run(path, REPRODUCER_TIMEOUT)
    finally:
        idle.put(server)
    lines = ended.output.strip().splitlines()
    if ended.status == -signal.SIGALRM:
        lines.append(f"no answer within {REPRODUCER_TIMEOUT} s")
    return Proof(ended.status == 1 and bool(lines) and lines[-1] == CONFIRMED, "\n".join(lines[-40:]))
