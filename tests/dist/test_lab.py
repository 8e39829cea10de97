"""Real laboratories: the ledger beside the interfaces' counters, and nothing left behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from thinwire.errors import ThinwireError
from thinwire.lab.block import Block
from thinwire.lab.host import ORPHANED
from thinwire.lab.laboratory import measure, turns
from thinwire.lab.namespaces import FOLDER, address, available, network
from thinwire.lab.setting import Cable, LabSetting, cables

pytestmark = pytest.mark.dist
NETWORKS = pytest.mark.skipif(not available("tc"), reason="networks are made by root alone, with ip and tc")
METHODS = ("alone", "dense", "memsgd(topk(0.01))")
HEADER, SEGMENT = 66, 1448
"""Bytes of Ethernet, IP and TCP around a packet, and of what one carries."""
PACKETS = 40
"""That a step's few collectives take beside their messages: sizes, verdict, greetings of gloo, a barrier's share."""


def setting(rates: str, rounds: int) -> LabSetting:
    return LabSetting(
        hosts=2, cables=cables(rates), task="digits", methods=METHODS, steps=3, rounds=rounds, batch=4, replay=1.0
    )


def hosts() -> Iterator[int]:
    """Processes of this one's laboratories."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, status = (folder / "cmdline").read_bytes(), (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if b"thinwire.lab.host" in words and int(status[1]) == os.getpid() and status[0] != "Z":
            yield int(folder.name)


def namespaces() -> list[str]:
    """Those of this process."""
    return [path.name for path in FOLDER.glob(f"twlab-*-{os.getpid()}-*")] if FOLDER.exists() else []


@NETWORKS
def test_the_ledger_agrees_with_the_interfaces_and_a_thin_wire_takes_time() -> None:
    asked, blocks, told = setting("20mbit,none", rounds=2), list[Block](), list[str]()
    measure(asked, blocks.append, told.append)
    assert len(told) == turns(asked)
    assert [block.cable for block in blocks] == [Cable(2e7, 2e7), Cable(None, None)]
    for block in blocks:
        for trial in block.rivals:
            more = 2 * HEADER / SEGMENT * trial.sent + PACKETS * HEADER  # every packet's own header, and its answer's
            assert trial.sent < trial.carried < trial.sent + more, trial
    dense = blocks[0].trial("dense")
    assert dense.median > 8e3 * dense.sent / 2e7, "the wire let bytes through faster than its rate"
    assert not namespaces()
    assert not list(hosts())


@NETWORKS
def test_a_killed_host_is_named_and_nothing_is_left() -> None:
    def kill(_: str) -> None:
        os.kill(max(hosts()), signal.SIGKILL)

    with pytest.raises(ThinwireError, match=r"host [01] of 2 was killed by SIGKILL; .*everything is cleared away"):
        measure(setting("none", rounds=1), lambda block: None, kill)
    assert not namespaces()
    assert not list(hosts())


@NETWORKS
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, ValueError])
def test_networks_are_gone_however_their_block_ends(end: type[BaseException]) -> None:
    with pytest.raises(end):
        _network_that_ends_by(end)
    assert not namespaces()


def _network_that_ends_by(end: type[BaseException]) -> None:
    with network(2) as net:
        assert set(namespaces()) == set(net.names)
        net.shape(Cable(1e6, None))
        net.shape(Cable(None, 1e9))
        raise end


@NETWORKS
def test_what_sites_tell_each_other_goes_through_their_trunks() -> None:
    with network(4, sites=2) as net:
        net.shape_trunks(Cable.of("10mbit", "10mbit"))
        told = [net.trunk_bytes()]
        for there in (1, 3):  # of the same site, and of the other
            datagram = f"head -c 1400 /dev/zero > /dev/udp/{address(there)}/9"
            for _ in range(20):
                subprocess.run(["ip", "netns", "exec", net.of(0), "bash", "-c", datagram], check=True)
            told.append(net.trunk_bytes())
    first, inside, between = (site for site, _ in told)
    assert inside - first < 1400  # asking for an address goes everywhere
    assert between - inside >= 10 * 1400


@NETWORKS
def test_a_host_ends_with_its_laboratory() -> None:
    command = [sys.executable, "-m", "thinwire.lab.host"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == ORPHANED
