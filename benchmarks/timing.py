"""The time of a step on a device, beside that of others tried in turn.

On CUDA many iterations are captured into one graph, and its replays are timed by events: kernels alone, without Python and
launches. What waits for the device on its way cannot be captured and is timed in the stream, with all its gaps. Elsewhere a
clock is read. "how" says which it was.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[int], object]
"""One iteration, by its number."""

Record = dict[str, Any]

WARM_UP = 3
ROUNDS = 9
MOST_ITERATIONS = 128
SPAN_MS = 2.0  # what one round should take at the floor, so that starting it does not count
MOST_MS = 20.0  # what one round of a slow step may take


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def why(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}"


def milliseconds(start: Callable[[], object], device: torch.device) -> float:
    """The time of what ``start`` starts."""
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        start()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    clock = time.perf_counter()
    start()
    synchronize(device)
    return (time.perf_counter() - clock) * 1e3


def _repeat(step: Step, iterations: int) -> None:
    for i in range(iterations):
        step(i)


def _captured(step: Step, iterations: int) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _repeat(step, iterations)
    return graph.replay


class _Timed:
    """A step made ready: some iterations of it that can be started again and again."""

    def __init__(self, step: Step, device: torch.device, capture: bool, multiple: int, floor_ms: float) -> None:
        self.device = device
        self.how = "events" if device.type == "cuda" else "clock"
        self.ms: list[float] = []
        self._warm_up(step, max(WARM_UP, multiple))
        once = milliseconds(lambda: _repeat(step, multiple), device) / multiple
        wanted = min(SPAN_MS / floor_ms, MOST_MS / once, MOST_ITERATIONS)
        self.iterations = multiple * max(1, math.floor(wanted / multiple))
        self._start: Callable[[], None] = lambda: _repeat(step, self.iterations)
        self.not_captured: str | None = None
        if device.type == "cuda" and capture:
            try:
                self._start = _captured(step, self.iterations)
                self.how = "graph"
            except Exception as error:
                self.not_captured = why(error)
        milliseconds(self._start, device)

    def _warm_up(self, step: Step, iterations: int) -> None:
        """Compile, load, and allocate, on a stream of its own as capturing asks for."""
        if self.device.type != "cuda":
            _repeat(step, iterations)
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _repeat(step, iterations)
        torch.cuda.current_stream().wait_stream(stream)
        synchronize(self.device)

    def take(self) -> None:
        self.ms.append(milliseconds(self._start, self.device) / self.iterations)

    def record(self) -> Record:
        found: Record = {
            "ms": statistics.median(self.ms),
            "least_ms": min(self.ms),
            "most_ms": max(self.ms),
            "iterations": self.iterations,
            "how": self.how,
        }
        if self.not_captured:
            found["not_captured"] = self.not_captured
        return found


def interleaved(
    steps: dict[str, Step | str],
    device: torch.device,
    *,
    multiple: int = 1,
    floor_ms: float,
    uncaptured: frozenset[str] = frozenset(),
    rounds: int = ROUNDS,
) -> dict[str, Record]:
    """The median time of an iteration of each step, all tried in turn; or the error that it ended with.

    Args:
        steps: by name; a string is the reason why one cannot be made.
        multiple: iterations come in multiples of this, one for each copy of the inputs.
        floor_ms: the least that an iteration can take.
        uncaptured: the names of those that wait for the device.
    """
    found: dict[str, Record] = {}
    ready: dict[str, _Timed] = {}
    for name, step in steps.items():
        if isinstance(step, str):
            found[name] = {"error": step}
            continue
        try:
            ready[name] = _Timed(step, device, name not in uncaptured, multiple, floor_ms)
        except Exception as error:
            found[name] = {"error": why(error)}
    for _ in range(rounds):
        for timed in ready.values():
            timed.take()
    found.update((name, timed.record()) for name, timed in ready.items())
    ready.clear()
    return {name: found[name] for name in steps}


def release(device: torch.device) -> None:
    """Give back what graphs and compiled code of the last shape hold."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
