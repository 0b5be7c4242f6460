"""The command line: one file a subcommand, exit codes in ``exits``."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback


def main() -> None:
    """Entry point of ``numalign``."""
    try:
        from numalign.cli.app import run

        status = run(sys.argv[1:])
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        remedies = {"cyclopts": "'numalign[cli]'", "rich": "'numalign[cli]'", "torch": "torch"}
        if error.name not in remedies:
            raise
        sys.stderr.write(f"numalign: this needs {error.name}: pip install {remedies[error.name]}\n")
        status = 2
    except KeyboardInterrupt:
        sys.stderr.write("numalign: interrupted before anything was run\n")
        status = 3
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("numalign: no space left for the output; what was run is stored, see `numalign show`\n")
        os._exit(2)
    except Exception:
        traceback.print_exc()
        sys.stderr.write("numalign: this is a bug in numalign; please report it with the lines above\n")
        status = 101
    sys.exit(status)
