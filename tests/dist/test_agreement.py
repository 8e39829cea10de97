"""Rows that real ranks agree upon before they send: bitwise the simulation, and never other rows on another rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.test_simulation_equals_ddp import Branching, NeverUsed, OneSided, Tied, compared
from tests.dist.test_sums import backward, state_of, wide
from tests.dist.training import Run, differences, network, train_ddp, train_simulated
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import AttachError, NonFiniteGradient, ThinwireError
from thinwire.exchange import Group, Hierarchy, allreduce_bytes
from thinwire.payload.sums import Summand

pytestmark = pytest.mark.dist

RULE = "memsgd(arctopk(0.3, columns=8, directions=2))"
CIRCUMSTANCES = {
    "unused at times": Run(RULE, network=Branching, ddp={"find_unused_parameters": True}),
    "unused by one": Run(RULE, network=OneSided, ddp={"find_unused_parameters": True}),
    "unused by one, ef21": Run(
        RULE.replace("memsgd", "ef21"), network=OneSided, ddp={"find_unused_parameters": True, "bucket_cap_mb": 0.001}
    ),
    "never used, static": Run(RULE, network=NeverUsed, ddp={"static_graph": True}),
    "tied and frozen": Run(RULE, network=Tied),
    "two groups": Run(RULE, groups=True),
    "clipped, one bucket": Run(RULE, clip=0.1, ddp={"bucket_cap_mb": 25}),
    "bucket views": Run(RULE, ddp={"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}),
    "bfloat16": Run(RULE, dtype=torch.bfloat16),
    "float16": Run(RULE.replace("memsgd", "ef21sgdm"), dtype=torch.float16),
    "float64": Run(RULE, dtype=torch.float64),
    "in bytes, fading": Run("memsgd(arctopk(0.3, columns=8), decay=0.9, memory=int8)"),
    "warm-up": Run("memsgd(arctopk(warmup(0.9, 0.1, 10), columns=6, directions=3))"),
    "route": Run(
        "route({'0.*': memsgd(arctopk(0.2, columns=8)), '2.*': ef21(arctopk(0.3, columns=4)), '*': memsgd(topk(0.2))})",
        ddp={"bucket_cap_mb": 25},
    ),
    "route to one": Run("route({'0.weight': memsgd(arctopk(0.2, columns=8)), '*': identity()}, min_numel=20)"),
}


@pytest.mark.parametrize("size", [2, 3])
def test_every_circumstance_is_the_simulation_bit_for_bit(size: int, tmp_path: Path) -> None:
    runs = list(CIRCUMSTANCES.values())
    found = compared(runs if size == 2 else runs[::3], size, tmp_path)
    assert not [wrong for wrong in found if wrong]


# --------------------------------------------------------------------------------------------------- on a large scale

COLUMNS, DIRECTIONS = 16, 16
WIDE = Run(f"memsgd(arctopk(0.9, columns={COLUMNS}, directions={DIRECTIONS}))", network=wide, ddp={}, steps=4)
"""Sketches as large as the parameters: they too are added up on their way. (Who wants that sends all.)"""
THIN = replace(WIDE, rule="memsgd(arctopk(0.75, columns=256, directions=2))")


def trained_widely(rank: int, size: int) -> list[Any]:
    found = []
    for run in (WIDE, THIN):
        parameters, handle, _ = train_ddp(rank, run)
        found.append((parameters, handle.ledger.summary()["sent_bytes"]))
    return found


def test_what_is_agreed_upon_is_added_up_on_its_way(tmp_path: Path) -> None:
    """Bitwise, and with 2 (W - 1) / W of the bytes of all rows, and of all sketches."""
    size = 3
    worlds = run_world(size, trained_widely, folder=tmp_path)
    for place, run in enumerate((WIDE, THIN)):
        simulated = train_simulated(run, size)
        for results in worlds:
            assert not list(differences(results[place][0], simulated)), run.rule
    rows = [-(-p.numel() // 256) for p in wide().parameters()]
    numbers = sum(max(1, int(0.75 * m)) * min(256, p.numel()) for m, p in zip(rows, wide().parameters(), strict=True))
    sketches = sum(2 * m for m in rows if m > 1)  # of one row nothing has to be chosen
    least = allreduce_bytes(4 * numbers, size) + (size - 1) * 4 * sketches
    assert THIN.steps * least <= worlds[0][1][1] <= 1.02 * THIN.steps * least


# ------------------------------------------------------------------------------------------------------------- failures


def model(rule: str) -> tuple[DistributedDataParallel, thinwire.Handle]:
    ddp = DistributedDataParallel(wide())
    return ddp, thinwire.attach(ddp, rule, torch.optim.SGD(ddp.parameters(), lr=0.1))


def spoilt_on_one(rank: int, size: int, number: float) -> list[tuple[str, bool]]:
    found = []
    for rule in (WIDE.rule, THIN.rule, THIN.rule.replace("memsgd", "ef21")):
        ddp, handle = model(rule)
        backward(ddp, 0, rank)
        before = state_of(handle)
        hook = ddp.module[0].weight.register_hook(lambda gradient: gradient * number) if rank == 1 else None
        with pytest.raises(NonFiniteGradient) as caught:
            backward(ddp, 1, rank)
        same = not list(differences(before, state_of(handle)))
        if hook is not None:
            hook.remove()
        backward(ddp, 1, rank)
        found.append((str(caught.value), same and bool(ddp.module[0].weight.grad.isfinite().all())))
    return found


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_is_refused_by_all(number: float, tmp_path: Path) -> None:
    for rank, answers in enumerate(run_world(3, spoilt_on_one, number, folder=tmp_path)):
        for said, unmoved in answers:
            assert "rank 1" in said, (rank, said)
            assert "0.weight" in said
            assert unmoved


def too_large(rank: int, size: int) -> tuple[str, bool]:
    """Gradients that float32 holds, and whose sum over ranks and rows it does not."""
    ddp, handle = model(THIN.rule)
    backward(ddp, 0, rank)
    before = state_of(handle)
    hook = ddp.module[0].weight.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
    with pytest.raises(NonFiniteGradient) as caught:
        backward(ddp, 1, rank)
    same = not list(differences(before, state_of(handle)))
    hook.remove()
    backward(ddp, 1, rank)
    return str(caught.value), same and bool(ddp.module[0].weight.grad.isfinite().all())


def test_sketches_that_overflow_are_refused_by_all(tmp_path: Path) -> None:
    answers = run_world(3, too_large, folder=tmp_path)
    assert all("0.weight" in said and unmoved for said, unmoved in answers)
    assert len({said for said, _ in answers}) == 1


def damaged(rank: int, size: int, rule: str, what: str) -> tuple[str, bool]:
    """Rank 1's letter loses a bit on its way to all; to rank 0 alone where it is one of shares."""
    ddp, handle = model(rule)
    backward(ddp, 0, rank)
    before = state_of(handle)
    scatter, gather = Group.scatter, Group.gather

    def bad_scatter(self: Group, rows: Tensor, name: str) -> Any:
        if name == what:
            rows[0, 100] ^= 4
        return scatter(self, rows, name)

    def bad_gather(self: Group, message: Tensor, **given: Any) -> Any:
        if given["what"] == what:
            message[min(100, message.numel() - 1)] ^= 4
        return gather(self, message, **given)

    if rank == 1:
        Group.scatter, Group.gather = bad_scatter, bad_gather  # type: ignore[method-assign]
    with pytest.raises(ThinwireError) as caught:
        backward(ddp, 1, rank)
    Group.scatter, Group.gather = scatter, gather  # type: ignore[method-assign]
    same = not list(differences(before, state_of(handle)))
    backward(ddp, 1, rank)
    return str(caught.value), same and bool(ddp.module[0].weight.grad.isfinite().all())


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (WIDE.rule, "sketches of bucket 0"),
        (WIDE.rule, "the totals of a bucket"),
        (THIN.rule, "sketches of bucket 0"),
        ("memsgd(arctopk(0.2, columns=8))", "sketches of bucket 0"),  # the size of its rows' positions varies
    ],
)
def test_damaged_sketches_are_refused_by_all(rule: str, what: str, tmp_path: Path) -> None:
    for said, unmoved in run_world(3, damaged, rule, what, folder=tmp_path):
        assert "rank 1" in said
        assert "damaged on its way" in said
        assert unmoved


