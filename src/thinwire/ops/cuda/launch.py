"""Launching kernels at little cost to the host, and on the tensors that they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from triton.runtime import driver

from thinwire.ops import reference
from thinwire.ops.live import recording

P = ParamSpec("P")
R = TypeVar("R")


class Launcher:
    """Launches kernels for one set of shapes; from the second time on without looking at the arguments again.

    Triton derives types, alignments and options from the arguments at every launch: some 60 microseconds on the host,
    more than most of these kernels run. Whoever holds a launcher promises that all of it is the same at each launch of
    a name: sizes, types, and which tensors begin at a multiple of 16 bytes. Tensors are handed over as addresses,
    which the driver is not asked about.
    """

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[Any, list[int]]] = {}

    def __call__(self, name: str, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if recording.keeper is not None:
            recording.keeper.take(arguments)
        if name not in self._compiled:
            compiled = kernel[grid](*arguments, **options)
            if compiled is not None:  # it is None under Triton's interpreter
                self._compiled[name] = compiled, [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
            return
        compiled, tensors = self._compiled[name]
        stream = driver.active.get_current_stream(arguments[tensors[0]].get_device())
        plain = [*arguments]
        for i in tensors:
            plain[i] = plain[i].data_ptr()
        compiled.run(*(*grid, 1, 1)[:3], stream, compiled.function, compiled.packed_metadata, None, None, None, *plain)


@lru_cache(maxsize=4096)
def launcher(*key: object) -> Launcher:
    """The launcher of a key."""
    return Launcher()


def aligned(*tensors: Any) -> bool:
    """Whether all tensors begin at a multiple of 16 bytes."""
    return all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up; `triton.cdiv` takes the host some microseconds."""
    return -(-a // b)


def float32_in_one_stretch(kernel: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Leave every other type, and tensors with gaps, to the reference's function of the same name."""

    @wraps(kernel)
    def served(first: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        dense = all(each.is_contiguous() for each in (first, *args) if isinstance(each, Tensor))
        if first.dtype == torch.float32 and dense:
            return kernel(first, *args, **kwargs)
        by_reference: R = getattr(reference, kernel.__name__)(first, *args, **kwargs)
        return by_reference

    return served
