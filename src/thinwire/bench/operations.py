"""The operations that `thinwire bench kernels` knows, and on which vectors each is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from thinwire.bench import messages, quantisers, selections, variances
from thinwire.bench.contest import Contest
from thinwire.bench.inputs import ADVERSARIAL, ORDINARY, Inputs


@dataclass(frozen=True)
class Case:
    """Numbers of a distribution in one piece or many; the density is None where every number is sent."""

    distribution: str
    density: float | None
    many: bool = False


@dataclass(frozen=True)
class Operation:
    """How a contest is made from its inputs, and what it is measured on besides normal numbers in one piece."""

    contest: Callable[[Inputs], Contest]
    dense: bool = False
    """Whether every number is sent: there is no density then."""
    ordinary: Sequence[str] = ("normal",)
    adversarial: bool = False
    many: bool = False

    def cases(self, densities: Sequence[float]) -> Iterator[Case]:
        """All distributions and densities; then, at the first density, adversarial numbers, and many pieces."""
        for distribution in self.ordinary:
            for density in [None] if self.dense else densities:
                yield Case(distribution, density)
        for distribution in ADVERSARIAL if self.adversarial else ():
            yield Case(distribution, densities[0])
        if self.many:
            yield Case("normal", densities[0], many=True)


UNPACKING = f"unpack + add of {messages.MESSAGES}"
OPERATIONS = {
    "topk": Operation(selections.topk),
    "memory": Operation(selections.memory, ordinary=tuple(ORDINARY), adversarial=True, many=True),
    "difference": Operation(selections.difference, ordinary=tuple(ORDINARY), many=True),
    "threshold": Operation(selections.threshold),
    "strom": Operation(selections.strom),
    "vgc": Operation(variances.vgc, many=True),
    "hybrid": Operation(variances.hybrid),
    "randk": Operation(selections.randk),
    "sign": Operation(quantisers.sign, dense=True),
    "sign decode": Operation(quantisers.sign_decode, dense=True),
    "qsgd": Operation(quantisers.qsgd, dense=True),
    "qsgd decode": Operation(quantisers.qsgd_decode, dense=True),
    "natural": Operation(quantisers.natural, dense=True),
    "natural decode": Operation(quantisers.natural_decode, dense=True),
    "memory + packing": Operation(messages.memory_and_packing, many=True),
    UNPACKING: Operation(messages.unpacking_and_adding),
}
