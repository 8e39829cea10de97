"""Peers: what torch itself offers, trained beside our rules as the thing to beat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A way of averaging gradients that torch brings along."""

    name: str
    about: str
    simulated: bool = True


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("dense", "plain DDP: float32 ring all-reduce"),
        Peer("fp16", "torch's fp16_compress_hook: float16 ring all-reduce"),
        Peer("powersgd", "torch's PowerSGD hook, rank 1, one bucket (--engine ddp only)", simulated=False),
    )
}
