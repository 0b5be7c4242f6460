"""The machine and the software that numbers come from, and how fast it copies."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import numalign
import peers
from timing import milliseconds


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def _triton() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def describe(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _triton(),
        "numalign": numalign.__version__,
        "peers": peers.versions(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": gpu.name,
            "gpus": torch.cuda.device_count(),
            "gpu_memory_gib": round(gpu.total_memory / 2**30, 1),
            "gpu_l2_mib": gpu.L2_cache_size / 2**20,
            "multiprocessors": gpu.multi_processor_count,
            "driver": _driver(),
            "cuda": torch.version.cuda,
        }
    return found


def cache_bytes(device: torch.device) -> int:
    """The last cache before memory; for a CPU, what is beyond most."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 32 * 2**20


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and bytes written by a copy of 1 GiB (64 MiB on a CPU), per second."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    times = [milliseconds(lambda: copy.copy_(source), device) for _ in range(23)][3:]
    return 2 * size / (statistics.median(times) * 1e-3)
