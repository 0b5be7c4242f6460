"""Time and memory of cross-entropy and its gradient on a device, beside others and beside the floor.

The floor is what no kernel can beat: the logits read once, the gradient written once and 8 bytes of target per element, at the
bandwidth of a copy on the same device in the same run.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import numalign
import peers
from machine import cache_bytes
from parts import Column, Part, Settings, dtype_name, number, shape_text
from timing import Record, Step, interleaved, release, synchronize, why

SPATIAL = [
    (8, 21, 512, 512),
    (8, 150, 512, 512),
    (4, 19, 1024, 2048),
    (2, 14, 128, 128, 128),
    (2, 2, 192, 192, 192),
]
ROWS = [(32768, 1024), (16384, 32000), (8192, 128256), (4096, 262144)]
SMALL = (1, 21, 64, 64)
MOST_COPIES = 8


def floor_bytes(sizes: tuple[int, ...], dtype: torch.dtype) -> int:
    logits = math.prod(sizes)
    return 2 * logits * dtype.itemsize + 8 * (logits // sizes[1])


class Inputs:
    """Standard-normal logits and uniform targets, in as many copies as overflow the cache twice, used in turn."""

    def __init__(
        self, sizes: tuple[int, ...], dtype: torch.dtype, settings: Settings, *, channels_last: bool = False
    ) -> None:
        torch.manual_seed(0)
        size, cache = math.prod(sizes) * dtype.itemsize, cache_bytes(settings.device)
        copies = min(MOST_COPIES, -(-2 * cache // size))
        self.fits_cache = copies * size < cache
        self.pairs = [self._pair(sizes, dtype, settings.device, channels_last) for _ in range(copies)]

    @staticmethod
    def _pair(
        sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device, channels_last: bool
    ) -> tuple[Tensor, Tensor]:
        logits = torch.randn(sizes, dtype=dtype, device=device)
        if channels_last:
            logits = logits.contiguous(memory_format=torch.channels_last if len(sizes) == 4 else torch.channels_last_3d)
        return logits.requires_grad_(), torch.randint(sizes[1], (sizes[0], *sizes[2:]), device=device)

    def step(self, peer: peers.Peer | str) -> Step | str:
        """Iterations over the copies in turn. As many gradients are kept, so that these overflow the cache as well."""
        if isinstance(peer, str):
            return peer
        pairs = self.pairs
        if peer.overwrites:
            pairs = [(x.detach().clone().requires_grad_(), t) for x, t in pairs]
        kept: list[Tensor | None] = [None] * len(pairs)

        def step(i: int) -> None:
            i %= len(pairs)
            kept[i] = peer.gradient(*pairs[i])

        return step


def _compare(settings: Settings, sizes: tuple[int, ...], dtype: torch.dtype, names: tuple[str, ...]) -> Record:
    """The peers of these names on one shape."""
    inputs = Inputs(sizes, dtype, settings)
    makers = {name: peers.make(name) for name in names if settings.peers is None or name in settings.peers}
    steps = {name: inputs.step(peer) for name, peer in makers.items()}
    waiting = frozenset(name for name, peer in makers.items() if isinstance(peer, peers.Peer) and peer.waits)
    return _timed(settings, sizes, dtype, inputs, steps, waiting)


def _timed(
    settings: Settings,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    inputs: Inputs,
    steps: dict[str, Step | str],
    waiting: frozenset[str] = frozenset(),
) -> Record:
    floor = floor_bytes(sizes, dtype) / settings.bandwidth * 1e3
    copies = len(inputs.pairs)
    times = interleaved(steps, settings.device, multiple=copies, floor_ms=floor, uncaptured=waiting)
    ours = times.get("numalign", {}).get("ms")
    for found in times.values():
        if "ms" in found:
            found["over_floor"] = found["ms"] / floor
            found["over_ours"] = found["ms"] / ours if ours else None
    return {
        "shape": list(sizes),
        "dtype": dtype_name(dtype),
        "floor_ms": floor,
        "copies": copies,
        "fits_cache": inputs.fits_cache,
        "times": times,
    }


def spatial(settings: Settings) -> Iterator[Record]:
    names = ("numalign", "eager", "eager float", "autocast", "compile", "compile float")
    for sizes in SPATIAL:
        for dtype in settings.dtypes(torch.float16, torch.bfloat16):
            first = sizes == SPATIAL[0] and dtype == torch.float16
            # Liger's rows of 21 are tens of times slower than eager: once is enough. The compiler casts by itself: once, too.
            chosen = (*names, "liger") if first else names if dtype == torch.float16 else names[:-1]
            yield _compare(settings, settings.scaled(sizes), dtype, chosen)
            release(settings.device)


def channels_last(settings: Settings) -> Iterator[Record]:
    for sizes in map(settings.scaled, SPATIAL):
        for dtype in settings.dtypes(torch.float16):
            near, far = (Inputs(sizes, dtype, settings, channels_last=last) for last in (False, True))
            steps = {
                "numalign": near.step(peers.make("numalign")),
                "numalign last": far.step(peers.make("numalign")),
                "eager": near.step(peers.make("eager")),
                "eager last": far.step(peers.make("eager")),
            }
            yield _timed(settings, sizes, dtype, near, steps)
            del near, far, steps
            release(settings.device)


def rows(settings: Settings) -> Iterator[Record]:
    names = ("numalign", "eager", "eager float", "compile", "liger", "quack", "quack 2 passes")
    for sizes in ROWS:
        yield _compare(settings, settings.scaled(sizes), torch.bfloat16, names)
        release(settings.device)


def pixels_curve(settings: Settings) -> Iterator[Record]:
    for power in range(12, 27, 2):
        side = 2 ** (power // 2)
        yield from _point(settings, (1, 21, side, side))


def classes_curve(settings: Settings) -> Iterator[Record]:
    for power in range(1, 13):
        pixels = 26 - power
        yield from _point(settings, (1, 2**power, 2 ** (pixels // 2), 2 ** (pixels - pixels // 2)))


def _point(settings: Settings, sizes: tuple[int, ...]) -> Iterator[Record]:
    record = _compare(settings, settings.scaled(sizes), torch.float16, ("numalign", "eager", "eager float"))
    release(settings.device)
    logits = math.prod(record["shape"])
    for found in record["times"].values():
        if "ms" in found:
            found["ns_per_logit"] = found["ms"] * 1e6 / logits
    yield record


def wall(settings: Settings) -> Iterator[Record]:
    """With Python and launches, as a training step sees it."""
    iterations = max(1, int(200 * min(1.0, settings.scale)))
    for dtype in settings.dtypes(torch.float16, torch.bfloat16):
        logits, target = Inputs(SMALL, dtype, settings).pairs[0]
        losses: dict[str, peers.Loss] = {
            "numalign": numalign.cross_entropy,
            "eager": F.cross_entropy,
            "eager float": peers.eager_float,
        }
        found: dict[str, list[float]] = {name: [] for name in losses}
        for _ in range(15):
            for name, loss in losses.items():
                loss(logits, target).backward()  # the first after another finds colder caches
                synchronize(settings.device)
                start = time.perf_counter()
                for _ in range(iterations):
                    logits.grad = None
                    loss(logits, target).backward()
                synchronize(settings.device)
                found[name].append((time.perf_counter() - start) * 1e3 / iterations)
        middle = {name: statistics.median(times[1:]) for name, times in found.items()}
        times = {
            name: {
                "ms": middle[name],
                "least_ms": min(found[name]),
                "most_ms": max(found[name][1:]),
                "iterations": iterations,
                "how": "clock",
                "over_ours": middle[name] / middle["numalign"],
            }
            for name in losses
        }
        yield {"shape": list(SMALL), "dtype": dtype_name(dtype), "times": times}


def memory(settings: Settings) -> Iterator[Record]:
    if settings.device.type != "cuda":
        raise RuntimeError("PyTorch keeps no account of the memory of this device; on the CPU ask for cpu_memory")
    losses: dict[str, peers.Loss] = {
        "numalign": numalign.cross_entropy,
        "eager": F.cross_entropy,
        "eager float": peers.eager_float,
    }
    for sizes, dtype in [(s, torch.float16) for s in SPATIAL] + [(s, torch.bfloat16) for s in ROWS]:
        shape = settings.scaled(sizes)
        elements = math.prod(shape) // shape[1]
        logits, target = Inputs._pair(shape, dtype, settings.device, channels_last=False)
        record: Record = {"shape": list(shape), "dtype": dtype_name(dtype), "bytes": {}, "errors": {}}
        for name, loss in losses.items():
            try:
                for _ in range(2):  # what is kept from the first time on is not counted
                    logits.grad = None
                    release(settings.device)
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    loss(logits, target).backward()
                    synchronize(settings.device)
                    most = torch.cuda.max_memory_allocated()
                record["bytes"][name] = (most - before - logits.nbytes) / elements
            except Exception as error:
                record["errors"][name] = why(error)
        del logits, target
        yield record
        release(settings.device)


def _ms(name: str, key: str = "ms", digits: int = 3, unit: float = 1.0) -> Column:
    """A number of one of those timed; "*" says that it was timed with its gaps."""

    def text(record: Record) -> str:
        found = record["times"].get(name, {})
        value = found.get(key)
        if value is None:
            return "absent" if "not installed" in found.get("error", "") else "error" if "error" in found else "-"
        return number(value * unit, digits) + ("*" if found["how"] == "events" else "")

    suffix = {"over_floor": "/floor", "over_ours": "/ours"}.get(key, "")
    title = f"{name}{suffix}".replace("numalign", "ours").replace("float/", "f./")
    return Column(title, max(8, len(title)), text)


_SHAPE = Column("shape", 20, shape_text)
_DTYPE = Column("dtype", 8, lambda r: r["dtype"])
_FLOOR = Column("floor", 7, lambda r: number(r["floor_ms"], 3))
_STAR = "* timed in the stream with its gaps, as it waits for the device."


def _ratios(*names: str) -> tuple[Column, ...]:
    return tuple(_ms(name, "over_ours", 2) for name in names)


def _per_logit(*names: str) -> tuple[Column, ...]:
    cached = Column("in cache", 8, lambda r: "yes" if r["fits_cache"] else "no")
    return (_SHAPE, *(_ms(name, "ns_per_logit", 4) for name in names), _ms("numalign", "over_floor", 2), cached)


PARTS = {
    "spatial": Part(
        f'Loss and gradient of images and volumes, ms; "eager f." is eager on logits.float(). {_STAR}',
        (
            _SHAPE,
            _DTYPE,
            _FLOOR,
            _ms("numalign"),
            _ms("numalign", "over_floor", 2),
            *_ratios("eager", "eager float", "autocast", "compile", "compile float", "liger"),
        ),
        spatial,
    ),
    "channels_last": Part(
        "Classes innermost (channels_last, channels_last_3d) beside contiguous, ms and over ours when contiguous.",
        (
            _SHAPE,
            _DTYPE,
            _FLOOR,
            _ms("numalign"),
            _ms("numalign last"),
            _ms("numalign last", "over_floor", 2),
            *_ratios("numalign last", "eager", "eager last"),
        ),
        channels_last,
    ),
    "rows": Part(
        f"Rows: loss and gradient, ms. {_STAR} quack's one pass: gradients of single rows, not of the mean.",
        (
            _SHAPE,
            _DTYPE,
            _FLOOR,
            _ms("numalign"),
            _ms("numalign", "over_floor", 2),
            *(_ms(name) for name in ("eager", "eager float", "compile", "liger", "quack", "quack 2 passes")),
        ),
        rows,
    ),
    "wall": Part(
        "A small image by the clock, with Python and launches, forward and backward, us.",
        (
            _SHAPE,
            _DTYPE,
            *(_ms(name, "ms", 1, 1e3) for name in ("numalign", "eager", "eager float")),
            *_ratios("eager", "eager float"),
        ),
        wall,
    ),
    "memory": Part(
        "Peak memory beyond logits and gradient, bytes per element of the target.",
        (
            _SHAPE,
            _DTYPE,
            *(
                Column(
                    title, 11, lambda r, name=name: "error" if name in r["errors"] else number(r["bytes"].get(name), 1)
                )
                for name, title in (("numalign", "ours"), ("eager", "eager"), ("eager float", "eager float"))
            ),
        ),
        memory,
    ),
    "pixels": Part(
        "Loss and gradient by the number of pixels, 21 classes, float16, ns per logit.",
        _per_logit("numalign", "eager", "eager float"),
        pixels_curve,
    ),
    "classes": Part(
        "Loss and gradient by the number of classes, 2^26 logits, float16, ns per logit.",
        _per_logit("numalign", "eager", "eager float"),
        classes_curve,
    ),
}
