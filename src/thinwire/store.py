"""A rule's state, kept for each parameter by name and packed for whatever layout asks for it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.feedback import Slot
from thinwire.layout import Layout, Piece


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
    after the first step) is filled from the old one, parameter by parameter. Until a slot is first bound or written it
    is one number, expanded: it takes no memory.
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
        self._moving: dict[Layout, int] = {}
        self._layout_of: dict[str, Layout] = {}

    def _start(self, slot: Slot, info: ParameterInfo) -> Tensor:
        numel = slot.length(info.shape)
        shape = (self.workers, numel) if slot.copies else (numel,)
        return torch.full((), slot.initial, dtype=info.state_dtype, device=info.device).expand(shape)

    def __getstate__(self) -> dict[str, Any]:
        """A copy packs anew: pickle does not keep two views of one storage together."""
        views = {name: {slot: view.clone() for slot, view in own.items()} for name, own in self._views.items()}
        packed: dict[str, Any] = {"_bound": {}, "_shadows": {}, "_moving": {}, "_layout_of": {}}
        return {**self.__dict__, "_views": views, **packed}

    def slots_of(self, name: str) -> Sequence[Slot]:
        return self._slots[name]

    def view(self, name: str, slot: str) -> Tensor:
        """One parameter's slot, flat (one row a worker for a slot of copies); writing to it changes the state."""
        view = self._views[name][slot]
        if 0 in view.stride():
            view = self._views[name][slot] = view.clone(memory_format=torch.contiguous_format)
        return view

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
            self._moving.pop(old, None)
        flats: dict[str, Tensor] = {}
        for slot in self._slots[layout.pieces[0].name] if layout.pieces else ():
            flats[slot.name] = torch.cat([self._views[p.name][slot.name] for p in layout.pieces], dim=-1)
            views = torch.split(flats[slot.name], [slot.length(p.shape) for p in layout.pieces], dim=-1)
            for piece, view in zip(layout.pieces, views, strict=True):
                self._views[piece.name][slot.name] = view
        self._layout_of.update(dict.fromkeys(names, layout))
        self._bound[layout] = flats  # last: whoever is interrupted before it packs anew

    def remember(self, layout: Layout) -> None:
        """Note the present state of a layout, so that `restore` can go back to it."""
        for slot, flat in self.bind(layout).items():
            shadow = self._shadows.setdefault(layout, {})
            if slot not in shadow:
                shadow[slot] = torch.empty_like(flat)
            shadow[slot].copy_(flat)

    def move(self, layout: Layout, turn: int) -> None:
        """Say that the state of a layout is about to change in this turn; `remember` has noted it."""
        self._moving[layout] = turn

    def restore(self, layout: Layout, turn: int) -> None:
        """Go back to what `remember` noted, if the layout moved in this turn."""
        for slot, shadow in self._shadows.get(layout, {}).items() if self._moving.get(layout) == turn else ():
            self._bound[layout][slot].copy_(shadow)

    def vectors(self, layout: Layout) -> list[Tensor]:
        """Every vector that a layout's slots hold, as long as the layout; shorter slots are left out."""
        slots = self._slots[layout.pieces[0].name] if layout.pieces else ()
        flats = [(slot, self.bind(layout)[slot.name]) for slot in slots if not (slot.single or slot.factored)]
        return [row for slot, flat in flats for row in (flat.unbind() if slot.copies else (flat,))]

    def clear_pieces(self, layout: Layout, names: Collection[str]) -> None:
        """Set some parameters' slots to zero."""
        for slot, flat in self.bind(layout).items():
            for piece, place in self._places(layout, slot):
                if piece.name in names:
                    flat[..., place] = 0

    def restore_pieces(self, layout: Layout, names: Collection[str]) -> None:
        """Go back to what `remember` noted, for some parameters alone."""
        for slot, shadow in self._shadows.get(layout, {}).items():
            for piece, place in self._places(layout, slot):
                if piece.name in names:
                    self._bound[layout][slot][..., place] = shadow[..., place]

    def settled(self, name: str, slot: str, turn: int) -> Tensor:
        """One parameter's slot as it was before this turn: what `remember` noted, where it is being changed."""
        layout = self._layout_of.get(name)
        if layout is None or self._moving.get(layout) != turn:
            return self._views[name][slot]
        return next(
            self._shadows[layout][slot][..., place] for piece, place in self._places(layout, slot) if piece.name == name
        )

    def _places(self, layout: Layout, slot: str) -> Iterator[tuple[Piece, slice]]:
        """Each piece of a layout with its part of a slot's flat tensor."""
        own = next(each for each in self._slots[layout.pieces[0].name] if each.name == slot)
        begin = 0
        for piece in layout.pieces:
            end = begin + own.length(piece.shape)
            yield piece, slice(begin, end)
            begin = end
