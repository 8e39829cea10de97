"""`ddp.join(divide_by_initial_world_size=False)`: the mean over the ranks that still have data, as in dense DDP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.dist.training import batch, network
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

pytestmark = pytest.mark.dist

RULES = ["plain(identity())", "ef21(topk(1.0))", "memsgd(topk(1.0))"]
BATCHES = (5, 3, 2)


def gradients(rank: int, rule: str | None, by_initial: bool, unused: bool) -> list[Tensor]:
    """This rank's gradients, step by step, of a model that does not move."""
    ddp = DistributedDataParallel(network(), bucket_cap_mb=0.001, find_unused_parameters=unused)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    if rule is not None:
        thinwire.attach(ddp, rule, optimizer)
    found = []
    with ddp.join(divide_by_initial_world_size=by_initial):
        for number in range(BATCHES[rank]):
            ddp.zero_grad()
            x, y = batch(number, rank)
            nn.functional.cross_entropy(ddp(x), y).backward()
            found.append(torch.cat([p.grad.reshape(-1) for p in ddp.parameters() if p.grad is not None]))
    return found


def compared(rank: int, size: int) -> list[tuple[str, float]]:
    """The largest difference from dense DDP, over the size of the gradient."""
    worst = []
    for by_initial, unused in ((False, False), (True, False), (False, True)):
        dense = gradients(rank, None, by_initial, unused)
        for rule in RULES:
            ours = gradients(rank, rule, by_initial, unused)
            ratio = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, dense, strict=True))
            worst.append((f"{rule}, {by_initial}, {unused}", ratio))
    return worst


def test_the_mean_is_over_the_ranks_that_the_join_says(tmp_path: Path) -> None:
    eps = torch.finfo(torch.float32).eps
    for answers in run_world(3, compared, folder=tmp_path):
        for case, ratio in answers:
            assert ratio <= 16 * eps * len(BATCHES) ** 0.5, case


def scheduled(rank: int, size: int) -> tuple[list[float], float, bool]:
    """A schedule that nobody steps on a rank that has run out of data: its memory is handed over in the units of those
    that still have."""
    ddp = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    handle = thinwire.attach(ddp, "memsgd(topk(0.1))", optimizer)
    rates = []
    with ddp.join():
        for number in range(BATCHES[rank]):
            optimizer.zero_grad()
            x, y = batch(number, rank)
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
            rates.append(handle.channel.step_sizes["0.weight"])
            schedule.step()
    return rates, handle.channel.step_sizes["0.weight"], handle.channel.step == max(BATCHES)


def test_a_schedule_under_join_is_that_of_the_ranks_with_data(tmp_path: Path) -> None:
    for rates, last, whole in run_world(3, scheduled, folder=tmp_path):
        assert rates == [0.1 * 0.5**number for number in range(len(rates))]
        assert last == 0.1 * 0.5 ** (max(BATCHES) - 1)
        assert whole
