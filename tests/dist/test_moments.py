"""A parameter's second moment is there when DDP hands its bucket to a comm hook, bucket by bucket."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire import VGC, attach
from thinwire.errors import MomentError, NonFiniteGradient
from thinwire.moments import Exact, MicroBatches, watch

SAMPLES, STEPS = 6, 3


class Small(nn.Module):
    """Several buckets, a layer that is called twice, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.norm = nn.Embedding(9, 20), nn.Conv1d(20, 20, 3, padding=1), nn.BatchNorm1d(20)
        self.body, self.out = nn.Linear(20, 20), nn.Linear(20, 9)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(self.embed(x).transpose(1, 2))).transpose(1, 2)
        return self.out(self.body(torch.relu(self.body(h))).sum(1))  # type: ignore[no-any-return]


def batch(step: int) -> Tensor:
    return torch.randint(9, (SAMPLES, 7), generator=torch.Generator().manual_seed(step))


def loss(output: Tensor) -> Tensor:
    return output.logsumexp(1).mean()


def model() -> nn.Module:
    torch.manual_seed(0)
    return Small().double()


def expected(step: int) -> dict[str, Tensor]:
    """The moments without DDP (with DDP the parameters do not move either)."""
    plain = model()
    with watch(plain) as moments:
        loss(plain(batch(step))).backward()
        return moments.take()


def train(rank: int, size: int, options: dict[str, Any], accumulate: bool) -> list[list[list[str]]]:
    """Steps of DDP; every bucket's hook pops its parameters' moments and compares them. Gives each step's buckets."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.002, **options)
    moments, buckets, now = watch(ddp), [], 0
    names = {id(p): name for name, p in ddp.module.named_parameters()}
    passes, wanted = 2 if accumulate else 1, [expected(step) for step in range(STEPS)]

    def hook(state: None, bucket: dist.GradBucket) -> Future[Tensor]:
        mine = [names[id(p)] for p in bucket.parameters()]
        for name in mine:
            gap = moments.pop(name) - passes * wanted[now][name]
            assert gap.norm() <= 1e-12 * wanted[now][name].norm(), f"step {now}, bucket {bucket.index()}: {name}"
        buckets[-1].append(mine)
        result: Future[Tensor] = Future()
        result.set_result(bucket.buffer())
        return result

    ddp.register_comm_hook(None, hook)
    for now in range(STEPS):
        buckets.append([])
        if accumulate:
            with ddp.no_sync():
                loss(ddp(batch(now))).backward()
        loss(ddp(batch(now))).backward()
    return buckets


@pytest.mark.dist
@pytest.mark.parametrize(
    ("options", "accumulate"),
    [
        ({}, False),
        ({"gradient_as_bucket_view": True}, True),
        ({"find_unused_parameters": True}, False),
        ({"static_graph": True}, False),
    ],
    ids=str,
)
def test_the_moments_are_there_when_the_bucket_is(tmp_path: Path, options: dict[str, Any], accumulate: bool) -> None:
    (buckets,) = run_world(1, train, options, accumulate, folder=tmp_path)
    trained = sorted(name for name, _ in model().named_parameters())
    for step in buckets:
        assert sorted(name for bucket in step for name in bucket) == trained
    if not options.keys() & {"find_unused_parameters", "static_graph"}:  # with these, DDP keeps its first buckets here
        assert len(buckets[0]) < 2 < len(buckets[1])  # it has cut them anew


def microbatches(rank: int, size: int) -> int:
    ddp = DistributedDataParallel(model())
    moments, hooks = watch(ddp, sources=(MicroBatches(3), Exact())), 0

    def hook(state: None, bucket: dist.GradBucket) -> Future[Tensor]:
        nonlocal hooks
        hooks += 1
        assert moments.pop("body.weight").count_nonzero() > 0
        result: Future[Tensor] = Future()
        result.set_result(bucket.buffer())
        return result

    ddp.register_comm_hook(None, hook)
    moments.backward(lambda x: loss(ddp(x)), batch(0))
    return hooks


@pytest.mark.dist
def test_micro_batches_exchange_only_with_the_last(tmp_path: Path) -> None:
    assert run_world(1, microbatches, folder=tmp_path) == [1]


# ------------------------------------------------------------------------------------------------- errors on one rank

CASES: list[tuple[dict[str, Any], int, bool]] = [  # options, the step with the penalty, accumulation
    ({}, 0, False),
    ({}, 1, False),
    ({}, 1, True),
    ({"static_graph": True}, 0, False),
    ({"find_unused_parameters": True}, 1, False),
]


def penalised(rank: int, size: int) -> list[tuple[str, bool]]:
    """Rank 1 alone has a penalty on one weight in its loss. What each rank hears, and whether it goes on."""
    return [_penalised(rank, *case) for case in CASES]


def _penalised(rank: int, options: dict[str, Any], bad: int, accumulate: bool) -> tuple[str, bool]:
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.002, **options)
    attach(ddp, VGC(1.0), moments=watch(ddp, checks=STEPS))
    weight: Any = ddp.module.get_parameter("body.weight")

    def passes(step: int, strength: float) -> None:
        if accumulate:
            with ddp.no_sync():
                (loss(ddp(batch(step))) + strength * weight.square().sum()).backward()
            strength = 0.0  # the error is one of the first pass, which no bucket asks for
        (loss(ddp(batch(step))) + strength * weight.square().sum()).backward()

    said = ""
    for step in range(bad + 2):
        ddp.zero_grad()
        if step == bad:
            with pytest.raises(MomentError if rank == 1 else NonFiniteGradient) as caught:
                passes(step, 0.01 if rank == 1 else 0.0)
            said = str(caught.value)
        else:
            passes(step, 0.0)
    return said, all(bool(p.grad.isfinite().all()) for p in ddp.parameters() if p.grad is not None)


@pytest.mark.dist
def test_an_error_inside_one_ranks_backward_pass_reaches_all(tmp_path: Path) -> None:
    """Nobody is left waiting (that would be a hang: gloo's own limit is minutes); the next step goes on."""
    others, own = run_world(2, penalised, folder=tmp_path)
    for (heard, on), (said, on_too) in zip(others, own, strict=True):
        assert "rank 1 computed" in heard
        assert "'body.weight'" in heard
        assert said.startswith("rank 1: parameter 'body.weight'")
        assert "leave weight decay to the optimizer" in said
        assert on
        assert on_too
