"""Every exception class of numalign. Each docstring gives the likely cause and the remedy.

The repaired operators raise the exception types that PyTorch raises; the classes here belong to the tool.
"""

from __future__ import annotations


class NumalignError(Exception):
    """Base class of all errors that numalign raises on purpose.

    The message is one line, fit to be shown to a user as it is. Anything else that leaves the program is a bug in
    numalign.
    """


class UsageError(NumalignError):
    """What was asked for does not exist or does not fit together.

    Cause: a misspelt operator, dtype, device or code, or options that contradict each other.
    Remedy: the message names what was got, what was wanted and the nearest matches.
    """


class DeviceUnavailableError(UsageError):
    """The device that was named is not there.

    Cause: PyTorch was built without this backend, no such device is plugged in, or an out-of-tree backend was not
        imported. Remedy: name a device that ``torch`` can allocate on, or import the backend with ``--import MODULE``.
    """


class StoreError(NumalignError):
    """A run's store cannot be used. It is left as it was found.

    Cause: the file is no numalign store, was written by another version, is damaged, or another process is writing to
        it. Remedy: the message says which; name another run, or start a new one with ``--out``.
    """


class NotRepairedError(NumalignError):
    """``unrepair()`` was called while nothing was repaired.

    Cause: ``unrepair()`` without a matching ``repair()``.
    Remedy: use ``with numalign.repair():``, which restores by itself.
    """
