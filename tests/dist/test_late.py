"""`nonfinite="late"`: a refused step is skipped by a fused optimizer, and raised by the next backward pass."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.test_nonfinite import BAD_STEP, poisoned_loss
from tests.dist.training import network
from tests.dist.world import run_world
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import AttachError, NonFiniteGradient
from thinwire.exchange import Hierarchy

pytestmark = pytest.mark.dist
RULES = ("memsgd(topk(0.3))", "ef21sgdm(topk(0.3))", "memsgd(randk(0.3, shared=True))", "plain(identity())")


class Run:
    """A model under a rule, whose last step may still be in doubt."""

    def __init__(self, rule: str, nonfinite: Any) -> None:
        self.model = network()
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.001)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        self.handle = thinwire.attach(self.ddp, rule, self.optimizer, nonfinite=nonfinite)
        self.caught: list[str] = []

    def train(self, rank: int, steps: range, *, poison: bool = False, left_out: int = -1) -> None:
        for step in steps:
            if step != left_out and not self._tried(rank, step, poison):
                assert all(p.grad is not None and p.grad.isnan().all() for p in self.model.parameters())
                assert self._tried(rank, step, poison)

    def _tried(self, rank: int, step: int, poison: bool) -> bool:
        """A step, unless one hears in it that the last one was refused."""
        self.optimizer.zero_grad()
        try:
            poisoned_loss(self.ddp, rank, step, poison).backward()
        except NonFiniteGradient as error:
            self.caught.append(f"{error.rank} {error.parameter} {error.step}")
            return False
        self.optimizer.step()
        return True

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def skipping(rank: int, size: int) -> list[tuple[Any, ...]]:
    answers = []
    for rule in RULES:
        late, without, plain = Run(rule, "late"), Run(rule, "late"), Run(rule, "raise")
        late.train(rank, range(10), poison=True)
        without.train(rank, range(10), left_out=BAD_STEP)
        plain.train(rank, range(10), left_out=BAD_STEP)
        as_without = equal(late.parameters, without.parameters)
        states = late.handle.state_dict()["slots"], without.handle.state_dict()["slots"]
        same_states = all(torch.equal(states[0][key], value) for key, value in states[1].items())
        counts = late.handle.ledger.skipped, late.handle.channel.step  # the refused step, and that which heard of it
        answers.append((late.caught, as_without, equal(without.parameters, plain.parameters), same_states, counts))
    return answers


def test_a_refused_step_is_skipped_on_all_ranks_and_raised_by_the_next_backward(tmp_path: Path) -> None:
    """All is as in a run that leaves the step out, and that run is as one that waits at every step. The step that heard
    of it was not taken either, and is tried again."""
    expected = [(["1 2.bias 4"], True, True, True, (2, 9))] * len(RULES)
    assert run_world(2, skipping, folder=tmp_path) == [expected] * 2


def settling(rank: int, size: int) -> list[Any]:
    """A state is that of the last step that was taken; what all ranks call together hears how the last one went."""
    run = Run("memsgd(topk(0.3))", "late")
    run.train(rank, range(3))
    answers: list[Any] = [run.handle.channel.step]
    if rank == 0:  # it asks nobody
        run.handle.state_dict()
    answers.append(run.handle.state_dict()["step"])
    run.train(rank, range(BAD_STEP, BAD_STEP + 1), poison=True)
    answers.append(run.handle.state_dict()["step"])
    for _ in range(2):
        try:
            run.handle.flush()
            answers.append("flushed")
        except NonFiniteGradient as error:
            answers.append(str(error.parameter))
    run.train(rank, range(5, 6))
    state = run.handle.detach()
    return [*answers, state["step"], hasattr(run.optimizer, "found_inf")]


def test_a_state_is_that_of_the_last_step(tmp_path: Path) -> None:
    expected = [2, 3, 3, "2.bias", "flushed", 4, False]
    assert run_world(2, settling, folder=tmp_path) == [expected] * 2


def joining(rank: int, size: int, batches: int) -> list[Any]:
    """Rank 1 has fewer batches; the second is poisoned."""
    run = Run("memsgd(topk(0.3))", "late")
    with run.ddp.join():
        run.train(rank, range(BAD_STEP - 1, BAD_STEP - 1 + (batches if rank else 6)), poison=True)
    run.handle.settle()
    return [run.caught, run.handle.channel.step, [p.sum().item() for p in run.parameters]]


@pytest.mark.parametrize("batches", [2, 3])
def test_a_rank_without_data_agrees_as_the_others_do(tmp_path: Path, batches: int) -> None:
    """Whether it hears of the refused step while it has data, or when it has run out of it."""
    one, two = run_world(2, partial(joining, batches=batches), folder=tmp_path)
    assert (one[0], one[1], two[1]) == (["1 2.bias 1"], 5, 5)
    assert two[0] == (one[0] if batches > 2 else [])
    assert one[2] == two[2]


def beginning(rank: int, size: int) -> list[float]:
    """The first step of SGD with momentum is refused."""
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    thinwire.attach(ddp, "plain(identity())", optimizer, nonfinite="late")
    for factor in (float("nan"), 1.0, 1.0, 1.0):
        optimizer.zero_grad()
        try:
            (factor * ddp(torch.ones(1, 2))).sum().backward()
        except NonFiniteGradient:
            continue
        optimizer.step()
    return [round(number, 6) for number in model.weight.flatten().tolist()]


def test_a_momentum_begins_with_the_first_step_that_is_taken(tmp_path: Path) -> None:
    """Two steps: of 0.1, and of 0.19."""
    assert run_world(2, beginning, folder=tmp_path) == [[-0.29, -0.29]] * 2


def refusing(rank: int, size: int) -> list[str]:
    ddp = DistributedDataParallel(network())
    fused = torch.optim.SGD(ddp.parameters(), lr=0.1, fused=True)
    dampened = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, dampening=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    attempts: list[dict[str, Any]] = [
        {"rule": "memsgd(topk(0.3))", "optimizer": torch.optim.SGD(ddp.parameters(), lr=0.1)},
        {"rule": "plain(identity())", "optimizer": None},
        {"rule": "memsgd(topk(0.3))", "optimizer": fused, "scaler": scaler},
        {"rule": "memsgd(topk(0.3))", "optimizer": fused, "exchange": "server"},
        {"rule": "auto", "optimizer": fused},
        {"rule": "memsgd(topk(0.3))", "optimizer": fused, "exchange": Hierarchy(sites=1)},
        {"rule": "memsgd(topk(0.3))", "optimizer": dampened},
    ]
    said = []
    for attempt in attempts:
        with pytest.raises(AttachError) as caught:
            thinwire.attach(ddp, nonfinite="late", **attempt)
        said.append(str(caught.value))
    return said


def test_what_cannot_skip_a_step_is_refused(tmp_path: Path) -> None:
    for said in run_world(2, refusing, folder=tmp_path):
        words = ["fused=True", "fused=True", 'nonfinite="skip"', *["exchange= out"] * 3, "dampening=0"]
        assert all(word in text for word, text in zip(words, said, strict=True)), said
