"""Training under DistributedDataParallel: what one of the processes does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from training.follow import TWIN
from training.models import task
from training.recipes import OURS, RECIPES, SINGLE, curve

STEPS = 40


def train(rank: int, processes: int, device: str, folder: Path) -> None:
    """Leave the losses of the controls and of ours in ``folder``, in a file of this process."""
    torch.set_num_threads(1)
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=processes)
    same = task("unet", device)
    share = replace(same, batches=[*same.batches[rank:], *same.batches[:rank]])
    low = RECIPES["fp16, fp32 master weights"]
    runs = {
        "single": (SINGLE, "upcast"),
        "upcast": (low, "upcast"),
        "twin": (replace(low, scale=TWIN * low.scale), "upcast"),
        **{way: (low, way) for way in OURS},
    }
    curves = {name: curve(share, *run, STEPS, parallel=DistributedDataParallel) for name, run in runs.items()}
    torch.save(curves, folder / f"{rank}.pt")
    dist.destroy_process_group()
