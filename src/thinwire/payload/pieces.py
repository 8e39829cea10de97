"""Which piece of a layout owns a position."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.layout import Layout


def piece_of(positions: Tensor, layout: Layout) -> Tensor:
    """For each position, the place of the piece that owns it."""
    return torch.searchsorted(_ends(layout, positions.device), positions, right=True)


@lru_cache(maxsize=256)
def _ends(layout: Layout, device: torch.device) -> Tensor:
    return torch.tensor([p.offset + p.numel for p in layout.pieces], dtype=torch.int64, device=device)
