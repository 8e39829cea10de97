"""One bit a number and one scale a block."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_whole
from thinwire.compressors.base import Compressor, Draws, check
from thinwire.layout import Layout
from thinwire.ops import Key, block_lengths, block_norms, negative_bits
from thinwire.ops.blocks import WHOLE
from thinwire.payload import Signs


@dataclass(frozen=True)
class ScaledSign(Compressor):
    """C(x) = (|x|_1 / b) sign(x) within each block of b entries, sign(0) = +1 (Karimireddy et al. 2019).

        |C(x) - x|^2 = (1 - |x|_1^2 / (b |x|_2^2)) |x|^2 <= (1 - 1/b) |x|^2

    Without `block` a whole parameter is one block.

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> ScaledSign()(x, layout, Key()).decode(layout, x.dtype).tolist()
    [2.125, -2.125, 2.125, -2.125]
    """

    block: int | None = None
    name: ClassVar[str] = "sign"
    draws: ClassVar[Draws] = Draws.NOTHING
    piecewise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(
            self.block is None or (is_whole(self.block) and 1 <= self.block <= WHOLE),
            f"sign block must be a whole number from 1 to {WHOLE}, got {self.block!r}",
        )

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Signs:
        block = self.block or WHOLE
        norms, negative = block_norms(x, layout, block, order=1), negative_bits(x)
        return Signs(negative, norms / block_lengths(layout, block, x.device), layout, block)

    def pattern(self, key: Key) -> Hashable:
        return ()

    def delta(self, numel: int) -> float:
        return 1.0 / max(1, min(numel, self.block or numel))
