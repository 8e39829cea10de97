"""How many of some positions each piece of a layout owns."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.blocks import piece_ends


def counts_of(positions: Tensor, layout: Layout) -> Tensor:
    """How many of the ascending positions each piece owns; a GPU is not waited for."""
    below = torch.searchsorted(positions, piece_ends(layout, positions.device))
    return torch.diff(below, prepend=below.new_zeros(1))


@lru_cache(maxsize=256)
def lengths(layout: Layout, device: torch.device) -> Tensor:
    """The length of each piece; kept: copying to a GPU makes the host wait."""
    return torch.tensor([p.numel for p in layout.pieces], dtype=torch.int64, device=device)
