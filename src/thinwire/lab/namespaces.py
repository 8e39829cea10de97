"""A small network of our own: a namespace for each rank, joined by a bridge, whose wires can be shaped and cut.

Ranks of several sites have a bridge for each site, and from it a trunk to a bridge in the middle.

Namespaces carry in their names whose they are: nothing that another process made is ever touched, unless its name
proves that a laboratory made it and the process in its name is gone.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.lab.setting import Cable

CLONE_NEWNET = 0x40000000
DEVICE = "tw0"
"""The one interface of a rank's namespace, beside its own loopback."""
BRIDGE = "bridge"
FOLDER = Path("/var/run/netns")
BURST_SECONDS, LEAST_BURST = 5e-4, 3_100
"""What a wire lets through at once: two packets, and on faster wires half a millisecond's bytes, since the kernel's
timers come late. One TCP stream then has 0.96 of the rate at 10 and 100 Mbit/s and 0.91 at 1 Gbit/s on two EPYC cores
(0.75 with 0.2 ms); headers take 0.04. More would let short messages pass as if there were no wire."""
QUEUE_SECONDS, LEAST_QUEUE = 0.1, 1_000_000
"""What waits before a wire; beyond that packets are dropped, as a switch drops them."""
_SERIAL = count()


@dataclass(frozen=True)
class Namespaces:
    """Namespaces of this process's ranks; no other traffic is touched."""

    name: str
    size: int
    sites: int = 1
    """Each holds as many ranks, one behind the other."""

    @property
    def hub(self) -> str:
        """The namespace of the bridge."""
        return f"{self.name}-hub"

    @property
    def names(self) -> list[str]:
        """All namespaces."""
        return [self.hub, *(self.of(rank) for rank in range(self.size))]

    def of(self, rank: int) -> str:
        """The namespace of a rank."""
        return f"{self.name}-{rank}"

    def cut(self, rank: int) -> None:
        """Take a rank's link down at the bridge: its own end stays up and hears nothing, as with a pulled cable."""
        _run("ip", "-n", self.hub, "link", "set", f"tw{rank}", "down")

    def mend(self, rank: int) -> None:
        """Bring a rank's link up again."""
        _run("ip", "-n", self.hub, "link", "set", f"tw{rank}", "up")

    def shape(self, cable: Cable) -> None:
        """Give every rank's wire these rates: up at its own end, down at the bridge's."""
        for rank in range(self.size):
            _shape(self.of(rank), DEVICE, cable.up)
            _shape(self.hub, f"tw{rank}", cable.down)

    def shape_trunks(self, cable: Cable) -> None:
        """Give what joins the sites these rates: up from a site, and down to it."""
        for site in range(self.sites if self.sites > 1 else 0):
            _shape(self.hub, f"up{site}", cable.up)
            _shape(self.hub, f"down{site}", cable.down)

    def trunk_bytes(self) -> list[int]:
        """Bytes that each site has sent to others so far, by the counter of its trunk."""
        counters = _run("ip", "netns", "exec", self.hub, "cat", "/proc/net/dev")
        return [carried(counters, f"up{site}") for site in range(self.sites)]

    def bridge(self, rank: int) -> str:
        """The bridge of a rank's site."""
        return f"{BRIDGE}{rank * self.sites // self.size}" if self.sites > 1 else BRIDGE


def address(rank: int) -> str:
    """Of a rank in its network, which no other network can reach."""
    return f"10.77.0.{rank + 1}"


def available(*programs: str) -> bool:
    """Whether namespaces can be made here: as root, with `ip` (and with those programs too)."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", *programs))):
        return False
    probe = f"{_own_name()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
    _delete([probe] if made else [])
    return made


@contextmanager
def network(size: int, sites: int = 1) -> Iterator[Namespaces]:
    """A network for so many ranks, gone at the end of the block."""
    net = Namespaces(_own_name(), size, sites)
    _check_free(net.names)
    try:
        for name in net.names:
            _make(name)
        _add_bridge(net, BRIDGE)
        for site in range(sites if sites > 1 else 0):
            _add_trunk(net, site)
        for rank in range(size):
            _join(net, rank)
        yield net
    finally:
        with _undisturbed():
            _delete(net.names)


def enter(namespace: str) -> None:
    """Move this process into a namespace, and have gloo use its interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(FOLDER / namespace) as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE


