"""Tensors in one stretch of memory, as kernels want them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def in_one_stretch(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors themselves where they are contiguous, elsewhere copies that are written back."""
    work = tuple(tensor.contiguous() for tensor in tensors)
    yield work
    for given, made in zip(tensors, work, strict=True):
        if made is not given:
            given.copy_(made)
