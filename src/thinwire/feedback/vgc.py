"""Variance-based compression: what is unambiguous is sent, in four bits; the rest is added up until it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thinwire.errors import AttachError, ConfigError
from thinwire.feedback.base import Signal, State
from thinwire.feedback.variance_criterion import Criterion, Target, check_criterion
from thinwire.layout import Layout
from thinwire.ops import Key, variance_
from thinwire.payload import Payload, Sparse, SparseWords
from thinwire.payload.sparse import WORD_LIMIT
from thinwire.payload.values import DRAWN, FORMATS, value_format
from thinwire.warmup import Number

KNOWN = {name: each for name, each in (FORMATS | DRAWN).items() if name != "power4"}
"""How the values may be written. (What power4 cannot write it sends as zero, which would be lost here.)"""


@dataclass(frozen=True)
class VGC(Criterion):
    """VGC (Tsuzuku, Imachi and Akiba 2018, algorithm 1).

        r <- r + g;   v <- v + q;   S = {i : r_i^2 > alpha v_i};   c = Encode(r_S);   out = (1/n) sum_w c_w
        r_S <- 0;   v_S <- 0;   v <- zeta v elsewhere

    g is a worker's gradient, q = sum_z (grad f_z / |B|)^2: the engine must supply it (see `thinwire.moments`). Encode
    is a sign and a power of two in 4 bits, relative to the largest of a parameter's numbers in S; what it rounds is
    not fed back.

    A number of S that is more than 2^7 times smaller than that largest one cannot be written. It stays, as if it were
    not in S; `drop_small=True` is the paper's text to the letter, which loses it. `values` are those of `TopK`, or
    those of the paper's other partner, QSGD: qsgd4 and qsgd2 draw one of 8 or 2 equidistant levels up to that largest
    number, so that E c = r_S; what draws level 0 counts as sent and takes no bytes. `positions="word"` packs 28 bits
    of position and 4 of value into words, as the paper counts them, in place of the shorter code. `alpha` may be a
    `Warmup`, or a `Target` that holds a ratio.

    >>> import torch
    >>> from thinwire import Simulation
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> moments = [{"x": torch.tensor([1.0, 4.0, 9.0])}] * 2
    >>> simulation = Simulation({"x": torch.zeros(3)}, VGC(alpha=1.0), workers=2)
    >>> [simulation.exchange(gradients, moments=moments)["x"].tolist() for _ in range(3)]
    [[3.0, 0.0, 0.0], [3.0, 2.0, 2.0], [3.0, 0.0, 0.0]]
    """

    alpha: Number | Target = 1.5
    zeta: float = 0.999
    values: str = "exponent4"
    positions: str = "entropy"
    drop_small: bool = False
    decay: float = 1.0
    name: ClassVar[str] = "vgc"

    def __post_init__(self) -> None:
        check_criterion(self)
        value_format(self.values, KNOWN)
        if self.positions not in ("entropy", "word"):
            raise ConfigError(f"vgc positions must be entropy or word, got {self.positions!r}")
        if self.positions == "word" and self.values != "exponent4":
            raise ConfigError(
                f"vgc positions=word leaves 4 bits for a value: values must be exponent4, got {self.values}"
            )
        if not isinstance(self.drop_small, bool):
            raise ConfigError(f"vgc drop_small must be True or False, got {self.drop_small!r}")

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        r, v = state["total"], state["squares"]
        assert signal.moment is not None  # engines see to what a rule needs
        self.fade_(state)
        alphas = self.alphas(layout, state, key.step)
        chosen, values, squares = variance_(r, v, signal.value, signal.moment, layout, alphas, self.zeta)
        written = value_format(self.values, KNOWN)
        sent = Sparse.rounded(chosen, values, layout, written, counted=False, key=key)
        if sent.elements < len(chosen) and not (self.drop_small or written.unbiased):
            r[chosen], v[chosen] = values, self.zeta * squares
            r[sent.positions], v[sent.positions] = 0, 0
        self.steer_(sent.positions, layout, state)
        return SparseWords.of(sent) if self.positions == "word" else sent

    def admit(self, name: str, numel: int) -> None:
        """With words, refuse a parameter that they cannot reach all of."""
        if self.positions == "word" and numel >= WORD_LIMIT:
            raise AttachError(
                f"{self}: parameter {name!r} has {numel} numbers, and words of 28 + 4 bits reach {WORD_LIMIT}: use "
                "positions=entropy"
            )
