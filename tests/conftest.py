"""Where tests run side by side, each process keeps to one thread, so that they do not take each other's cores.

A test that needs more sets the number itself; scans and reproducers set theirs.
"""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    import torch

    torch.set_num_threads(1)
