"""Faults that break the group: the survivors hear of it, save, and a restart continues bit for bit."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tests.dist.training import network
from tests.faults.findings import Finding
from tests.faults.trainee import Trainee, same, undisturbed
from tests.faults.worlds import Answer, World
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.checkpoint import Rotating
from thinwire.errors import CheckpointWarning, PeerLost
from thinwire.lab import namespaces

LIMIT = 60.0
"""Seconds after which a rank hangs, beyond the time-out of its collectives."""
EVERY, MORE = 4, 5
"""Steps between checkpoints, and after a restart."""


@dataclass
class Survivor:
    """What a rank tells after it lost another."""

    finding: Finding
    time: float
    """When it raised."""
    number: int
    """The last step that it finished."""


def until_lost(rank: int, size: int, say: Callable[[Any], None], rule: str, folder: str) -> Survivor:
    """Train and save until another rank is gone; then leave a rescue file of the last finished step."""
    trainee, checkpoints = Trainee(rank, rule), Rotating(folder)
    state = trainee.handle.state_dict()
    saved = trainee.saved()
    while True:
        try:
            if trainee.step_number and trainee.step_number % EVERY == 0:
                checkpoints.save(trainee.step_number, saved)
            trainee.step()
        except PeerLost as error:
            survivor = Survivor(Finding([(type(error).__name__, str(error))]), time.time(), saved["number"])
            now = trainee.handle.state_dict()
            right = now["step"] == state["step"] and same(now["slots"], state["slots"])
            survivor.finding.check(right, "the state is not that of the last finished step")
            torch.save({**saved, "thinwire": now}, f"{folder}/rescue-{rank}.pt")
            return survivor
        state, saved = trainee.handle.state_dict(), trainee.saved()
        if trainee.step_number == 2:
            say("going")


def restarted(rank: int, size: int, say: Callable[[Any], None], rule: str, folder: str) -> tuple[Finding, str]:
    """Start again from the rescue files if all are there and of one step, else from the newest checkpoint."""
    finding, trainee = Finding(), Trainee(rank, rule)
    files = [Path(folder) / f"rescue-{other}.pt" for other in range(size)]
    rescued = [torch.load(file, weights_only=True) for file in files if file.exists()]
    if len({saved["number"] for saved in rescued}) == 1 and len(rescued) == size:
        source, saved = "rescue", rescued[rank]
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)  # of the set that was being written
            source, (_, saved) = "checkpoint", Rotating(folder).load() or (0, None)
    if saved is not None:
        trainee.load_(saved)
    until = trainee.step_number + MORE
    while trainee.step_number < until:
        trainee.step()
    finding.check(same(trainee.parameters(), undisturbed(rank, rule, until)), "a restart gave other parameters")
    return finding, source if saved is not None else "nothing yet"


@dataclass
class Broken:
    """What a breaking fault came to."""

    answers: list[Answer]
    """Of all ranks that still could answer."""
    seconds: float
    started: bool = True


Fault = Callable[[World, int], None]


def broken(
    fault: Fault,
    mended: Fault | None,
    size: int,
    timeout: float,
    random: Random,
    rule: str,
    folder: Path,
    net: namespaces.Namespaces | None = None,
) -> Broken:
    """Start a world, break it, wait for the survivors; where the victim lives, mend what was broken and hear it too."""
    world, victim = World(size, folder, timeout, net), random.randrange(size)
    try:
        world.ask(until_lost, rule, str(folder))
        going = world.answers(LIMIT)
        if any(answer.trouble for answer in going):
            return Broken(going, 0.0, started=False)
        time.sleep(random.uniform(0.0, 0.5))
        start = time.time()
        fault(world, victim)
        answers = world.answers(timeout + LIMIT, [rank for rank in range(size) if rank != victim])
        seconds = max((answer.value.time - start for answer in answers if answer.value), default=0.0)
        if mended is not None:
            mended(world, victim)
            answers += world.answers(timeout + LIMIT, [victim])
        return Broken(answers, seconds)
    finally:
        world.close()


def patiently(attempt: Callable[[float], Broken], timeout: float) -> Broken:
    """Try with a longer time-out where a busy machine did not even start within it."""
    found = attempt(timeout)
    return found if found.started or timeout > LIMIT else patiently(attempt, 4 * timeout)


def killed(random: Random, rule: str, size: int, folder: Path) -> Broken:
    """kill -9."""
    return broken(_signal(signal.SIGKILL), None, size, 30.0, random, rule, folder)


def stopped(random: Random, rule: str, size: int, folder: Path) -> Broken:
    """SIGSTOP for longer than the time-out, then SIGCONT."""
    stop, go = _signal(signal.SIGSTOP), _signal(signal.SIGCONT)
    return patiently(lambda timeout: broken(stop, go, size, timeout, random, rule, folder), 3.0)


def cut_off(random: Random, rule: str, size: int, folder: Path) -> Broken:
    """A cable is pulled, and put back after the time-out."""
    with namespaces.network(size) as net:
        cut, mend = (lambda _, rank: net.cut(rank)), (lambda _, rank: net.mend(rank))
        return patiently(lambda timeout: broken(cut, mend, size, timeout, random, rule, folder, net), 3.0)


def _signal(number: int) -> Fault:
    return lambda world, victim: os.kill(world.processes[victim].pid, number)


def attached_alone(rank: int, size: int, say: Callable[[Any], None], rule: str, draw: int) -> Finding:
    """One rank calls attach while the others do something else for longer than its patience."""
    finding, alone = Finding(), Random(draw).randrange(size) == rank
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    if alone:
        finding.hear(lambda: thinwire.attach(ddp, "ef21(topk(0.1))", optimizer, patience=1.0))
    return finding
