"""Post: which collectives a rank starts, and in which order, does not depend on what its messages hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from thinwire import Channel, Ledger, parse
from thinwire.engines.ddp.post import Post
from thinwire.exchange import Traffic
from thinwire.outgoing import Given

BUCKETS = 3


@dataclass
class Noted:
    """An exchange of two that notes what it is asked for."""

    rank: int
    size: int = 2
    asked: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    traffic = Traffic(0, 0, 0)

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Any:
        self.asked.append(what)
        self.lengths.append(message.numel())
        return self


def started(rank: int, rule: str, numel: int) -> Noted:
    """What a rank asks for; rank 1's numbers are of many magnitudes, and its messages longer."""
    exchange = Noted(rank)
    channel = Channel(parse(rule), {f"p{i}": torch.zeros(numel) for i in range(BUCKETS)}, rank=rank, size=2)
    post, source = Post(channel, exchange, Ledger(2)), torch.Generator().manual_seed(rank)  # type: ignore[arg-type]
    for place in range(BUCKETS):
        x = torch.randn(numel, generator=source) * 10.0 ** (3 * rank * torch.randn(numel, generator=source))
        post.send(channel.send(channel.layout([f"p{place}"]), Given(x)), x, place)
        post.sent(last=place == BUCKETS - 1)
    return exchange


@pytest.mark.parametrize("numel", [300, 40_000, 1 << 20])
@pytest.mark.parametrize("rule", ["plain(topk(0.6, values=exponent4))", "memsgd(threshold(2.0))", "memsgd(sign())"])
def test_all_ranks_start_the_same(rule: str, numel: int) -> None:
    one, two = started(0, rule, numel), started(1, rule, numel)
    assert one.asked == two.asked
    assert one.asked
    if "sign" not in rule and numel > 300:
        assert one.lengths != two.lengths
