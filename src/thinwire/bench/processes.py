"""Processes on this machine: ranks on gloo over the loopback, one thread each, for what a DDP step costs."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Answer = TypeVar("Answer")
LIMIT = timedelta(minutes=5)
"""How long ranks wait for each other: the first step compiles the kernels."""


def on_ranks(workers: int, work: Callable[..., Answer], *arguments: Any) -> list[Answer]:
    """The answers of `work(rank, *arguments)` in so many fresh processes; a rank's error is raised here."""
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(workers, spawned) as pool:
        answers = [pool.submit(_join, rank, workers, folder, work, arguments) for rank in range(workers)]
        return [answer.result() for answer in answers]


def _join(rank: int, workers: int, folder: str, work: Callable[..., Answer], arguments: tuple[Any, ...]) -> Answer:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers, timeout=LIMIT)
    try:
        answer = work(rank, *arguments)
        together()
        return answer
    finally:
        dist.destroy_process_group()


def together() -> None:
    """Return when every rank has come so far."""
    dist.barrier()
