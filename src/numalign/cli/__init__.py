"""The command line: one file a subcommand, exit codes in ``exits``."""

from __future__ import annotations

import sys
import traceback


def main() -> None:
    """Entry point of ``numalign``."""
    try:
        from numalign.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("cyclopts", "rich"):
            raise
        sys.stderr.write(f"numalign: the command line needs {error.name}: pip install 'numalign[cli]'\n")
        sys.exit(2)
    try:
        sys.exit(run(sys.argv[1:]))
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Python would complain once more while it flushes.
        sys.stderr.close()
        sys.exit(0)
    except Exception:
        traceback.print_exc()
        sys.stderr.write("numalign: this is a bug in numalign; please report it with the lines above\n")
        sys.exit(101)
