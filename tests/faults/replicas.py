"""Replicas under torchft that train until they are told to stop, and what each of them leaves for whoever checks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.forks import CONTEXT
from torch import Tensor, nn

from thinwire.lab import namespaces

RATE, BATCH = 0.1, 16
COLLECTIVE, HEARTBEAT = 1.0, 1.0
"""Seconds that a silent replica is waited for: by the others' collectives, and by the lighthouse."""
PACE = 0.03
"""Seconds that a step takes at least, so that kills come at any moment of it."""


@dataclass(frozen=True)
class Place:
    """Where a replica runs, and what."""

    number: int
    folder: Path
    lighthouse: str
    rule: str
    host: str = "localhost"
    namespace: str = ""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 digits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])


class Account:
    """What a replica gave and has sent, in float64, updates times workers; kept where a kill does not take it.

    Before every verdict it writes what it will have sent if the step is taken, and if it is not: which of them counts
    is known from the run that goes on.
    """

    def __init__(self, path: Path, optimizer: Any, model: nn.Module) -> None:
        self._handle, self._model = optimizer.handle, model
        self.numel = sum(p.numel() for p in model.parameters())
        self.given = torch.zeros(self.numel, dtype=torch.float64)
        self._now = torch.zeros(self.numel, dtype=torch.float64)
        self._file = np.memmap(path, np.float64, "w+", shape=(2, 4 + 2 * self.numel))
        self._turn = 0
        judge = optimizer.handle.channel.judge

        def judged() -> None:
            judge()
            self._note()

        optimizer.handle.channel.judge = judged

    def kept(self) -> Tensor:
        owed, sizes = self._handle.owed(), self._handle.channel.step_sizes
        if not owed:
            return torch.zeros(self.numel, dtype=torch.float64)
        return flat([owed[name] * sizes.get(name, RATE) for name in self._handle.channel.parameters])

    def begin(self) -> None:
        """Before a step: its gradient."""
        self._without = self.given - self.kept()
        self._now = RATE * flat([p.grad for p in self._model.parameters()])

    def _note(self) -> None:
        self._turn += 1
        row = self._file[self._turn % 2]
        row[0] = 0  # while it is being written it does not count
        row[1:4] = struct.unpack("<3d", struct.pack("<qqd", self._handle.epoch, self._handle.channel.step, 0.0))
        row[4 : 4 + self.numel] = self._without
        row[4 + self.numel :] = self.given + self._now - self.kept()
        row[0] = self._turn

    def end(self, counts: bool) -> None:
        """After a step: whether its gradient was given to the rule."""
        if counts:
            self.given += self._now


def sent_of(path: Path, holds: Any) -> np.ndarray:
    """What a replica has sent as far as the run has taken it."""
    rows = np.fromfile(path, np.float64).reshape(2, -1)
    row = rows[int(rows[1, 0] > rows[0, 0])]
    epoch, step, _ = struct.unpack("<qqd", struct.pack("<3d", *row[1:4]))
    numel = (len(row) - 4) // 2
    if row[0] == 0:
        return np.zeros(numel)
    return row[4 + numel :] if holds(epoch, step) else row[4 : 4 + numel]


def train(place: Place, life: str) -> None:
    """One life of a replica: until the file `stop` names a step that it has taken."""
    _silence(place.folder / f"log-{life}")
    if place.namespace:
        namespaces.enter(place.namespace)
        socket.gethostname = lambda: place.host  # under this name torchft's checkpoint server is told to others
    import torchft

    import thinwire.torchft as door

    torch.set_num_threads(1)
    store = dist.TCPStore(place.host, 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))  # weights are taken from a replica of the run
    model = network()
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=COLLECTIVE)),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=5),
        quorum_timeout=timedelta(seconds=30),
        connect_timeout=timedelta(seconds=5),
        rank=0,
        world_size=1,
        store_addr=place.host,
        store_port=store.port,
        lighthouse_addr=place.lighthouse,
        replica_id=f"replica{place.number}",
        hostname=place.host,
    )
    optimizer = door.attach_elastic(manager, model, place.rule, torch.optim.SGD(model.parameters(), lr=RATE))
    _loop(place, life, manager, model, optimizer)


def _loop(place: Place, life: str, manager: Any, model: nn.Module, optimizer: Any) -> None:
    images, labels = digits()
    account = Account(place.folder / f"account-{life}", optimizer, model)
    applied = {"total": torch.zeros(account.numel, dtype=torch.float64)}
    manager.register_state_dict_fn("applied", lambda s: applied.update(total=s["total"].clone()), lambda: dict(applied))
    log = os.open(place.folder / f"steps-{life}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    generator = torch.Generator().manual_seed(zlib.crc32(life.encode()))
    handle, begun = optimizer.handle, time.monotonic()
    while not _stopped(place.folder, handle.channel.step):
        begun = max(begun + PACE, time.monotonic())
        optimizer.zero_grad()
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        account.begin()
        taken = optimizer.step()
        account.end(taken or bool(handle.rule.owes))
        if taken:
            applied["total"] += handle.size * RATE * flat([p.grad for p in model.parameters()])
        words = [int(taken), handle.channel.step, handle.epoch, zlib.crc32(flat(model.parameters()).numpy().tobytes())]
        os.write(log, json.dumps([time.monotonic(), handle.size, *words]).encode() + b"\n")
        time.sleep(max(0.0, begun + PACE - time.monotonic()))
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model(images), labels))
    state = handle.shared_state()
    last = {
        "applied": applied["total"],
        "kept": account.kept(),
        "given": account.given,
        "loss": loss,
        "eras": handle.chronicle.numbers(),
        "sent": handle.ledger.summary()["sent_bytes"],
        "members": list(handle.roster.members),
        "means": {key: tensor for key, tensor in state["slots"].items() if key.startswith("mean")},
        "locals": {n: handle.channel.worker.view(n, "local").clone() for n in model.state_dict() if _has(handle, n)},
    }
    torch.save(last, place.folder / f"last-{life}.tmp")
    os.replace(place.folder / f"last-{life}.tmp", place.folder / f"last-{life}")
    time.sleep(1.0)  # the others' last commit may need this one's heartbeat
    os._exit(0)


def _has(handle: Any, name: str) -> bool:
    return any(slot.name == "local" for slot in handle.channel.worker.slots_of(name))


def _stopped(folder: Path, step: int) -> bool:
    try:
        return step >= int((folder / "stop").read_text())
    except (FileNotFoundError, ValueError):
        return False


def _silence(log: Path) -> None:
    """torchft tells every quorum on standard error."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)


def _lighthouse(namespace: str, log: Path, pipe: Connection) -> None:
    _silence(log)
    if namespace:
        namespaces.enter(namespace)
    from torchft._torchft import LighthouseServer

    beat = int(1000 * HEARTBEAT)
    server = LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=300, quorum_tick_ms=20, heartbeat_timeout_ms=beat
    )
    pipe.send(server.address().rpartition(":")[2])
    signal.pause()


@contextlib.contextmanager
def lighthouse(folder: Path, host: str = "localhost", namespace: str = "") -> Iterator[str]:
    """A lighthouse in a process of its own: its address."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_lighthouse, args=(namespace, folder / "log-lighthouse", there), daemon=True)
    process.start()
    try:
        if not here.poll(60):
            raise AssertionError(f"no lighthouse: {(folder / 'log-lighthouse').read_text()}")
        yield f"http://{host}:{here.recv()}"
    finally:
        process.kill()
        process.join()
