"""The settings of outer steps: how often, in how many fragments, how late, and what is done with the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from thinwire.checks import is_number, is_whole
from thinwire.compressors import ChunkTopK
from thinwire.errors import ConfigError
from thinwire.feedback import MemSGD, Rule
from thinwire.named import Named, show
from thinwire.spec import rule_from


@dataclass(frozen=True)
class Outer(Named):
    """Many steps of each worker's own optimizer between two exchanges (DiLoCo, Douillard et al. 2023).

        Δ_i = θ_start - θ_i                         after `every` steps
        d   = what the rule makes of Δ_1 ... Δ_n    for Mem-SGD the mean over workers of C(e_i + Δ_i)
        v   <- μ v + d;   θ <- θ - lr (d + μ v)     μ = `momentum` (Nesterov's); without it θ <- θ - lr d

    `lr` multiplies once, here: Δ is in units of parameters, whatever the inner optimizer and its rate. Rules that need
    a step size are told `lr`.

    With `fragments` the parameters are cut into so many parts of about equal size, each exchanged every `every` steps
    at an offset of its own, and with `delay` the result of step t is applied at step t + delay, while the exchange goes
    on (Streaming DiLoCo, Douillard et al. 2025), as θ_i <- alpha θ_i + (1 - alpha) θ. Each of a worker's own steps
    enters its Δ once, also those taken during the delay: the paper subtracts from θ, which counts alpha of them, and
    with a memory alpha of all that was not sent once more.

    >>> str(Outer("memsgd(topk(0.01))", every=30, delay=2))
    'outer(memsgd(topk(0.01)), every=30, delay=2)'
    """

    rule: Rule
    every: int
    lr: float = 1.0
    momentum: float = 0.0
    fragments: int = 1
    delay: int = 0
    alpha: float = 0.0
    name: ClassVar[str] = "outer"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", rule_from(self.rule))
        _check("every", is_whole(self.every) and self.every >= 1, "a whole number of steps, at least 1", self.every)
        _check("lr", is_number(self.lr) and 0 < self.lr < math.inf, "a finite number above 0, such as 1.0", self.lr)
        _check("momentum", is_number(self.momentum) and 0 <= self.momentum < 1, "in [0, 1), often 0.9", self.momentum)
        _check("fragments", is_whole(self.fragments) and self.fragments >= 1, "at least 1", self.fragments)
        in_time = is_whole(self.delay) and 0 <= self.delay < self.every
        _check("delay", in_time, f"a whole number from 0 to {self.every - 1}: less than every={self.every}", self.delay)
        _check("alpha", is_number(self.alpha) and 0 <= self.alpha < 1, "in [0, 1): at 1 no worker follows", self.alpha)

    def sent_at(self, step: int) -> list[int]:
        """The fragments whose exchange begins after this step (steps count from 1)."""
        return [
            f for f in range(self.fragments) if step > 0 and (step - f * self.every // self.fragments) % self.every == 0
        ]

    def landing_at(self, step: int) -> list[int]:
        """The fragments whose exchange is applied after this step."""
        return self.sent_at(step - self.delay)

    @property
    def keeps_starts(self) -> bool:
        """Whether workers' windows begin elsewhere than at the outer point."""
        return self.delay > 0 or self.alpha > 0

    def describe(self) -> dict[str, str]:
        """The settings as texts, by name."""
        return {field.name: show(getattr(self, field.name)) for field in fields(self)}


def sparse_loco(every: int = 30, lr: float = 1.0, decay: float = 0.95) -> Outer:
    """SparseLoCo (Sarfi et al. 2025): 64 of every 4,096 numbers in 2 bits, a memory that fades, no momentum.

        e_i <- decay e_i + Δ_i;   m_i = Q(top-k of each chunk of e_i);   e_i <- e_i - m_i;   θ <- θ - lr mean(m_i)

    >>> str(sparse_loco())
    'outer(memsgd(chunktopk(0.015625, values=bins2), decay=0.95), every=30)'
    """
    return Outer(MemSGD(ChunkTopK(64 / 4096, values="bins2"), decay=decay), every=every, lr=lr)


def _check(name: str, holds: bool, bound: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"outer steps: {name} must be {bound}, got {value}")


def outer_from(rule: Rule | str | Outer, **given: float | None) -> Outer:
    """Settings from a rule, or from settings such as `sparse_loco()`; what is given (not None) goes first."""
    changes = {name: value for name, value in given.items() if value is not None}
    if isinstance(rule, Outer):
        changes = {**{field.name: getattr(rule, field.name) for field in fields(rule)}, **changes}
    elif "every" not in changes:
        raise ConfigError("outer steps: say every how many steps workers exchange, for example every=30")
    else:
        changes["rule"] = rule  # type: ignore[assignment]
    return Outer(**changes)  # type: ignore[arg-type]
