"""The run: keeps the runner busy with what the judge wants, stores every observation, and concludes when nothing is
wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from numalign.evidence.records import Cell, Finding, Track
from numalign.evidence.store import Store
from numalign.scan.board import Board, Progress
from numalign.scan.conclude import prove, write_drafts
from numalign.scan.judge import Verdict
from numalign.scan.runners.protocol import Runner

Report = Callable[[Progress], None]


def scan(store: Store, runner: Runner, report: Report = lambda progress: None) -> list[Verdict]:
    """Run every cell that the store's plan still needs. Each observation is stored before another cell is handed
    out."""
    plan = store.plan()
    board = Board(plan, store.observations())
    running: set[Cell] = set()
    queue = list(plan.tracks)
    faulty = {track for track in plan.tracks if board.faulty(track)}
    while True:
        _fill(runner, board, queue, running)
        report(board.progress(len(faulty)))
        if not running:
            return board.verdicts()
        for observation in runner.next():
            store.add(observation)
            running.discard(observation.cell)
            track = board.record(observation)
            if board.faulty(track):
                faulty.add(track)


def conclude(
    store: Store, verdicts: list[Verdict], folder: Path, jobs: int, report: Report = lambda progress: None
) -> list[Finding]:
    """Turn suspicions into findings, write reproducers and drafts, store the findings."""
    plan = store.plan()
    known = sum(len(verdict.suspicions) for verdict in verdicts)
    findings: list[Finding] = []
    report(Progress("reproducers", 0, known, known))
    for finding in prove(plan, verdicts, folder, jobs):
        findings.append(finding)
        report(Progress("reproducers", len(findings), known, known))
    write_drafts(plan, findings, store.observations(), folder)
    store.conclude(findings)
    return findings


def _fill(runner: Runner, board: Board, queue: list[Track], running: set[Cell]) -> None:
    """Hand out cells track by track, in the plan's order, until every slot has one running and one waiting."""
    busy = {cell.track for cell in running}
    for track in list(queue):
        if len(running) >= 2 * runner.slots:
            return
        wanted = board.wanted(track)
        if not wanted and track not in busy:
            queue.remove(track)
        for cell in wanted:
            if cell not in running and len(running) < 2 * runner.slots:
                runner.submit(cell)
                running.add(cell)
