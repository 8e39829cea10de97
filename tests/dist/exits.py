"""Ranks that end right after their last step, while gloo's threads get no time to let go of what they hold.

    python -m tests.dist.exits TRIALS HOW...

HOW is `wire` (a method as it is), `emulated` (behind a link) or `dense` (DDP, behind one). Prints how often each exit
status occurred, by HOW. Everything is forked from one process that has imported torch; each rank shuts its
interpreter down as a program of a user's does.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import product

import torch
import torch.distributed as dist
from tests.faults import warm  # noqa: F401  (kernels are loaded once, before anything is forked)
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.exchange import Group, Link, emulated
from thinwire.training.torch_hooks import register

RANKS, STEPS = 2, 3


def starve_other_threads() -> None:
    """Let this process's other threads run only when the main one waits: they share one core, and are idle work."""
    core = {min(os.sched_getaffinity(0))}
    mine = threading.get_native_id()
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, core)
        if thread != mine:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def attach(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, how: str) -> None:
    link = None if how == "wire" else Link(1e7)
    if how == "dense":
        register(ddp, how, link)
    else:
        thinwire.attach(ddp, "memsgd(topk(0.1))", optimizer, exchange=emulated(Group(), link))


def train(rank: int, store: str, how: str) -> None:
    """A few steps, the last one with starved threads; DDP still holds the group when it is destroyed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    ddp = DistributedDataParallel(torch.nn.Linear(8, 2))
    globals()["alive"] = ddp  # until the interpreter's end, as in a script
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    attach(ddp, optimizer, how)
    for step in range(STEPS):
        if step == STEPS - 1:
            starve_other_threads()
        ddp(torch.ones(4, 8)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


def main(trials: int, hows: Sequence[str]) -> None:
    statuses: dict[str, Counter[int]] = {}
    for how, _ in product(hows, range(trials)):
        store, children = tempfile.mktemp(), []
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                return train(rank, store, how)  # and out of the interpreter, by its whole shutdown
            children.append(child)
        statuses.setdefault(how, Counter()).update(os.waitpid(child, 0)[1] for child in children)
    print(json.dumps(statuses))
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
