"""Which function serves an operation: the kernel for the device on which its numbers lie, or the definition itself.

An operation is defined in `reference`; `dispatched` makes of the definition what the methods call. The choice at each
call is a look-up in a dictionary. A back-end's package is never imported to see whether it is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch

from thinwire.errors import BackendError, ConfigError

VARIABLE = "THINWIRE_BACKEND"
Function = Callable[..., Any]
Op = TypeVar("Op", bound=Function)
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Backend:
    """A back-end, named for the package it needs: where its kernels are, and how to get the package."""

    name: str
    module: str
    remedy: str

    @property
    def installed(self) -> bool:
        return find_spec(self.name) is not None

    def kernel(self, operation: str) -> Function | None:
        """The function of this name in one of the back-end's files."""
        files = (vars(import_module(f"{self.module}.{file}")) for file in import_module(self.module).FILES)
        return next((file[operation] for file in files if operation in file), None)


REFERENCE = "reference"
BACKENDS = {
    "cpu": Backend("numba", "thinwire.ops.cpu", "pip install 'thinwire[fast]'"),
    "cuda": Backend("triton", "thinwire.ops.cuda", "install a CUDA build of torch, which brings it"),
}
"""The fast back-end of each type of device."""

OPERATIONS: dict[str, Function] = {}
"""The definition of each operation, by its name."""

_forced: ContextVar[str | None] = ContextVar("thinwire_backend", default=None)


def dispatched(definition: Callable[P, R]) -> Callable[P, R]:
    """The operation with this definition: every call is served by the back-end of the device.

    The device is the one on which the first argument lies, or the argument `device` where the definition has one.

    >>> from thinwire.ops import reference
    >>> dispatched(reference.pack_bits)(torch.tensor([True, False, True])).tolist()
    [5]
    """
    call = signature(definition)
    names = list(call.parameters)
    name = "device" if "device" in names else names[0]
    place, is_device = names.index(name), name == "device"
    OPERATIONS[definition.__name__] = definition

    @wraps(definition)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        if place >= len(args):  # it was given by name
            bound = call.bind(*args, **kwargs)
            return operation(*bound.args, **bound.kwargs)
        given: Any = args[place]
        device = given if is_device else given.device  # not its type: that takes 0.3 microseconds to look at
        served: Callable[P, R] = _find(definition, device, _forced.get() or os.environ.get(VARIABLE))
        return served(*args, **kwargs)

    operation.__module__ = "thinwire.ops"
    return operation


def implementation(definition: Op, device: str) -> Op:
    """The function that serves an operation, given by its definition, on a type of device."""
    served: Op = _find(definition, torch.device(device), _forced.get() or os.environ.get(VARIABLE))
    return served


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Have operations served by one back-end ("reference", "numba", "triton") inside the `with` block."""
    _check(name)
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def _check(name: str) -> None:
    built_in = {REFERENCE: None, **{b.name: b for b in BACKENDS.values()}}
    if name in built_in:
        chosen = built_in[name]
        if chosen is not None and not chosen.installed:
            raise BackendError(f"the {name} back-end is not installed: {chosen.remedy}")
    elif name not in (known := [*built_in, *dict.fromkeys(served.name for served in _outside)]):
        raise BackendError(f"unknown back-end {name!r}; known: {', '.join(known)}")


@cache
def _find(definition: Function, device: torch.device, forced: str | None) -> Any:
    """The kernel that was added from outside last, else the back-end's own, else the definition."""
    if forced is not None:
        _check(forced)
    for served in reversed(_outside):
        if (served.definition, served.device) == (definition, device.type) and forced in (None, served.name):
            return served.kernel
    fast = BACKENDS.get(device.type)
    if fast is not None and fast.installed and forced in (None, fast.name):
        return fast.kernel(definition.__name__) or definition
    return definition


@dataclass(frozen=True, eq=False)
class Served:
    """A kernel from outside the package: used until `remove` is called, or until its `with` block ends."""

    definition: Function
    device: str
    kernel: Function
    name: str

    def remove(self) -> None:
        if self in _outside:
            _outside.remove(self)
            _find.cache_clear()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_outside: list[Served] = []


def serve(operation: Callable[P, R], device: str, kernel: Callable[P, R], *, name: str) -> Served:
    """Have an operation served on a type of device by a function of your own, before every other back-end.

    The function takes the operation's arguments and gives what its definition in `thinwire.ops.reference` gives: the
    same integers, and the same floats. `name` is what `backend` calls it by.

    >>> from thinwire import ops
    >>> def packed(bits):
    ...     return ops.reference.pack_bits(bits)
    >>> with ops.serve(ops.pack_bits, "cpu", packed, name="mine"), ops.backend("mine"):
    ...     ops.pack_bits(torch.tensor([True, False, True])).tolist()
    [5]
    """
    served = Served(_definition(operation), _device_type(device), kernel, name)
    if name in (REFERENCE, *(b.name for b in BACKENDS.values())):
        raise ConfigError(f"the name {name!r} belongs to a back-end of thinwire; give the kernel another")
    wanted, given = _arguments(served.definition), _arguments(kernel)
    if wanted != given:
        raise ConfigError(f"a kernel for {operation.__name__} takes ({wanted}), this one ({given})")
    _outside.append(served)
    _find.cache_clear()
    return served


def _definition(operation: Function) -> Function:
    definition: Function = getattr(operation, "__wrapped__", operation)
    if definition not in OPERATIONS.values():
        raise ConfigError(f"{operation!r} is not an operation; known: {', '.join(sorted(OPERATIONS))}")
    return definition


def _device_type(device: str) -> str:
    try:
        known = torch.device(device).type
    except RuntimeError as error:
        raise ConfigError(f"{device!r} is not a device that torch knows, such as 'cpu' or 'cuda': {error}") from None
    if known != device:
        raise ConfigError(f"a kernel serves a type of device: {known!r} in place of {device!r}")
    return device


def _arguments(function: Function) -> str:
    """The names of a function's arguments."""
    try:
        return ", ".join(signature(function).parameters)
    except TypeError as error:
        raise ConfigError(f"a kernel must be a function, got {function!r}") from error