def carried(counters: str, device: str = DEVICE) -> int:
    """Bytes that an interface has sent, a rank's by default, from the text of a namespace's /proc/net/dev.

    >>> carried("  lo: 1 0 0 0 0 0 0 0 1 0\\n tw0: 5 1 0 0 0 0 0 0 77 1\\n")
    77
    """
    line = next(line for line in counters.splitlines() if line.strip().startswith(f"{device}:"))
    return int(line.partition(":")[2].split()[8])


# ---------------------------------------------------------------------------------------------------- whose names are


def _own_name() -> str:
    return f"twlab-{_processes()}-{os.getpid()}-{next(_SERIAL)}"


def _processes() -> int:
    """Which table of processes the number in a name belongs to: containers have tables of their own."""
    return os.stat("/proc/self/ns/pid").st_ino


def orphans(names: Iterable[str]) -> list[str]:
    """Those of the names that laboratories made whose processes are gone."""
    matches = [(name, re.fullmatch(r"twlab-(\d+)-(\d+)-\d+-(?:hub|probe|\d+)", name)) for name in names]
    return [name for name, match in matches if match and int(match[1]) == _processes() and _gone(int(match[2]))]


def _gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def sweep() -> list[str]:
    """Delete what laboratories left that were killed; gives the names."""
    left = orphans(sorted(path.name for path in FOLDER.iterdir())) if FOLDER.is_dir() else []
    _delete(left)
    return left


# ------------------------------------------------------------------------------------------------------ what is run


def _check_free(names: Iterable[str]) -> None:
    for name in names:
        if (FOLDER / name).exists():
            raise ConfigError(
                f"the network namespace {name} exists already, and this process did not make it: if nobody uses it, "
                f"`ip netns del {name}` removes it"
            )


def _make(name: str) -> None:
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"the network namespace {name} cannot be made: {done.stderr.strip()}. A container must be privileged for "
            "it (docker run --privileged)"
        )


def _add_bridge(net: Namespaces, name: str) -> None:
    _run("ip", "-n", net.hub, "link", "add", name, "type", "bridge")
    _run("ip", "-n", net.hub, "link", "set", name, "up")


def _add_trunk(net: Namespaces, site: int) -> None:
    """A bridge for a site, and a cable from it to the one in the middle."""
    own, up, down = f"{BRIDGE}{site}", f"up{site}", f"down{site}"
    _add_bridge(net, own)
    _run("ip", "-n", net.hub, "link", "add", up, "type", "veth", "peer", "name", down)
    for port, bridge in ((up, own), (down, BRIDGE)):
        _run("ip", "-n", net.hub, "link", "set", port, "master", bridge)
        _run("ip", "-n", net.hub, "link", "set", port, "up")


def _join(net: Namespaces, rank: int) -> None:
    """Lay a cable from a rank to the bridge."""
    own, port = net.of(rank), f"tw{rank}"
    _run("ip", "-n", net.hub, "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", own)
    _run("ip", "-n", net.hub, "link", "set", port, "master", net.bridge(rank))
    _run("ip", "-n", net.hub, "link", "set", port, "up")
    _run("ip", "-n", own, "addr", "add", f"{address(rank)}/24", "dev", DEVICE)
    _run("ip", "-n", own, "link", "set", DEVICE, "up")
    _run("ip", "-n", own, "link", "set", "lo", "up")


def _shape(namespace: str, device: str, rate: float | None) -> None:
    """A token bucket before one end of a wire, in place of what was there."""
    if rate is None and shutil.which("tc") is None:
        return  # what was never shaped
    words = ["tc", "-n", namespace, "qdisc"]
    subprocess.run([*words, "del", "dev", device, "root"], capture_output=True, check=False)  # none: it says so
    if rate is not None:
        burst = max(LEAST_BURST, int(rate / 8 * BURST_SECONDS))
        queue = max(LEAST_QUEUE, int(rate / 8 * QUEUE_SECONDS))
        bucket = ("rate", f"{rate:.0f}bit", "burst", str(burst), "limit", str(queue))
        _run(*words, "add", "dev", device, "root", "tbf", *bucket)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C, pressed a second time, does not end the clearing away."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers belong to the main thread
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _delete(names: Iterable[str]) -> None:
    """What is gone already is left alone; a second Ctrl-C at the terminal does not reach these commands."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, start_new_session=True)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"`{' '.join(words)}` failed: {done.stderr.strip()}. The laboratory needs a Linux kernel with veth, bridge "
            "and (for a rate other than none) sch_tbf"
        )
    return done.stdout
