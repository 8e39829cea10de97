"""Launching kernels at little cost to the host."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


class Launcher:
    """Launches kernels for one set of shapes; from the second time on without looking at the arguments again.

    Triton derives types, alignments and options from the arguments at every launch: some 60 microseconds on the host,
    more than most of these kernels run. Whoever holds a launcher promises that all of it is the same at each launch of
    a name: sizes, types, and which tensors begin at a multiple of 16 bytes.
    """

    def __init__(self) -> None:
        self._compiled: dict[str, Any] = {}

    def __call__(self, name: str, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        compiled = self._compiled.get(name)
        if compiled is None:
            self._compiled[name] = kernel[grid](*arguments, **options)  # None under Triton's interpreter
        else:
            compiled[(*grid, 1, 1)[:3]](*arguments)


@lru_cache(maxsize=4096)
def launcher(*key: object) -> Launcher:
    """The launcher of a key."""
    return Launcher()


def aligned(*tensors: Any) -> bool:
    """Whether all tensors begin at a multiple of 16 bytes."""
    return all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
