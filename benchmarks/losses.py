"""Cross-entropy beside PyTorch's and others': time, memory, and error against fp64, from one run on this machine.

    python benchmarks/losses.py                                                       # the CPU
    python benchmarks/losses.py --device cuda --out benchmarks/results/NAME.json      # a GPU
    python benchmarks/losses.py --device cuda --only spatial,rows                     # some parts
    python benchmarks/plot.py benchmarks/results/NAME.json NAME.svg                   # pictures of it

A part or a peer that fails is told and left out; the others go on. The file is written after every line.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

import accuracy
import cpu
import machine
import peers
import speed
from parts import Part, Settings
from timing import synchronize, why

PARTS: dict[str, Part] = cpu.PARTS | speed.PARTS | accuracy.PARTS
SCHEMA = 1


def plain(value: Any) -> Any:
    """For JSON, which has no nan and no infinity: these become text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write(result: dict[str, Any], path: Path | None) -> None:
    """All at once, so that a run which is killed leaves the last whole file."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(plain(result), indent=1, allow_nan=False) + "\n")
    partial.replace(path)


def errors_of(record: dict[str, Any]) -> list[str]:
    """What went wrong within a record, a line each."""
    own = [f"  {record.get('name', '')}: {record['error']}"] if "error" in record else []
    inner = [
        f"  {name}: {found[key]}"
        for group in ("times", "results")
        for name, found in record.get(group, {}).items()
        for key in ("error", "not_captured")
        if key in found
    ]
    return own + inner + [f"  {name}: {text}" for name, text in record.get("errors", {}).items()]


def run(name: str, settings: Settings, result: dict[str, Any], path: Path | None) -> None:
    """One part: printed, and written, line by line."""
    part, start = PARTS[name], time.perf_counter()
    print(part.heading(), flush=True)
    records = result["parts"].setdefault(name, [])
    told: set[str] = set()
    try:
        for record in part.records(settings):
            records.append(plain(record))
            print(part.line(records[-1]), flush=True)
            for line in errors_of(record):
                if line not in told:
                    print(line, flush=True)
                    told.add(line)
            write(result, path)
        synchronize(settings.device)
    except Exception as error:
        result["failed"][name] = why(error)
        print(f"  {name} failed: {why(error)}", flush=True)
    result["seconds"][name] = round(time.perf_counter() - start, 1)
    write(result, path)


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu (the default), cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--only", type=names, help=f"parts: {', '.join(PARTS)}")
    parser.add_argument(
        "--peers", type=names, help=f"who is timed in spatial, rows and curves: {', '.join(peers.NAMES)}"
    )
    parser.add_argument("--threads", type=int, help="threads of PyTorch; 1 is the least disturbed by other processes")
    parser.add_argument(
        "--quick", action="store_true", help="the first dtype alone; on the CPU fewer repeats, no memory"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="this share of the elements, to try the program")
    arguments = parser.parse_args()
    for wanted, known in ((arguments.only, PARTS), (arguments.peers, peers.NAMES)):
        unknown = [name for name in wanted or () if name not in known]
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return arguments


def chosen(arguments: argparse.Namespace, device: torch.device) -> tuple[str, ...]:
    if arguments.only:
        return arguments.only
    if device.type == "cpu":
        return ("cpu",) if arguments.quick or sys.platform != "linux" else tuple(cpu.PARTS)
    return tuple(speed.PARTS | accuracy.PARTS)


def main() -> None:
    arguments = parsed()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    about = machine.describe(device)
    bandwidth = machine.copy_bandwidth(device)
    print(f"{about.get('gpu', about['processor'])}, {about['threads']} threads, torch {about['torch']}")
    versions = ", ".join(f"{name} {version or 'absent'}" for name, version in about["peers"].items())
    cache = machine.cache_bytes(device) / 2**20
    print(f"copy {bandwidth / 1e9:,.0f} GB/s; peers: {versions}")
    print(f"Timed logits take twice the cache of {cache:.0f} MiB, in up to {speed.MOST_COPIES} copies used in turn.")
    allowed = frozenset(arguments.peers) if arguments.peers else None
    settings = Settings(device, bandwidth, arguments.quick, arguments.scale, allowed)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "command": shlex.join(["python", "benchmarks/losses.py", *sys.argv[1:]]),
        "machine": about,
        "copy_bytes_per_second": bandwidth,
        "parts": {},
        "failed": {},
        "seconds": {},
    }
    for name in chosen(arguments, device):
        run(name, settings, result, arguments.out)


if __name__ == "__main__":
    main()
