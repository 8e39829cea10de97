"""Simulated workers on a convex problem: what is lost where a server compresses a second time, at any number of them.

    f(x) = 1/2 mean_j h_j (x_j - a_j)^2,    gradient of worker i:   h (x - a) + noise_i,    h from 1 to 1/100

Every worker sends by the rule's own half; what is received is the rule's, or a sharded server's, called once for all
owners: its compressor treats every share by itself, so that nothing depends on who calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.errors import ConfigError
from thinwire.exchange import owners_among
from thinwire.feedback import Feedback, Need, Round, Signal
from thinwire.feedback.second_hop import Question
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload, Payloads
from thinwire.scale.estimate import EVERYONE, RING, SERVER, ScaleSetting
from thinwire.spec import parse

NOISE = 1.0
"""Its standard deviation, that of a."""


@dataclass(frozen=True)
class Course:
    """One training."""

    exchange: str
    workers: int
    gap: tuple[float, ...]
    """f(x) - f* at the beginning and after each tenth of the steps."""
    mass_error: float | None
    """What was sent and is kept less what was given, over what was given: norms."""
    entries: float
    """Numbers that left a worker a step."""

    def plain(self) -> dict[str, Any]:
        """As a record has it."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Course:
        return Course(**{**plain, "gap": tuple(plain["gap"])})


def courses(setting: ScaleSetting, workers: int) -> list[Course]:
    """Trained dense, by a gather, and by a sharded server where the rule has a second hop."""
    rule = parse(setting.rule)
    if (
        not isinstance(rule, Feedback)
        or rule.needs - {Need.STEP_SIZE}
        or any(s.copies or s.single or s.factored for s in rule.slots)
    ):
        raise ConfigError(f"the convex problem is trained by one rule that needs gradients alone, not by {rule}")
    found = [_dense(setting, workers), _Workers(setting, rule, workers, served=False).train()]
    return [*found, *([] if rule.second_hop is None else [_Workers(setting, rule, workers, served=True).train()])]


def _gap(curvature: Tensor, distance: Tensor) -> float:
    return 0.5 * float((curvature * distance.square()).mean())


def _problem(numbers: int) -> tuple[Tensor, Tensor]:
    """h, and the distance from the optimum at the start."""
    return torch.logspace(0, -2, numbers), torch.randn(numbers, generator=torch.Generator().manual_seed(1))


def _dense(setting: ScaleSetting, workers: int) -> Course:
    (h, distance), noise = _problem(setting.numbers), torch.Generator().manual_seed(2)
    gaps = [_gap(h, distance)]
    for step in range(setting.steps):
        mean = torch.randn(setting.numbers, generator=noise) * (NOISE / workers**0.5)
        distance -= setting.step_size * (h * distance + mean)
        if _is_looked_at(step, setting.steps):
            gaps.append(_gap(h, distance))
    return Course(RING, workers, tuple(gaps), None, 2 * (workers - 1) / workers * setting.numbers)


def _is_looked_at(step: int, steps: int) -> bool:
    return (step + 1) * 10 // steps > step * 10 // steps


class _Workers:
    """All workers of one training, their memories, and what is conserved."""

    def __init__(self, setting: ScaleSetting, rule: Feedback, workers: int, *, served: bool) -> None:
        self._setting, self._rule, self._workers = setting, rule, workers
        self._owners = owners_among(workers, setting.least) if served else None
        self._layout = Layout.of([("x", 0, (setting.numbers,))])
        channel = Channel(rule, {"x": torch.zeros(setting.numbers)}, rank=0, size=workers, owners=self._owners)
        self._sender = channel.rules["x"]
        self._memories = [
            {slot.name: torch.zeros(setting.numbers) for slot in rule.slots if slot.per_worker} for _ in range(workers)
        ]
        self._common = {slot.name: torch.zeros(setting.numbers) for slot in rule.slots if not slot.per_worker}
        hop = rule.second_hop
        self._kept = {slot.name: torch.zeros(setting.numbers) for slot in (() if hop is None else hop.slots)}
        self._given = torch.zeros(setting.numbers, dtype=torch.float64)
        self._sent = torch.zeros(setting.numbers, dtype=torch.float64)
        self._entries = 0.0

    def train(self) -> Course:
        """All steps."""
        h, distance = _problem(self._setting.numbers)
        gaps, steps = [_gap(h, distance)], self._setting.steps
        for step in range(steps):
            distance -= self._setting.step_size * self._step(h * distance, step)
            if _is_looked_at(step, steps):
                gaps.append(_gap(h, distance))
        name = EVERYONE if self._owners is None else SERVER
        return Course(name, self._workers, tuple(gaps), self._mass_error(), self._entries / steps)

    def _step(self, mean: Tensor, step: int) -> Tensor:
        payloads = []
        for rank, state in enumerate(self._memories):
            noise = torch.randn(mean.numel(), generator=torch.Generator().manual_seed(10_000 * step + rank))
            gradient = noise.mul_(NOISE).add_(mean)
            self._given.add_(gradient, alpha=1 / self._workers)
            signal = Signal(gradient, None, step == 0, workers=self._workers)
            payloads.append(self._sender.send(signal, self._layout, state, Key(0, step, rank)))
        out = self._received(payloads, Key(0, step).shared(), step == 0)
        self._sent += out
        return out

    def _received(self, payloads: list[Payload], key: Key, first: bool) -> Tensor:
        out, told = torch.zeros(self._setting.numbers), sum(float(payload.elements or 0) for payload in payloads)
        hop, workers, round = self._rule.second_hop, self._workers, Round(payloads, key, first)
        if self._owners is None or hop is None:
            self._entries += (workers - 1) * told / workers
            return self._rule.receive(round, self._layout, self._common, out)
        whole = self._owners.cut(self._layout).whole
        answer = hop.answer(Question(round, whole, None, torch.zeros_like(out)), self._kept)
        self._entries += (workers - 1) / workers * (told / workers + float(answer.elements or 0))
        return hop.hear(_Whole([answer]), self._common, out)

    def _mass_error(self) -> float | None:
        """Of a rule that keeps what it does not send."""
        if not self._rule.owes:
            return None
        name = self._rule.owes[0]
        held = torch.stack([state[name].double() for state in self._memories]).mean(0)
        hop = self._rule.second_hop
        if self._owners is not None and hop is not None and hop.owes is not None:
            held += self._kept[hop.owes]
        return float((self._sent + held - self._given).norm() / self._given.norm())


class _Whole(Payloads):
    """One answer about all numbers."""

    def __init__(self, answers: list[Payload]) -> None:
        self._answers = answers

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> Any:
        return self._answers[place]

    def add_to(self, out: Tensor, alpha: Any = 1.0) -> Tensor:
        """out += the answer."""
        return self._answers[0].add_to(out, alpha)
