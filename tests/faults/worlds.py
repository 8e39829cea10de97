"""Ranks joined by gloo that take one job after another, so that a hundred trials do not start two hundred processes."""

from __future__ import annotations

import os
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.forks import CONTEXT

from thinwire.lab import namespaces


@dataclass(frozen=True)
class Answer:
    """What became of a job on one rank."""

    rank: int
    value: Any = None
    trouble: str = ""
    """Empty, or why there is no value: a traceback, a death, or that it hangs."""


class World:
    """Some ranks; `timeout` is that of their collectives, in seconds."""

    def __init__(
        self, size: int, folder: Path, timeout: float = 60.0, net: namespaces.Namespaces | None = None
    ) -> None:
        self.size = size
        self.processes: list[Any] = []
        self._pipes: list[Connection] = []
        store = str(folder / uuid.uuid4().hex)
        for rank in range(size):
            here, there = CONTEXT.Pipe()
            arguments = (rank, size, store, timeout, net.of(rank) if net else "", there)
            process = CONTEXT.Process(target=_rank, args=arguments, daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self._pipes.append(here)

    def ask(self, job: Callable[..., Any], *arguments: Any) -> None:
        """Give every rank a job: job(rank, size, say, *arguments), where `say` sends a word before the answer."""
        for pipe in self._pipes:
            pipe.send((job, arguments))

    def answers(self, limit: float, ranks: Sequence[int] | None = None) -> list[Answer]:
        """What these ranks (or all) answer within so many seconds; one that does not hangs."""
        deadline = time.monotonic() + limit
        return [self.answer(rank, deadline) for rank in (range(self.size) if ranks is None else ranks)]

    def answer(self, rank: int, deadline: float) -> Answer:
        """A rank's next word."""
        pipe = self._pipes[rank]
        try:
            if pipe.poll(max(0.0, deadline - time.monotonic())):
                return Answer(rank, *pipe.recv())
        except (EOFError, OSError):
            self.processes[rank].join(5)
            return Answer(rank, None, f"rank {rank} died with exit code {self.processes[rank].exitcode}")
        return Answer(rank, None, f"rank {rank} hangs")

    def do(self, job: Callable[..., Any], *arguments: Any, limit: float) -> list[Answer]:
        """Give a job and wait for all answers."""
        self.ask(job, *arguments)
        return self.answers(limit)

    def close(self) -> None:
        """End all ranks."""
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


def _rank(rank: int, size: int, store: str, timeout: float, namespace: str, pipe: Connection) -> None:
    if namespace:
        namespaces.enter(namespace)
    torch.set_num_threads(1)
    files = dist.FileStore(store, size)
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=files, rank=rank, world_size=size, timeout=limit)
    while True:
        try:
            job, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = (job(rank, size, lambda word: pipe.send((word, "")), *arguments), "")
        except BaseException:
            answer = (None, f"rank {rank}: {traceback.format_exc()}")
        pipe.send(answer)
