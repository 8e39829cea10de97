"""`backward(create_graph=True)` exchanges the same gradients as a plain one.

DDP itself takes it only where each bucket holds one parameter (else torch says "a leaf Variable that requires grad is
being used in an in-place operation"), and then warns that second derivatives are not exchanged: what arrives is a value
without history. Its buckets keep that history in later steps, whatever these create.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.dist.world import run_world
from tests.methods import CONTRACTIONS, CRITERIA, FAMILY, rules
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.engines.needs import BEYOND_ONE_BACKWARD
from thinwire.feedback import Feedback, Need
from thinwire.moments import watch

pytestmark = pytest.mark.dist

WORKERS = 2
PLAIN = (False, False, False)
CREATING = [(False, True, True), (False, True, False)]
"""Which steps create a graph; in the first one DDP still has all parameters in one bucket."""
BUCKETS: list[dict[str, Any]] = [{"bucket_cap_mb": 1e-5}, {"bucket_cap_mb": 1e-5, "gradient_as_bucket_view": True}]


def attachable(rule: Feedback) -> bool:
    return not rule.needs & BEYOND_ONE_BACKWARD.keys() and not isinstance(rule, thinwire.EF21W)


TOPK = thinwire.TopK(0.3)
METHODS = [
    *rules(TOPK),
    *(thinwire.MemSGD(compressor) for compressor in CONTRACTIONS if compressor != TOPK),
    thinwire.Plain(thinwire.QSGD(3, 8)),
    *(rule for rule in FAMILY if attachable(rule) and "topk(0.3)" in str(rule)),
    thinwire.EF21W(TOPK, (1.0, 2.5)),
    *CRITERIA,
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def attached(rule: Feedback, options: dict[str, Any]) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    ddp = DistributedDataParallel(network(), **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    thinwire.attach(ddp, rule, optimizer, moments=watch(ddp) if Need.MOMENTS in rule.needs else None)
    return ddp, optimizer


def gradients(rank: int, rule: Feedback, options: dict[str, Any], create_graph: Sequence[bool]) -> list[Tensor]:
    """The exchanged gradients of each step, whose backward pass creates a graph or not."""
    ddp, optimizer = attached(rule, options)
    seen = []
    for step, create in enumerate(create_graph):
        optimizer.zero_grad()
        ddp(batch(rank, step)).square().mean().backward(create_graph=create)
        assert all(p.grad is not None for p in ddp.parameters())
        seen.append(torch.cat([p.grad.detach().clone().flatten() for p in ddp.parameters() if p.grad is not None]))
        optimizer.step()
    return seen


def differing(rank: int) -> list[str]:
    """The rules under which a graph changes the gradients."""
    warnings.simplefilter("ignore")  # torch's, about the cycle of a parameter and its gradient
    return [
        f"{rule} {options} {creating}"
        for options, methods in zip(BUCKETS, (METHODS, METHODS[:3]), strict=True)
        for rule in methods
        for expected in [gradients(rank, rule, options, PLAIN)]
        for creating in CREATING
        if not all(map(torch.equal, gradients(rank, rule, options, creating), expected))
    ]


def penalised(rank: int) -> tuple[Tensor, Tensor]:
    """Gradients of a penalty on the gradient by the input, which needs a graph (`autograd.grad`, as torch advises)."""
    seen = []
    for rule in (None, thinwire.EF21(thinwire.TopK(1.0))):
        ddp = DistributedDataParallel(network(), bucket_cap_mb=1e-5)
        if rule is not None:
            thinwire.attach(ddp, rule)
        x = batch(rank, 0).requires_grad_()
        loss = ddp(x).square().mean()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.square().sum()).backward()
        seen.append(torch.cat([p.grad.flatten() for p in ddp.parameters() if p.grad is not None]))
    return seen[0], seen[1]


def both(rank: int, size: int) -> tuple[list[str], tuple[Tensor, Tensor]]:
    return differing(rank), penalised(rank)


Results = list[tuple[list[str], tuple[Tensor, Tensor]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of both jobs, from one start of the processes."""
    return run_world(WORKERS, both, folder=tmp_path_factory.mktemp("world"))


def test_a_graph_changes_no_gradient(results: Results) -> None:
    assert [wrong for wrong, _ in results] == [[]] * WORKERS


def test_a_gradient_penalty_is_exchanged(results: Results) -> None:
    for _, (dense, ours) in results:
        torch.testing.assert_close(ours, dense, rtol=4 * torch.finfo(torch.float32).eps * WORKERS, atol=1e-7)
