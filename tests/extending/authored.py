"""An author's own file: a compressor, a rule and a message format, through thinwire's public names alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.authoring import (
    Chunk,
    Compressor,
    ConfigError,
    Draws,
    Feedback,
    Key,
    Layout,
    Payload,
    Reader,
    Round,
    Signal,
    Slot,
    Sparse,
    State,
    check_compressor,
    check_contraction,
    mean_into,
    raw,
    register,
    value_format,
)


@register
@dataclass(frozen=True)
class BlockTop(Compressor):
    """The largest number of every block of b, within each parameter: |C(x) - x|^2 <= (1 - 1/b) |x|^2."""

    block: int = 8
    name: ClassVar[str] = "blocktop"
    draws: ClassVar[Draws] = Draws.NOTHING

    def __post_init__(self) -> None:
        if not (isinstance(self.block, int) and self.block >= 1):
            raise ConfigError(f"blocktop block must be a whole number of at least 1, got {self.block!r}")

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        chosen = [piece.part.start + self._largest(view) for piece, view in layout.views(x)]
        positions = torch.cat([torch.empty(0, dtype=torch.int64, device=x.device), *chosen])
        return Sparse.rounded(positions, x[positions], layout, value_format("full"))

    def _largest(self, part: Tensor) -> Tensor:
        """Where the largest magnitude of each block of a flat part stands."""
        blocks = torch.split(part.abs(), self.block) if part.numel() else ()
        places = [block.argmax() + self.block * number for number, block in enumerate(blocks)]
        return torch.stack(places) if places else torch.empty(0, dtype=torch.int64, device=part.device)

    def delta(self, numel: int) -> float:
        return 1.0 / max(1, min(numel, self.block))


@register
@dataclass(frozen=True)
class Corrected(Feedback):
    """Momentum correction with factor masking (Lin et al. 2018, "Deep Gradient Compression").

        u <- m u + g;   v <- v + u;   c = C(v);   v <- v - c;   u <- 0 where c was sent;   out = (1/n) sum_i c_i

    Run the optimizer without momentum of its own.
    """

    compressor: Compressor
    momentum: float = 0.9
    name: ClassVar[str] = "corrected"
    slots: ClassVar[tuple[Slot, ...]] = (Slot("velocity"), Slot("error"))
    owes: ClassVar[tuple[str, ...]] = ("error", "velocity")

    def __post_init__(self) -> None:
        check_compressor(self)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"corrected momentum must lie in [0, 1), got {self.momentum}")

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        velocity, error = state["velocity"], state["error"]
        error.add_(velocity.mul_(self.momentum).add_(signal.value))
        payload = self.compressor(error, layout, key)
        sent = payload.decode(layout, error.dtype, error.device)
        error.sub_(sent)
        velocity.masked_fill_(sent != 0, 0.0)
        return payload

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        return mean_into(out, round.payloads)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["error"]

    def admit(self, name: str, numel: int) -> None:
        check_contraction(self, self.compressor, name, numel)


@register
@dataclass(frozen=True, eq=False)
class Halves(Payload):
    """The whole vector in bfloat16, as `Halved` makes it."""

    values: Tensor
    tag: ClassVar[int] = 200

    @property
    def fixed(self) -> bool:
        return True

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return out.add_(self.values.to(out.dtype), alpha=alpha)

    def pack(self) -> list[Chunk]:
        return [raw(self.values)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        return cls(reader.numbers(layout.numel, torch.bfloat16))


@register
@dataclass(frozen=True)
class Halved(Compressor):
    """Every number in bfloat16, whose rounding loses 2^-9 of each number at most."""

    name: ClassVar[str] = "halved"
    draws: ClassVar[Draws] = Draws.NOTHING

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Halves:
        return Halves(x.to(torch.bfloat16))

    def delta(self, numel: int) -> float:
        return 1.0 - 2.0**-16