def damaged_for_one(rank: int, size: int, rule: str) -> tuple[str, bool]:
    """Rank 2 alone cannot read the sketches, and sends other rows than the rest, of the same size."""
    ddp, handle = model(rule)
    backward(ddp, 0, rank)
    before = state_of(handle)
    gather, waited = Group.gather, []

    def bad_gather(self: Group, message: Tensor, **given: Any) -> Any:
        incoming = gather(self, message, **given)
        if given["what"] == "sketches of bucket 0":
            waited.append(incoming.wait())
            waited[-1][1][20] ^= 4
        return incoming

    if rank == 2:
        Group.gather = bad_gather  # type: ignore[method-assign]
    with pytest.raises(ThinwireError) as caught:
        backward(ddp, 1, rank)
    Group.gather = gather  # type: ignore[method-assign]
    same = not list(differences(before, state_of(handle)))
    backward(ddp, 1, rank)
    return str(caught.value), same and bool(ddp.module[0].weight.grad.isfinite().all())


@pytest.mark.parametrize("rule", [THIN.rule, "memsgd(arctopk(0.2, columns=8))", "ef21(arctopk(0.03, columns=8))"])
def test_one_rank_that_cannot_read_the_sketches_takes_nobody_with_it(rule: str, tmp_path: Path) -> None:
    for said, unmoved in run_world(3, damaged_for_one, rule, folder=tmp_path):
        assert "damaged on its way" in said
        assert unmoved


