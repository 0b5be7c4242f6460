"""The board: what is known of every track while a run goes on, derived from observations alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from numalign.evidence.records import Cell, Observation, Plan, Track
from numalign.evidence.store import Store
from numalign.scan.judge import Verdict, judge, wanted


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        stage: What is being done.
        done: Cells stored, or reproducers run.
        known: Cells, or reproducers, known to be needed so far; bisection adds to it.
        faults: Tracks with a suspicion so far.
    """

    stage: str
    done: int
    known: int
    faults: int


class Board:
    """What is known of every track while a run goes on. Derived from observations; nothing else is kept."""

    def __init__(self, plan: Plan, observations: Iterable[Observation]) -> None:
        self._plan = plan
        self._seen: dict[Track, list[Observation]] = {track: [] for track in plan.tracks}
        self._wanted: dict[Track, list[Cell]] = {}
        for observation in observations:
            self._seen[observation.cell.track].append(observation)
        for track in plan.tracks:
            self._refresh(track)

    def record(self, observation: Observation) -> Track:
        """Take in one observation; gives its track."""
        track = observation.cell.track
        self._seen[track].append(observation)
        self._refresh(track)
        return track

    def wanted(self, track: Track) -> list[Cell]:
        """Cells that this track needs next."""
        return self._wanted[track]

    def verdicts(self) -> list[Verdict]:
        """The verdict on every track, in the plan's order."""
        return [judge(self._plan, track, self._seen[track]) for track in self._plan.tracks]

    def progress(self, faults: int) -> Progress:
        """Cells done and cells known to be needed."""
        done = sum(map(len, self._seen.values()))
        return Progress("cells", done, done + sum(map(len, self._wanted.values())), faults)

    def faulty(self, track: Track) -> bool:
        """Whether this track has a suspicion."""
        return bool(judge(self._plan, track, self._seen[track]).suspicions)

    def _refresh(self, track: Track) -> None:
        self._wanted[track] = wanted(self._plan, track, self._seen[track])


def verdicts_of(store: Store) -> list[Verdict]:
    """The verdicts that a stored run amounts to, as far as it went."""
    return Board(store.plan(), store.observations()).verdicts()
