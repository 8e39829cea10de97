"""A frozen, stateless map from a vector to a message, with a claim about how close the message comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from enum import Enum

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.named import Named
from thinwire.ops import Key, scale_pieces_
from thinwire.ops.blocks import of_filled, on_device
from thinwire.ops.live import LiveRatios
from thinwire.payload import Payload, Positioned


class Draws(Enum):
    """The random numbers behind a message."""

    NOTHING = "none: equal vectors give equal messages"
    APART = "each worker draws its own"
    ALIKE = "all workers draw the same"


class Compressor(Named, ABC):
    """C(x), taken within each piece of the layout, deterministic given the key.

    Every compressor claims a contraction: E|C(x) - x|^2 <= (1 - delta(numel)) |x|^2. An unbiased one also claims a
    variance: E C(x) = x and E|C(x) - x|^2 <= omega(numel) |x|^2; its delta is then 1 - omega, which may be negative
    (not a contraction: see `Contractive`).

    >>> from thinwire import QSGD, TopK
    >>> TopK(0.25).delta(100), QSGD(4).omega(16), QSGD(4).delta(16)
    (0.25, 1.0, 0.0)
    """

    @property
    def shows_largest(self) -> bool:
        """Optional: whether it looks, on a CPU, if the largest number of each piece is finite: its payloads then say
        `clears`."""
        return False

    @property
    def draws(self) -> Draws | None:
        """What it draws at random. None where its class does not say: no theorem that rests on it is then granted."""
        return None

    @abstractmethod
    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Compress x, which is laid out as `layout` says; x is left as it is."""

    def take_(self, error: Tensor, value: Tensor, ratios: Sequence[float] | None, layout: Layout, key: Key) -> Payload:
        """A memory's step: error <- ratio * error + value; c = C(error); error <- error - c."""
        payload = self(scaled_(error, ratios, layout).add_(value), layout, key)
        payload.add_to(error, alpha=-1.0)
        return payload

    def follow_(self, local: Tensor, target: Tensor, layout: Layout, key: Key) -> Payload:
        """A follower's step: c = C(target - local); local <- local + c."""
        payload = self.between(target, local, layout, key)
        payload.add_to(local)
        return followed(payload, local)

    def between(self, target: Tensor, local: Tensor, layout: Layout, key: Key) -> Payload:
        """C(target - local); both are left as they are."""
        return self(target - local, layout, key)

    def pattern(self, key: Key) -> Hashable | None:
        """Optional: in what the steps of two keys must be equal for the same operations to be done in both, on tensors
        of the same shapes, with other numbers: these may come from the vector, from `key.words` and from step sizes
        alone. Such steps may be recorded on a GPU, and repeated. None, if nothing is known."""
        return None

    @property
    def piecewise(self) -> bool:
        """Optional: whether each piece is compressed by itself, by `key.at(piece.index)`, into a format of this package
        other than the nested ones. One call may then serve many vectors that lie side by side, as pieces."""
        return False

    def looks_at(self, layout: Layout, key: Key) -> Tensor | None:
        """Optional: the ascending positions of all entries that it looks at, on the CPU, where the key alone says which
        (draw them by `key.once`, and they are not drawn again); None where it looks at every one."""
        return None

    @property
    def agrees(self) -> bool:
        """Optional: whether workers choose together what they send, by the sum of their sketches."""
        return False

    def sketch(self, x: Tensor, layout: Layout, key: Key) -> Sequence[Tensor]:
        """A few numbers of each piece of x, as many on every worker, by whose sum over all workers they choose."""
        raise TypeError(f"{self} makes no sketches")

    def by(self, agreed: Sequence[Tensor] | None) -> Compressor:
        """This compressor where all workers' sketches add up to these; None: where a worker chooses alone."""
        return self

    @abstractmethod
    def delta(self, numel: int) -> float:
        """The claimed contraction for a piece of `numel` numbers, at its least over all steps."""

    def omega(self, numel: int) -> float | None:
        """The claimed variance for a piece of `numel` numbers, or None for a biased compressor."""
        return None


def followed(payload: Payload, local: Tensor) -> Payload:
    """A payload that was added to a follower: it clears that as well if the numbers that moved are finite still, for a
    finite difference may be rounded beyond them."""
    if not payload.clears:
        return payload
    assert isinstance(payload, Positioned)
    return payload.unless(not bool(local[payload.positions].isfinite().all()))


def scaled_(error: Tensor, ratios: Sequence[float] | None, layout: Layout) -> Tensor:
    """Each piece times its ratio, in place."""
    if isinstance(ratios, LiveRatios):
        return scale_pieces_(error, of_filled(ratios.numbers, layout).to(error.dtype), layout)
    if ratios is not None and error.is_cuda:  # no launch for each piece
        filled = tuple(ratio for ratio, piece in zip(ratios, layout.pieces, strict=True) if piece.numel)
        return scale_pieces_(error, on_device(filled, torch.float64, error.device).to(error.dtype), layout)
    for ratio, (_, view) in zip(ratios or (), layout.views(error), strict=ratios is not None):
        if ratio != 1.0:
            view.mul_(ratio)
    return error


class Unbiased(Compressor):
    """A compressor with E C(x) = x."""

    @abstractmethod
    def omega(self, numel: int) -> float: ...

    def delta(self, numel: int) -> float:
        return 1.0 - self.omega(numel)


def check(holds: bool, problem: str) -> None:
    """Raise a `ConfigError` unless the bound holds."""
    if not holds:
        raise ConfigError(problem)
