"""``repair()`` and ``unrepair()``: the repaired operators behind PyTorch's own names.

The state is process-wide, as PyTorch's dispatcher is. Three layers of it are told apart here:

* kernels of a device (``nll_loss2d_forward`` and its kin), which eager mode calls;
* composite operators at the device's autograd key, caught before tracing takes them apart;
* the same under ``torch.func`` transforms, which look at operators before autograd does, for all devices at once.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, overload

import torch

from numalign.errors import NotRepairedError
from numalign.ops._operators import schema_digest
from numalign.ops._overrides import COMPOSITE, KERNELS, stock

F = TypeVar("F", bound=Callable[..., Any])

repaired_operators: frozenset[str] = frozenset(f"aten::{name}" for name in (*COMPOSITE, *KERNELS))
"""The operators that :func:`repair` takes over."""

_TRANSFORMS = "FuncTorchDynamicLayerFrontMode"
_lock = threading.RLock()
_new_library: Any = torch.library.Library  # PyTorch leaves it without annotations
_libraries: dict[str, Any] = {}  # by device type, and one for the transforms
_levels: dict[str, list[object]] = {}  # by device type: the marks of the repairs in force
_cache_tag: _CompileCacheTag | None = None


class Repair:
    """What :func:`repair` returns: in force from the start, undone at the end of a ``with`` block or by ``close()``."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices
        self._mark: object | None = object()
        with _lock:
            for device in devices:
                _enter(device, self._mark)

    def close(self) -> None:
        """Undo this repair, if it is still in force. Others stay."""
        with _lock:
            mark, self._mark = self._mark, None
            for device in self._devices if mark is not None else ():
                _leave(device, mark)

    def __enter__(self) -> Repair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, function: F) -> F:
        """As a decorator: in force during the calls of ``function`` only."""
        self.close()
        return _during_calls(function, self._devices)


@overload
def repair(function: F, /) -> F: ...


@overload
def repair(*devices: str) -> Repair: ...


def repair(*devices: Any) -> Any:
    """Put the repaired operators behind PyTorch's own names, for unchanged models, eager and compiled.

    ``F.cross_entropy``, ``F.nll_loss``, ``nn.CrossEntropyLoss``, ``nn.NLLLoss`` and the operators below them
    (:data:`repaired_operators`) then compute in the accumulate type and round once. Formulas, shapes, errors and error
    bounds are those of :func:`numalign.cross_entropy` and :func:`numalign.nll_loss`.

    In force from the call on, until the end of the ``with`` block or of the decorated function, or else for good::

        numalign.repair()              # until numalign.unrepair()
        with numalign.repair("cpu"):   # for the block
        @numalign.repair               # during the calls of a function

    Repairs nest. Models compiled before are compiled again, and so are they after; compiled code on disk is kept apart.

    Args:
        *devices: device types such as ``"cpu"`` or ``"cuda"``. Default: the CPU and the accelerator, if there is one.

    Returns:
        A :class:`Repair`, to be used as a context manager or a decorator, or ignored.

    Raises:
        RuntimeError: no such device type.

    The state belongs to the process, not to a thread. Tensor subclasses with their own dispatch, such as ``DTensor``, are
    not known to the repaired operators. Code that calls ``aten.nll_loss_forward`` and its kin *inside* a compiled region
    is still taken apart by the compiler; the functions and modules of ``torch.nn`` are not.
    """
    if len(devices) == 1 and callable(devices[0]):
        return _during_calls(devices[0], ())
    return Repair(_device_types(devices))


def unrepair(*devices: str) -> None:
    """Give PyTorch its own operators back, however often :func:`repair` was called.

    Args:
        *devices: device types. Default: all that are repaired.

    Raises:
        NotRepairedError: nothing was repaired on a device that was named, or on any.
    """
    with _lock:
        wanted = tuple(_device_type(d) for d in devices) or tuple(_levels)
        missing = [d for d in wanted if d not in _levels]
        if missing or not wanted:
            where = f" on {', '.join(missing)}" if missing else ""
            raise NotRepairedError(f"Nothing is repaired{where}: call numalign.repair() first.")
        for device in wanted:
            for mark in tuple(_levels[device]):
                _leave(device, mark)


