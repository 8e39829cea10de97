"""Real processes on gloo: run a function on every rank, give back what each returned, show what broke."""

from __future__ import annotations

import os
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.forks import CONTEXT

LIMIT = 500.0
"""Seconds after which ranks hang: below pytest's own limit, which would not say which; far below gloo's, 30 minutes."""


def run_world(
    size: int, job: Callable[..., Any], *arguments: Any, folder: Path, limit: float = LIMIT, context: Any = CONTEXT
) -> list[Any]:
    """job(rank, size, *arguments) on each of `size` new processes; a failure shows the child's traceback."""
    run = folder / uuid.uuid4().hex
    run.mkdir()
    children = [
        context.Process(target=_child, args=(rank, size, str(run), job, arguments), daemon=True) for rank in range(size)
    ]
    for child in children:
        child.start()
    _join(children, limit)
    failures = [text.read_text() for text in sorted(run.glob("error-*"))]
    if failures:
        raise AssertionError("\n".join(failures))
    assert all(child.exitcode == 0 for child in children), [child.exitcode for child in children]
    return [torch.load(run / f"result-{rank}", weights_only=False) for rank in range(size)]


def _join(children: list[Any], limit: float) -> None:
    deadline = time.monotonic() + limit
    try:
        for child in children:
            child.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, child in enumerate(children) if child.is_alive()]
    finally:
        for child in children:
            child.kill()
            child.join()
    assert not late, f"ranks {late} did not end within {limit} s"


def _child(rank: int, size: int, run: str, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{run}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    failed = False
    try:
        torch.save(job(rank, size, *arguments), f"{run}/result-{rank}")
    except BaseException:
        Path(f"{run}/error-{rank}").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        failed = True
    finally:
        dist.destroy_process_group()
    # Without the interpreter's shutdown, which takes seconds. That processes end well with it was tried apart.
    os._exit(failed)
