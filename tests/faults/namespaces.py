"""A small network of our own: one namespace for each rank, joined by a bridge, whose links can be cut."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000
DEVICE = "tw0"
"""The one interface of a rank's namespace, beside its own loopback."""


@dataclass(frozen=True)
class Network:
    """Namespaces of this process's ranks; no other traffic is touched."""

    name: str
    size: int

    def of(self, rank: int) -> str:
        """The namespace of a rank."""
        return f"{self.name}-{rank}"

    def cut(self, rank: int) -> None:
        """Take a rank's link down at the bridge: its own end stays up and hears nothing, as with a pulled cable."""
        _ip("-n", f"{self.name}-hub", "link", "set", f"tw{rank}", "down")

    def mend(self, rank: int) -> None:
        """Bring a rank's link up again."""
        _ip("-n", f"{self.name}-hub", "link", "set", f"tw{rank}", "up")


def available() -> bool:
    """Whether namespaces can be made here: as root, with iproute2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"tw{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return made


@contextmanager
def network(size: int) -> Iterator[Network]:
    """A network for so many ranks, gone at the end of the block."""
    net = Network(f"tw{os.getpid()}", size)
    hub = f"{net.name}-hub"
    names = [hub, *(net.of(rank) for rank in range(size))]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for rank in range(size):
            _join(net, hub, rank)
        yield net
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _join(net: Network, hub: str, rank: int) -> None:
    """Lay a cable from a rank to the bridge."""
    _ip("-n", hub, "link", "add", f"tw{rank}", "type", "veth", "peer", "name", DEVICE, "netns", net.of(rank))
    _ip("-n", hub, "link", "set", f"tw{rank}", "master", "bridge")
    _ip("-n", hub, "link", "set", f"tw{rank}", "up")
    _ip("-n", net.of(rank), "addr", "add", f"10.77.0.{rank + 1}/24", "dev", DEVICE)
    _ip("-n", net.of(rank), "link", "set", DEVICE, "up")
    _ip("-n", net.of(rank), "link", "set", "lo", "up")


def enter(namespace: str) -> None:
    """Move this process into a namespace, and have gloo use its interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