# ------------------------------------------------------------------------------------------------------------- resuming


def halves(rank: int, size: int, folder: str) -> list[str]:
    run, half = Run(RULE, steps=12), 5
    whole, _, _ = train_ddp(rank, run)
    _, handle, _ = train_ddp(rank, run, until=half)
    torch.save(handle.saved, f"{folder}/{rank}.pt")  # type: ignore[attr-defined]
    saved = torch.load(f"{folder}/{rank}.pt", weights_only=False)
    again, _, _ = train_ddp(rank, run, resume=(half, saved))
    return list(differences(whole, again))


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    assert not any(run_world(2, halves, str(tmp_path), folder=tmp_path))


# -------------------------------------------------------------------------------------------------------------- refusal


def refusals(rank: int, size: int) -> list[str]:
    found = []

    def refused(rule: str, **options: Any) -> None:
        ddp = DistributedDataParallel(network())
        with pytest.raises(AttachError) as caught:
            thinwire.attach(ddp, rule, torch.optim.SGD(ddp.parameters(), lr=0.1), **options)
        found.append(str(caught.value))

    refused(RULE, exchange="server")
    refused(RULE, exchange=Hierarchy(2))
    refused(f"auto({RULE})")
    net: nn.Module = network()
    with pytest.raises(AttachError) as caught:
        thinwire.attach_outer(net, torch.optim.SGD(net.parameters(), lr=0.1), RULE, every=2)
    found.append(str(caught.value))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "shard"))
    shards = fully_shard(network(), mesh=mesh["shard"])
    with pytest.raises(AttachError) as caught:
        thinwire.attach_fsdp(shards, RULE, torch.optim.SGD(shards.parameters(), lr=0.1), mesh=mesh)
    found.append(str(caught.value))
    return found


def test_who_cannot_ask_ranks_to_agree_says_so_with_a_remedy(tmp_path: Path) -> None:
    for found in run_world(4, refusals, folder=tmp_path):
        assert len(found) == 5
        assert all("needs the sum of all workers' sketches" in said and "topk" in said for said in found[1:]), found
        assert "topk" in found[0] or "gather" in found[0], found[0]


def test_a_sketch_is_no_summand_of_a_message() -> None:
    """Its letter has a digest of its own: sketches are never taken for messages."""
    channel = thinwire.Channel(thinwire.parse(RULE), {"x": torch.zeros(64)}, rank=0, size=2)
    layout = channel.layout(["x"])
    given = thinwire.outgoing.Given(torch.randn(64), step_sizes={"x": 0.1})
    sketched = channel.sketch(layout, given)
    assert sketched is not None
    assert isinstance(sketched.outgoing.summand, Summand)
    sent = channel.send(layout, replace(given, agreed=sketched.agreed(sketched.numbers)))
    assert sent.expected.digest != sketched.outgoing.expected.digest
