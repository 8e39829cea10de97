"""Who is there: ranks that come to a point of the program, and ranks that have fallen silent, by the group's store.

Collectives cannot tell: gloo's monitored barrier has a limit on rank 0 alone, and other back-ends have none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from thinwire.errors import AttachError

PATIENCE = 1.0
"""Seconds that other ranks get to say that they too have lost somebody."""


def assemble(group: Any, what: str, limit: timedelta) -> None:
    """Wait until every rank has come here as often as this one, for no longer than the limit."""
    store, rank, size = _store(group), dist.get_rank(group), dist.get_world_size(group)
    if store is None or size == 1:
        return
    places = [f"thinwire/{what}/{each}" for each in range(size)]
    mine = store.add(places[rank], 1)
    deadline, pause = time.monotonic() + limit.total_seconds(), 0.001
    while missing := [each for each, place in enumerate(places) if store.add(place, 0) < mine]:
        if time.monotonic() > deadline:
            store.add(places[rank], -1)
            raise AttachError(
                f"{what} must be called on every rank at the same point of the program: rank {rank} has waited "
                f"{limit.total_seconds():g} s (patience= of {what}) for {_named(missing)} of {size}"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.25)


def missing_words(group: Any) -> str:
    """Words for an error: which ranks do not say, within a second, that they too have lost somebody."""
    silent = _silent(group)
    if silent is None:
        return "; the group's store does not answer either, so look at the host that runs it"
    if not silent:
        return "; all ranks still run, so it was the network between them"
    return f"; {_named(silent)} {'does' if len(silent) == 1 else 'do'} not answer"


def _silent(group: Any) -> list[int] | None:
    """The ranks that do not answer; None where the store does not. In a thread, for asking a store has no time-out."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    heard, over = {rank}, threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):
            store = _store(group)
            store.set(f"thinwire/lost/{rank}", "here")
            deadline = time.monotonic() + PATIENCE
            while len(heard) < size and time.monotonic() < deadline:
                heard.update(each for each in range(size) if each in heard or store.check([f"thinwire/lost/{each}"]))
                time.sleep(0.02)
            over.set()

    threading.Thread(target=ask, daemon=True).start()
    return [each for each in range(size) if each not in heard] if over.wait(1.5 * PATIENCE) else None


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _store(group: Any) -> Any:
    """The group's store, where torch gives it; it is private there."""
    with contextlib.suppress(Exception):
        return dist.distributed_c10d._get_process_group_store(group)
    return None
