"""A pool of threads for the kernels, as many at work as torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch

SMALLEST_SHARE = 1 << 16
"""Numbers below which another thread is not worth its 50 microseconds."""
GRAIN = 64
"""Shares begin at multiples of this: whole blocks of vector code, whole bytes of bits."""


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="thinwire")


# A forked child has the parent's pool but none of its threads: whatever it gave to that pool would wait for ever.
os.register_at_fork(after_in_child=_pool.cache_clear)


def alone(numel: int) -> bool:
    """Whether [0, numel) is one share."""
    return numel < 2 * SMALLEST_SHARE or torch.get_num_threads() == 1


def bounds(numel: int) -> list[int]:
    """Where the shares of [0, numel) begin, and numel: one share for each of torch's threads, or fewer."""
    shares = max(1, min(torch.get_num_threads(), numel // SMALLEST_SHARE))
    return [numel * i // shares // GRAIN * GRAIN for i in range(shares)] + [numel]


def in_parallel(task: Callable[[int, int, int], Any], numel: int) -> list[Any]:
    """task(share, begin, end) over contiguous shares of [0, numel), on torch's number of threads."""
    ends = bounds(numel)
    return at_once(lambda share: task(share, ends[share], ends[share + 1]), len(ends) - 1)


def at_once(task: Callable[[int], Any], count: int) -> list[Any]:
    """task(0), ..., task(count - 1), each on a thread of its own; the last of them on the caller's."""
    if count == 0:
        return []
    waiting = [_pool().submit(task, i) for i in range(count - 1)]
    last = task(count - 1)
    return [one.result() for one in waiting] + [last]
