"""`nonfinite="late"`: a refused step is skipped by a fused optimizer, and raised when the next forward pass begins."""

from __future__ import annotations

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
            if step != left_out:
                self.optimizer.zero_grad()
                self._loss(rank, step, poison).backward()
                self.optimizer.step()

    def _loss(self, rank: int, step: int, poison: bool) -> torch.Tensor:
        try:
            return poisoned_loss(self.ddp, rank, step, poison)
        except NonFiniteGradient as error:
            self.caught.append(f"{error.rank} {error.parameter} {error.step}")
            return poisoned_loss(self.ddp, rank, step, poison)

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
        counts = late.handle.ledger.skipped, late.handle.channel.step
        answers.append((late.caught, as_without, equal(without.parameters, plain.parameters), same_states, counts))
    return answers


def test_a_refused_step_is_skipped_on_all_ranks_and_raised_by_the_next_forward(tmp_path: Path) -> None:
    """All is as in a run that leaves the step out, and that run is as one that waits at every step."""
    expected = [(["1 2.bias 4"], True, True, True, (1, 9))] * len(RULES)
    assert run_world(2, skipping, folder=tmp_path) == [expected] * 2


def settling(rank: int, size: int) -> list[Any]:
    """Whatever asks for the state of things hears first how the last step went."""
    run = Run("memsgd(topk(0.3))", "late")
    run.train(rank, range(3))
    answers: list[Any] = [run.handle.channel.step, run.handle.state_dict()["step"]]
    run.train(rank, range(BAD_STEP, BAD_STEP + 1), poison=True)
    for ask in (run.handle.state_dict, run.handle.flush):
        try:
            ask()
            answers.append("answered")
        except NonFiniteGradient as error:
            answers.append(str(error.parameter))
    run.train(rank, range(5, 6))
    state = run.handle.detach()
    return [*answers, state["step"], hasattr(run.optimizer, "found_inf")]


def test_a_state_is_that_of_the_last_step(tmp_path: Path) -> None:
    expected = [2, 3, "2.bias", "answered", 4, False]
    assert run_world(2, settling, folder=tmp_path) == [expected] * 2


def refusing(rank: int, size: int) -> list[str]:
    ddp = DistributedDataParallel(network())
    fused = torch.optim.SGD(ddp.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    attempts: list[dict[str, Any]] = [
        {"rule": "memsgd(topk(0.3))", "optimizer": torch.optim.SGD(ddp.parameters(), lr=0.1)},
        {"rule": "plain(identity())", "optimizer": None},
        {"rule": "memsgd(topk(0.3))", "optimizer": fused, "scaler": scaler},
        {"rule": "memsgd(topk(0.3))", "optimizer": fused, "exchange": "server"},
        {"rule": "auto", "optimizer": fused},
    ]
    said = []
    for attempt in attempts:
        with pytest.raises(AttachError) as caught:
            thinwire.attach(ddp, nonfinite="late", **attempt)
        said.append(str(caught.value))
    return said


def test_what_cannot_skip_a_step_is_refused(tmp_path: Path) -> None:
    for said in run_world(2, refusing, folder=tmp_path):
        words = ["fused=True", "fused=True", 'nonfinite="skip"', "exchange= out", "exchange= out"]
        assert all(word in text for word, text in zip(words, said, strict=True)), said
