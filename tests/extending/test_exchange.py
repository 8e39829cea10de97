"""An author's own exchange, written with public names alone, gives bit for bit what the built-in one gives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import attach
from thinwire.errors import AttachError, WireError
from thinwire.exchange import Exchange, Group, Incoming, Traffic

STEPS = 6
RULES = ["memsgd(topk(0.1))", "ef21(topk(0.1))", "memsgd(threshold(0.05))"]
"""The last one's messages have a size of their own on every rank and at every step."""


@dataclass
class Sent:
    """Messages that each rank sends to each other one."""

    work: Any
    messages: list[Tensor]
    traffic: Traffic

    def wait(self) -> list[Tensor]:
        self.work.wait()
        return self.messages


class AllToAll:
    """Each rank sends its message to each other rank directly, without padding."""

    def __init__(self, group: Any = None) -> None:
        self.rank, self.size, self._group = dist.get_rank(group), dist.get_world_size(group), group
        self.moments: list[str] = []
        self.gathers = 0

    def begin(self, moment: str) -> None:
        self.moments.append(moment)

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Sent:
        self.gathers += 1
        mine = message.numel()
        sizes = [mine] * self.size if fixed else [theirs for (theirs,) in self.everyone([mine], what)]
        if not fixed and not all(0 <= size <= longest for size in sizes):
            raise WireError(f"{what}: lengths {sizes} where none can be above {longest}")
        everyones, mines = message.new_empty(sum(sizes)), message.repeat(self.size)
        work = dist.all_to_all_single(everyones, mines, sizes, [mine] * self.size, group=self._group, async_op=True)
        traffic = Traffic(mine, sent=(self.size - 1) * mine, received=sum(sizes) - mine)
        return Sent(work, list(everyones.split(sizes)), traffic)

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        mine = torch.tensor(numbers)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(rows, mine, group=self._group)
        return [row.tolist() for row in rows]


class Slow:
    """The built-in exchange, whose messages are late on one rank, by a count of them."""

    def __init__(self, seconds: float) -> None:
        self._group, self._seconds = Group(), seconds
        self.rank, self.size = self._group.rank, self._group.size
        self.gathers = 0

    def begin(self, moment: str) -> None:
        self._group.begin(moment)

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Incoming:
        self.gathers += 1
        time.sleep(self._seconds if self.rank else 0.0)
        return self._group.gather(message, fixed=fixed, longest=longest, what=what)

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        return self._group.everyone(numbers, what)


def trained(rule: str, exchange: Exchange | None) -> tuple[list[Tensor], dict[str, Any], dict[str, float]]:
    """Parameters, state and account of a few steps."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.002, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    handle = attach(ddp, rule, optimizer, seed=3, exchange=exchange)
    for step in range(STEPS):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()
    handle.flush()
    return [p.detach().clone() for p in ddp.parameters()], handle.state_dict()["slots"], handle.ledger.summary()


def by_three_exchanges(rank: int, size: int, rule: str) -> dict[str, Any]:
    direct, slow = AllToAll(), Slow(0.002)
    parameters, slots, account = trained(rule, None)
    found: dict[str, Any] = {"sent": account["sent_bytes"]}
    for name, exchange in {"direct": direct, "slow": slow}.items():
        own, their_slots, their_account = trained(rule, exchange)
        found[name] = (
            all(torch.equal(a, b) for a, b in zip(own, parameters, strict=True)),
            slots.keys() == their_slots.keys() and all(torch.equal(slots[key], their_slots[key]) for key in slots),
            their_account["sent_bytes"],
        )
    return found | {"gathers": (direct.gathers, slow.gathers), "moments": direct.moments}


@pytest.mark.parametrize("rule", RULES)
def test_another_exchange_gives_the_same_bits(rule: str, tmp_path: Path) -> None:
    for found in run_world(2, by_three_exchanges, rule, folder=tmp_path):
        assert found["direct"][:2] == found["slow"][:2] == (True, True)
        assert found["gathers"][0] == found["gathers"][1] >= STEPS  # short buckets travel together
        assert found["moments"] == [*(f"step {step}" for step in range(STEPS)), "flushing the memories"]
        assert found["slow"][2] == found["sent"]
        assert found["direct"][2] <= found["sent"] - ("threshold" in rule)  # nothing is padded, no sizes go along


def with_another_rank(rank: int, size: int) -> str:
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    exchange = AllToAll()
    exchange.rank = size - 1 - rank
    with pytest.raises(AttachError) as error:
        attach(ddp, "ef21(topk(0.5))", exchange=exchange)
    return str(error.value)


def test_an_exchange_among_other_ranks_than_the_models_is_refused(tmp_path: Path) -> None:
    first, second = run_world(2, with_another_rank, folder=tmp_path)
    assert "there this is rank 0 of 2, in the exchange 1 of 2" in first
    assert "there this is rank 1 of 2, in the exchange 0 of 2" in second