def _during_calls(function: F, devices: tuple[str, ...]) -> F:
    @functools.wraps(function)
    def repaired(*args: Any, **kwargs: Any) -> Any:
        with Repair(devices or _device_types(())):
            return function(*args, **kwargs)

    return repaired  # type: ignore[return-value]


def _device_types(devices: tuple[str, ...]) -> tuple[str, ...]:
    if devices:
        return tuple(dict.fromkeys(_device_type(d) for d in devices))
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _device_type(device: Any) -> str:
    try:
        kind = torch.device(device).type
        torch._C._dispatch_key_for_device(kind)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RuntimeError(f"Cannot repair {device!r}: wanted a device type such as 'cpu' or 'cuda'.") from error
    if kind == "meta":
        raise RuntimeError("Cannot repair 'meta': it computes nothing. Wanted a device type such as 'cpu' or 'cuda'.")
    return kind


def _enter(device: str, mark: object) -> None:
    if device not in _levels:
        _levels[device] = []
        _install(device)
    _levels[device].append(mark)


def _leave(device: str, mark: object) -> None:
    marks = _levels.get(device, [])
    if mark in marks:
        marks.remove(mark)
        if not marks:
            del _levels[device]
            _remove(device)


def _install(device: str) -> None:
    global _cache_tag  # noqa: PLW0603  # the compile cache is as process-wide as the dispatcher
    key = torch._C._dispatch_key_for_device(device)
    with warnings.catch_warnings():
        # PyTorch warns that a kernel is replaced, which is the whole point.
        warnings.simplefilter("ignore")
        library = _new_library("aten", "IMPL")
        for name, function in COMPOSITE.items():
            library.impl(name, function, f"Autograd{key}")
            library.impl(name, function, key)
        for name, function in KERNELS.items():
            library.impl(name, function, key)
        if _TRANSFORMS not in _libraries:
            _libraries[_TRANSFORMS] = transforms = _new_library("aten", "IMPL")
            for name, function in COMPOSITE.items():
                transforms.impl(name, _where_repaired(name, function), _TRANSFORMS)
    _libraries[device] = library
    if _cache_tag is None:
        _cache_tag = _CompileCacheTag()
    _forget_compiled()


def _remove(device: str) -> None:
    global _cache_tag  # noqa: PLW0603  # as above
    _libraries.pop(device)._destroy()
    if not _levels:
        _libraries.pop(_TRANSFORMS)._destroy()
        if _cache_tag is not None:
            _cache_tag.restore()
            _cache_tag = None
    _forget_compiled()


def _where_repaired(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The transforms look at an operator before its device is known, so the device is looked up here."""

    def choose(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type in _levels:
            return function(self, *args, **kwargs)
        return stock(name, self, *args, **kwargs)

    return choose


def _forget_compiled() -> None:
    """What was compiled, or resolved by PyTorch's Python dispatcher, holds the operators that were in force then."""
    for name in (*COMPOSITE, *KERNELS):
        getattr(torch.ops.aten, name).default._dispatch_cache.clear()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


class _CompileCacheTag:
    """Keeps compiled code on disk apart.

    PyTorch keys its cache on the graph before operators are resolved, which is the same with and without a repair.
    """

    # Code on disk calls our operators, so that it has to go when their schemas change.
    _SUFFIX = f"+numalign-repair-{schema_digest}"

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        try:
            from torch.compiler import config
        except ImportError:
            config = None  # type: ignore[assignment]
        if config is None or not hasattr(config, "cache_key_tag"):
            # Before PyTorch had the tag: do without the cache that is keyed so early.
            import torch._functorch.config as functorch_config

            self._set(functorch_config, "enable_autograd_cache", False)
            return
        tag = config.cache_key_tag + self._SUFFIX
        # A setting belongs to one thread; the value that would come from the environment is seen by all.
        entry = getattr(config, "_config", {}).get("cache_key_tag")
        if hasattr(entry, "env_value_default"):
            self._set(entry, "env_value_default", tag)
        if config.cache_key_tag != tag:
            self._set(config, "cache_key_tag", tag)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def restore(self) -> None:
        """Back to what was there before."""
        while self._undo:
            self._undo.pop()()
