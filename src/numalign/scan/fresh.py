"""Runs scripts in fresh processes that have imported torch and nothing else, without paying for that import each time.

One interpreter imports torch and waits. For every script it forks: the child is as fresh as an interpreter that has
just imported torch, shares no state with the scan, and is gone when the script ends. Nothing of numalign is loaded
there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from numalign.errors import NumalignError

_SERVER = """
import ctypes, json, os, runpy, signal, sys, traceback
import torch
import torch.fx.experimental.symbolic_shapes  # what torch.autograd.grad imports when it is first called

def die_with_parent():
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        pass

die_with_parent()

def serve(path, limit):
    child = os.fork()
    if child == 0:
        die_with_parent()
        out = os.open(path + ".out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        signal.alarm(limit)
        os.chdir(os.path.dirname(path))
        sys.argv = [path]
        code = 0
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for line in sys.stdin:
    path, limit = json.loads(line)
    status = serve(path, limit)
    with open(path + ".out", errors="replace") as file:
        output = file.read()
    os.unlink(path + ".out")
    print(json.dumps([status, output]), flush=True)
"""


class Ended(NamedTuple):
    """How a script ended.

    Attributes:
        status: Its exit status; minus the signal that ended it, -14 for its time limit.
        output: What it printed, standard error included.
    """

    status: int
    output: str


class FreshProcesses:
    """One waiting interpreter. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            text=True,
            start_new_session=True,  # Ctrl-C is for the scan, which closes this interpreter itself
        )

    def run(self, script: Path, seconds: int) -> Ended:
        """Run ``script`` in its own folder, for at most ``seconds``.

        Raises:
            NumalignError: If the waiting interpreter is gone, as when torch cannot be imported.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        try:
            self._server.stdin.write(json.dumps([str(script.resolve()), seconds]) + "\n")
            self._server.stdin.flush()
            answer = self._server.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise NumalignError(f"cannot run reproducers: a plain interpreter ended with status {self._server.wait()}")
        return Ended(*json.loads(answer))

    def close(self) -> None:
        """End the interpreter."""
        if self._server.stdin is not None:
            self._server.stdin.close()
        try:
            self._server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        if self._server.stdout is not None:
            self._server.stdout.close()
