"""Which piece of a layout owns a position, and how many each owns."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.layout import Layout


def piece_of(positions: Tensor, layout: Layout) -> Tensor:
    """For each position, the place of the piece that owns it."""
    return torch.searchsorted(_ends(layout, positions.device), positions, right=True)


def counts_of(positions: Tensor, layout: Layout) -> Tensor:
    """How many of the ascending positions each piece owns; a GPU is not waited for."""
    below = torch.searchsorted(positions, _ends(layout, positions.device))
    return torch.diff(below, prepend=below.new_zeros(1))


@lru_cache(maxsize=256)
def lengths(layout: Layout, device: torch.device) -> Tensor:
    """The length of each piece; kept: copying to a GPU makes the host wait."""
    return torch.tensor([p.numel for p in layout.pieces], dtype=torch.int64, device=device)


@lru_cache(maxsize=256)
def _ends(layout: Layout, device: torch.device) -> Tensor:
    return torch.tensor([p.offset + p.numel for p in layout.pieces], dtype=torch.int64, device=device)
