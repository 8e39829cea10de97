"""Error feedback for compressors with bias and variance: EF21 and DIANA are its two ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_number
from thinwire.compressors import Compressor
from thinwire.errors import AttachError, ConfigError
from thinwire.feedback.base import Round, Signal, State, check_contraction
from thinwire.feedback.increments import Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload, add_all_to


@dataclass(frozen=True)
class EFBV(Increments):
    """EF-BV (Condat, Yi and Richtarik 2022, algorithm 1).

        d_i = C(grad_i - h_i);   out = h + nu (1/n) sum_i d_i
        h_i <- h_i + lambda d_i;   h <- h + lambda (1/n) sum_i d_i

    lambda = nu = 1 is EF21; an unbiased C with nu = 1 and lambda = 1 / (1 + omega) is DIANA. For an unbiased C the
    theory takes lambda = 1 / (1 + omega) and nu = 1 / (1 + omega / n). h_i is the `local` slot, h the `mean`; the start
    with whole gradients has h_i = grad_i.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> rule = EFBV(TopK(count=1), lam=0.5, nu=1.0, start="compressed")
    >>> simulation = Simulation({"x": torch.zeros(3)}, rule, workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 0.0, 0.75], [2.0, 1.0, 1.5]]
    """

    compressor: Compressor
    lam: float = 1.0
    nu: float = 1.0
    start: str = "gradient"
    name: ClassVar[str] = "efbv"
    piecewise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        for name, weight in (("lam", self.lam), ("nu", self.nu)):
            if not (is_number(weight) and 0 < weight <= 1):
                raise ConfigError(f"{self.name} {name} must lie in (0, 1], got {weight}")

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    def follow_(self, target: Tensor, layout: Layout, state: State, key: Key) -> Payload:
        """d = C(target - h_i);   h_i <- h_i + lambda d."""
        payload = self.compressor.between(target, state["local"], layout, key)
        payload.add_to(state["local"], alpha=self.lam)
        return payload

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        return None if first else self.compressor.looks_at(layout, key)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        if round.first and self.start == "gradient":
            return out.copy_(self.add_(round, state["mean"]))
        add_all_to(out.copy_(state["mean"]), round.payloads, alpha=self.nu / len(round.payloads))
        add_all_to(state["mean"], round.payloads, alpha=self.lam / len(round.payloads))
        return out

    def admit(self, name: str, numel: int) -> None:
        """An unbiased compressor may have any variance if (1 - lambda)^2 + lambda^2 omega < 1."""
        omega = self.compressor.omega(numel)
        if omega is None:
            check_contraction(self, self.compressor, name, numel)
        elif self.lam * (1 + omega) >= 2:
            raise AttachError(
                f"{self}: {self.compressor} on parameter {name!r} ({numel} numbers) has variance {omega:.3g}, so h "
                f"would not converge with lam = {self.lam}: take lam = 1 / (1 + omega) = {1 / (1 + omega):.3g}"
            )
