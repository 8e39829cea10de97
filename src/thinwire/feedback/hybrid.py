"""Variance-based compression with Strom's threshold: what is unambiguous and large is sent, as one sign."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from thinwire.compressors.threshold import check_tau
from thinwire.feedback.base import Signal, State
from thinwire.feedback.variance_criterion import Criterion, Target, check_criterion
from thinwire.layout import Layout
from thinwire.ops import Key, variance_strom_
from thinwire.payload import Payload, Sparse
from thinwire.payload.values import SIGN_ONLY
from thinwire.warmup import Number, at


@dataclass(frozen=True)
class Hybrid(Criterion):
    """VGC with Strom's threshold (Tsuzuku, Imachi and Akiba 2018, algorithm 2).

        r <- r + g;   v <- v + q;   S = {i : |r_i| > tau and r_i^2 > alpha v_i};   out = (1/n) sum_w sign(r_S) tau
        v_S <- max(v_S - 2 |r_S| tau + tau^2, 0);   r_S <- r_S - sign(r_S) tau;   v <- zeta v elsewhere

    At most one tau a number and step: a large remainder takes several. v is corrected by the r before the subtraction,
    as if all of r came from one sample; where |r| <= (alpha + sqrt(alpha^2 - alpha)) tau that leaves nothing of it.
    Others write alpha first, so it is given by name: `Hybrid(0.01, alpha=2)` is `Hybrid(alpha=2, tau=0.01)`.

    >>> import torch
    >>> from thinwire import Simulation
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> moments = [{"x": torch.tensor([1.0, 4.0, 9.0])}] * 2
    >>> simulation = Simulation({"x": torch.zeros(3)}, Hybrid(2.0, alpha=1.0), workers=2)
    >>> [simulation.exchange(gradients, moments=moments)["x"].tolist() for _ in range(3)]
    [[1.0, 0.0, 0.0], [2.0, 1.0, 1.0], [2.0, 1.0, 1.0]]
    """

    tau: Number
    _: KW_ONLY
    alpha: Number | Target = 2.0
    zeta: float = 0.999
    decay: float = 1.0
    name: ClassVar[str] = "hybrid"

    def __post_init__(self) -> None:
        check_tau(self.name, self.tau)
        check_criterion(self)

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        r, v = state["total"], state["squares"]
        assert signal.moment is not None  # engines see to what a rule needs
        self.fade_(state)
        alphas, tau = self.alphas(layout, state, key.step), at(self.tau, key.step)
        chosen, values = variance_strom_(r, v, signal.value, signal.moment, layout, alphas, self.zeta, tau)
        self.steer_(chosen, layout, state)
        return Sparse(chosen, values, layout, SIGN_ONLY, counted=False)
