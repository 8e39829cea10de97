"""VGC under DDP: where its second moments come from, and what happens when they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.training import Parameters, batch, differences, network
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import AttachError, ConfigError, MomentError, NonFiniteGradient
from thinwire.moments import Exact, MicroBatches, watch

pytestmark = pytest.mark.dist

SMALL = {"bucket_cap_mb": 0.001}
STEPS = 8


def parameters_of(model: nn.Module) -> Parameters:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# ------------------------------------------------------------------------------------------------- attach


def attached(rank: int, size: int) -> list[str]:
    """What attach says to rules without their moments, or with those of other parameters."""
    model, other = network(), network()
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr,index]
    partial = watch(model)
    model[0].weight.requires_grad_(True)  # type: ignore[union-attr,index]
    ddp, said = DistributedDataParallel(model), []
    for moments in (None, watch(other), partial):
        with pytest.raises(AttachError) as caught:
            thinwire.attach(ddp, thinwire.VGC(), moments=moments)
        said.append(str(caught.value))
    route = thinwire.Route({"0.weight": thinwire.Identity(), "*": thinwire.VGC()}, min_numel=0)
    thinwire.attach(ddp, route, moments=partial)  # it needs no others
    return said


def test_moments_are_asked_for_when_attached(tmp_path: Path) -> None:
    for without, others, partial in run_world(2, attached, folder=tmp_path):
        assert "vgc() needs the second moments" in without
        assert "moments=thinwire.moments.watch(ddp)" in without
        assert "'0.bias', which is not watched" in others
        assert "'0.weight', which is not watched" in partial


# ------------------------------------------------------------------------------------------------- units


def train(
    rule: str,
    rank: int,
    *,
    reduction: Any = "mean",
    scaler: torch.amp.GradScaler | None = None,
    micro: bool = False,
    given_up: bool = False,
    lr: float = 0.125,
) -> tuple[Parameters, dict[str, Any]]:
    """Training on batches of 8; gives the parameters and the slots of the state.

    `given_up`: after the third step a pass is thrown away, under no_sync, with its gradient.
    """
    model = network()
    ddp = DistributedDataParallel(model, **SMALL)
    sources = (MicroBatches(4),) if micro else (Exact(),)
    moments = watch(ddp, reduction=reduction, sources=sources)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    handle = thinwire.attach(ddp, thinwire.parse(rule), optimizer, moments=moments, scaler=scaler)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        loss = cross_entropy(ddp(x), y, reduction=reduction)
        return loss if scaler is None else scaler.scale(loss)

    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = (torch.cat([a, b[:2]]) for a, b in zip(batch(step, rank), batch(step + 100, rank), strict=True))
        if given_up and step == 3:
            with ddp.no_sync():
                loss_of(x + 1, y).backward()
            optimizer.zero_grad()
        if micro:
            moments.backward(loss_of, x, y)
        else:
            loss_of(x, y).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return parameters_of(model), handle.state_dict()["slots"]


RULES = ("vgc(1.0)", "vgc(1.0, values=full)", "route({'0.*': vgc(1.0), '*': memsgd(topk(0.2))}, min_numel=0)")


def units(rank: int, size: int) -> list[list[str]]:
    """Runs that must agree bit for bit, because they differ by powers of two, or by a pass that was given up."""
    wrong = []
    for rule in RULES:
        mean, slots = train(rule, rank)
        of_sum, slots_of_sum = train(rule, rank, reduction="sum", lr=0.125 / 8)
        growing = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        scaled, slots_of_scaled = train(rule, rank, scaler=growing)
        again, _ = train(rule, rank, given_up=True)
        factors = {"total": 8, "squares": 64, "error": 8}
        wrong.append(
            [
                *differences(mean, of_sum),
                *differences(mean, scaled),
                *differences(mean, again),
                *differences(slots, slots_of_scaled),
                *(key for key in slots if not torch.equal(slots[key] * factors[key.split("/")[0]], slots_of_sum[key])),
                *([] if any(t.count_nonzero() for k, t in slots.items() if "squares" in k) else ["nothing was kept"]),
            ]
        )
    return wrong


def test_a_sum_a_loss_scale_and_a_pass_given_up_change_no_decision(tmp_path: Path) -> None:
    """With 8 samples a sum's gradients are 8 times a mean's: the same numbers pass, and a learning rate 8 times
    smaller gives the same parameters."""
    for wrong in run_world(2, units, folder=tmp_path):
        assert wrong == [[]] * len(RULES)


def micro_batches(rank: int, size: int) -> list[str]:
    parameters, _ = train("vgc(1.0, values=full)", rank, micro=True)
    model = network()
    sim_optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    named = dict(model.named_parameters())
    sim = thinwire.Simulation(named, thinwire.parse("vgc(1.0, values=full)"), size, optimizer=sim_optimizer)
    moments = watch(model, sources=(MicroBatches(4),))
    for step in range(STEPS):
        gradients, squares = [], []
        for worker in range(size):
            model.zero_grad()
            pairs = zip(batch(step, worker), batch(step + 100, worker), strict=True)
            moments.backward(lambda x, y: cross_entropy(model(x), y), *(torch.cat([a, b[:2]]) for a, b in pairs))
            gradients.append({name: p.grad for name, p in named.items()})
            squares.append(moments.take())
        sim.step(gradients, squares)
    return list(differences(parameters_of(model), parameters))


def test_micro_batches_equal_the_simulation_too(tmp_path: Path) -> None:
    assert run_world(2, micro_batches, folder=tmp_path) == [[], []]


# ------------------------------------------------------------------------------------------------- refusals


def small_batch(rank: int, size: int) -> tuple[str, list[str], bool]:
    """Rank 1 has a single sample: every rank hears of it, nothing moves, and a larger batch goes on."""
    model = network()
    before = parameters_of(model)
    ddp = DistributedDataParallel(model, **SMALL)
    moments = watch(ddp)
    handle = thinwire.attach(ddp, thinwire.VGC(), moments=moments)
    x, y = batch(0, rank)
    few = 1 if rank == 1 else len(x)
    with pytest.raises(ConfigError) as caught:
        cross_entropy(ddp(x[:few]), y[:few]).backward()
    idle = all(not slot.any() for slot in handle.state_dict()["slots"].values())
    ddp.zero_grad()
    cross_entropy(ddp(x), y).backward()
    finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
    return str(caught.value), list(differences(before, parameters_of(model))), idle and finite


def test_a_batch_too_small_for_alpha_is_refused_on_every_rank(tmp_path: Path) -> None:
    for said, moved, fine in run_world(2, small_batch, folder=tmp_path):
        assert "1 on some rank" in said
        assert "alpha = 1.5" in said
        assert moved == []
        assert fine


def poisoned(rank: int, size: int) -> tuple[str, bool]:
    """Rank 1's squares overflow float32 in one layer while its gradient does not: the run without that step."""
    runs = []
    said = ""
    for poison in (True, False):
        model = network()
        ddp = DistributedDataParallel(model, **SMALL)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        thinwire.attach(ddp, thinwire.VGC(1.0), optimizer, moments=watch(ddp))
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = batch(step, rank)
            if poison and step == 4:
                z = x * 1e25 if rank == 1 else x
                with pytest.raises(NonFiniteGradient) as caught:
                    (ddp.module[0](z).mean() * 1e-3 + 0 * ddp(x).sum()).backward()  # type: ignore[index,operator]
                said = f"{caught.value.rank} {caught.value.parameter} {caught.value.step}"
                optimizer.zero_grad()
            cross_entropy(ddp(x), y).backward()
            optimizer.step()
        runs.append(parameters_of(model))
    return said, not list(differences(*runs))


def test_squares_that_are_not_finite_name_rank_and_parameter_and_undo_the_step(tmp_path: Path) -> None:
    for said, same in run_world(2, poisoned, folder=tmp_path):
        assert said == "1 0.weight 4"
        assert same


def broken(rank: int, size: int) -> str:
    """Rank 1 runs too few micro-batches: it says why, the other rank hears that the step was refused."""
    model = network()
    ddp = DistributedDataParallel(model, **SMALL)
    thinwire.attach(ddp, thinwire.VGC(0.5), moments=(moments := watch(ddp, sources=(MicroBatches(3),))))
    x, y = batch(0, rank)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(ddp(x), y)

    backward = (lambda: loss(x, y).backward()) if rank == 1 else (lambda: moments.backward(loss, x, y))
    with pytest.raises(MomentError if rank == 1 else NonFiniteGradient) as caught:
        backward()
    return str(caught.value)


def test_moments_that_fail_on_one_rank_end_the_step_on_all(tmp_path: Path) -> None:
    others, own = run_world(2, broken, folder=tmp_path)
    assert "rank 1 computed a gradient (or squares of one) with NaN" in others
    assert "only 1 backward passes" in own
