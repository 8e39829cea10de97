"""A rule's state, kept for each parameter by name and packed for whatever layout asks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.feedback import Slot
from thinwire.layout import Layout


@dataclass(frozen=True)
class ParameterInfo:
    """What the state of a parameter depends on: its place in the model, shape, type and device."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(index: int, parameter: Tensor) -> ParameterInfo:
        return ParameterInfo(index, tuple(parameter.shape), parameter.dtype, parameter.device)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def state_dtype(self) -> torch.dtype:
        """float64 stays; everything narrower keeps its state in float32, which 16 bits would slowly lose."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


class Store:
    """Named vectors for each parameter, which exist from construction with the same keys on every rank.

    `bind(layout)` gives each slot as one flat tensor in that layout's order. A new layout (DDP cuts its buckets anew
    after the first step) is filled from the old one, parameter by parameter.
    """

    def __init__(
        self, slots: Mapping[str, Sequence[Slot]], parameters: Mapping[str, ParameterInfo], workers: int
    ) -> None:
        self.workers = workers
        self.parameters = parameters
        self._slots = slots
        self._views: dict[str, dict[str, Tensor]] = {
            name: {slot.name: self._start(slot, info) for slot in slots[name]} for name, info in parameters.items()
        }
        self._bound: dict[Layout, dict[str, Tensor]] = {}
        self._shadows: dict[Layout, dict[str, Tensor]] = {}

    def _start(self, slot: Slot, info: ParameterInfo) -> Tensor:
        numel = 1 if slot.single else info.numel
        shape = (self.workers, numel) if slot.copies else (numel,)
        return torch.full(shape, slot.initial, dtype=info.state_dtype, device=info.device)

    def slots_of(self, name: str) -> Sequence[Slot]:
        return self._slots[name]

    def view(self, name: str, slot: str) -> Tensor:
        """One parameter's slot, flat (one row a worker for a slot of copies); writing to it changes the state."""
        return self._views[name][slot]

    def bind(self, layout: Layout) -> dict[str, Tensor]:
        """Each slot of these parameters as one flat tensor, parameter after parameter."""
        if layout not in self._bound:
            self._repack(layout)
        return self._bound[layout]

    def _repack(self, layout: Layout) -> None:
        names = {piece.name for piece in layout.pieces}
        for old in [old for old in self._bound if names & {piece.name for piece in old.pieces}]:
            del self._bound[old]
            self._shadows.pop(old, None)
        flats: dict[str, Tensor] = {}
        for slot in self._slots[layout.pieces[0].name] if layout.pieces else ():
            flats[slot.name] = torch.cat([self._views[p.name][slot.name] for p in layout.pieces], dim=-1)
            views = torch.split(flats[slot.name], [1 if slot.single else p.numel for p in layout.pieces], dim=-1)
            for piece, view in zip(layout.pieces, views, strict=True):
                self._views[piece.name][slot.name] = view
        self._bound[layout] = flats

    def remember(self, layout: Layout) -> None:
        """Note the present state of a layout, so that `restore` can go back to it."""
        for slot, flat in self.bind(layout).items():
            shadow = self._shadows.setdefault(layout, {})
            if slot not in shadow:
                shadow[slot] = torch.empty_like(flat)
            shadow[slot].copy_(flat)

    def restore(self, layout: Layout) -> None:
        """Go back to what `remember` noted."""
        for slot, shadow in self._shadows.get(layout, {}).items():
            self._bound[layout][slot].copy_(shadow)
