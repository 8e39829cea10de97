"""A rule's state, kept for each parameter by name and packed for whatever layout asks for it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from thinwire.feedback import Slot
from thinwire.layout import Layout, Piece
from thinwire.ops import Key, byte_codes, byte_values

BLOCK = 256
"""How many bytes of a slot in 8 bits share a scale: 1.016 bytes a number with float32 scales."""
_ROUNDING = 0x8B17
"""The first of the streams of random numbers by which slots in 8 bits are rounded."""


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


@dataclass(frozen=True)
class Kept:
    """One flat tensor that a slot is kept in: the slot's own, or of one in 8 bits its bytes or its scales."""

    name: str
    slot: Slot
    share: int = 1
    """How many of a parameter's numbers one of the tensor's stands for."""

    @property
    def is_bytes(self) -> bool:
        return self.slot.bits == 8 and self.share == 1

    def length(self, shape: Sequence[int]) -> int:
        """Of the part of a parameter of this shape."""
        return -(-self.slot.length(shape) // self.share)

    def start(self, info: ParameterInfo, workers: int) -> Tensor:
        """What it holds at first: one number, expanded."""
        length, dtype = self.length(info.shape), torch.int8 if self.is_bytes else info.state_dtype
        shape = (workers, length) if self.slot.copies else (length,)
        return torch.full((), self.slot.initial, dtype=dtype, device=info.device).expand(shape)


def _short(slot: Slot) -> bool:
    """Whether it is shorter than the parameters."""
    return slot.single or slot.factored


def _scales(slot: str) -> str:
    """Where the scales of a slot in 8 bits are kept."""
    return f"{slot}, scales"


def _kept_in(slots: Sequence[Slot]) -> list[Kept]:
    """The tensors that these slots are kept in."""
    scales = [Kept(_scales(slot.name), slot, BLOCK) for slot in slots if slot.bits == 8]
    return [*(Kept(slot.name, slot) for slot in slots), *scales]


class Store:
    """Named vectors for each parameter, which exist from construction with the same keys on every rank.

    `bind(layout)` gives each slot as one flat tensor in that layout's order. A new layout (DDP cuts its buckets anew
    after the first step) is filled from the old one, parameter by parameter. Until a slot is first bound or written it
    is one number, expanded: it takes no memory.

    A slot in 8 bits is kept as bytes and scales. What `bind` and `view` give of it are its numbers, made anew at each
    call: `put` and `write` change the state.
    """

    def __init__(
        self, slots: Mapping[str, Sequence[Slot]], parameters: Mapping[str, ParameterInfo], workers: int
    ) -> None:
        self.workers = workers
        self.parameters = parameters
        self._slots = slots
        self._kept = {name: _kept_in(own) for name, own in slots.items()}
        self._views: dict[str, dict[str, Tensor]] = {
            name: {kept.name: kept.start(info, workers) for kept in self._kept[name]}
            for name, info in parameters.items()
        }
        self._bound: dict[Layout, dict[str, Tensor]] = {}
        self._shadows: dict[Layout, dict[str, Tensor]] = {}
        self._moving: dict[Layout, int] = {}
        self._layout_of: dict[str, Layout] = {}
        self.packings = 0
        """How often slots were laid out anew: what was recorded before moves what lay there then."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy packs anew: pickle does not keep two views of one storage together."""
        views = {name: {slot: view.clone() for slot, view in own.items()} for name, own in self._views.items()}
        packed: dict[str, Any] = {"_bound": {}, "_shadows": {}, "_moving": {}, "_layout_of": {}}
        return {**self.__dict__, "_views": views, **packed}

    def slots_of(self, name: str) -> Sequence[Slot]:
        return self._slots[name]

    def view(self, name: str, slot: str) -> Tensor:
        """One parameter's slot, flat (one row a worker for a slot of copies); writing to it changes the state, unless
        it is one in 8 bits."""
        if _scales(slot) in self._views[name]:
            return byte_values(self._views[name][slot], self._views[name][_scales(slot)], self._alone(name), BLOCK)
        view = self._views[name][slot]
        if 0 in view.stride():
            view = self._views[name][slot] = view.clone(memory_format=torch.contiguous_format)
        return view

    def write(self, name: str, slot: str, value: Tensor) -> None:
        """Set one parameter's slot; in 8 bits to the nearest that can be kept, which of what was kept is the same."""
        view = self.view(name, slot)
        view.copy_(value.reshape(view.shape) if value.ndim else value)
        if _scales(slot) in self._views[name]:
            for kept, fresh in zip(
                (slot, _scales(slot)), byte_codes(view, self._alone(name), BLOCK, None), strict=True
            ):
                if 0 in self._views[name][kept].stride():
                    self._views[name][kept] = fresh
                else:
                    self._views[name][kept].copy_(fresh)

    def _alone(self, name: str) -> Layout:
        """One parameter's own layout."""
        return Layout.of([(name, self.parameters[name].index, self.parameters[name].shape)])

    def bind(self, layout: Layout) -> dict[str, Tensor]:
        """Each slot of these parameters as one flat tensor, parameter after parameter."""
        packed, coded = self._packed(layout), self._coded(layout)
        if not coded:
            return packed
        numbers = {
            slot.name: byte_values(packed[slot.name], packed[_scales(slot.name)], layout, BLOCK) for slot in coded
        }
        return {slot.name: numbers.get(slot.name, packed[slot.name]) for slot in self._slots[layout.pieces[0].name]}

    def put(self, layout: Layout, state: Mapping[str, Tensor], key: Key) -> None:
        """Keep what became of the slots that `bind` gave: those in 8 bits are rounded without bias, by this key."""
        for place, slot in enumerate(self._coded(layout)):
            keys = key.stream(_ROUNDING + place).numbers(piece.index for piece in layout.pieces)
            codes, scales = byte_codes(state[slot.name], layout, BLOCK, keys)
            self._bound[layout][slot.name].copy_(codes)
            self._bound[layout][_scales(slot.name)].copy_(scales)

    def _coded(self, layout: Layout) -> list[Slot]:
        """The slots in 8 bits."""
        return [slot for slot in self._slots[layout.pieces[0].name] if slot.bits == 8] if layout.pieces else []

    def _packed(self, layout: Layout) -> dict[str, Tensor]:
        """All that these parameters' slots are kept in, as flat tensors."""
        if layout not in self._bound:
            self._repack(layout)
        return self._bound[layout]

    def _repack(self, layout: Layout) -> None:
        self.packings += 1
        names = {piece.name for piece in layout.pieces}
        for old in [old for old in self._bound if names & {piece.name for piece in old.pieces}]:
            del self._bound[old]
            self._shadows.pop(old, None)
            self._moving.pop(old, None)
        flats: dict[str, Tensor] = {}
        for kept in self._kept[layout.pieces[0].name] if layout.pieces else ():
            flats[kept.name] = torch.cat([self._views[p.name][kept.name] for p in layout.pieces], dim=-1)
            views = torch.split(flats[kept.name], [kept.length(p.shape) for p in layout.pieces], dim=-1)
            for piece, view in zip(layout.pieces, views, strict=True):
                self._views[piece.name][kept.name] = view
        self._layout_of.update(dict.fromkeys(names, layout))
        self._bound[layout] = flats  # last: whoever is interrupted before it packs anew

    def remember(self, layout: Layout) -> None:
        """Note the present state of a layout, so that `restore` can go back to it."""
        packed, shadow = self._packed(layout), self._shadows.setdefault(layout, {})
        for slot, flat in packed.items():
            if slot not in shadow:
                shadow[slot] = torch.empty_like(flat)
        if packed:
            torch._foreach_copy_([shadow[slot] for slot in packed], [*packed.values()])  # one launch on a GPU

    def move(self, layout: Layout, turn: int) -> None:
        """Say that the state of a layout is about to change in this turn; `remember` has noted it."""
        self._moving[layout] = turn

    def restore(self, layout: Layout, turn: int) -> None:
        """Go back to what `remember` noted, if the layout moved in this turn."""
        for slot, shadow in self._shadows.get(layout, {}).items() if self._moving.get(layout) == turn else ():
            self._bound[layout][slot].copy_(shadow)

    def vectors(self, layout: Layout) -> list[tuple[Layout, Tensor]]:
        """Every vector that tells whether a layout's slots are finite, and how it is laid out; those in 8 bits by their
        scales. Numbers for whole parameters are left out."""
        kept = self._kept[layout.pieces[0].name] if layout.pieces else []
        told = [(one, self._packed(layout)[one.name]) for one in kept if not (_short(one.slot) or one.is_bytes)]
        return [
            (layout if one.share == 1 else _of_scales(layout), row)
            for one, flat in told
            for row in (flat.unbind() if one.slot.copies else (flat,))
        ]

    def clear_pieces(self, layout: Layout, names: Collection[str]) -> None:
        """Set some parameters' slots to zero."""
        for slot, flat in self._packed(layout).items():
            for piece, place in self._places(layout, slot):
                if piece.name in names:
                    flat[..., place] = 0

    def restore_pieces(self, layout: Layout, names: Collection[str]) -> None:
        """Go back to what `remember` noted, for some parameters alone."""
        for slot, shadow in self._shadows.get(layout, {}).items():
            for piece, place in self._places(layout, slot):
                if piece.name in names:
                    self._bound[layout][slot][..., place] = shadow[..., place]

    def regroup_(self, came_from: Sequence[int | None]) -> None:
        """For another group of workers: which of the old rows each row of a slot of copies is; a newcomer's (None) is
        the mean of those that stay. What `remember` noted is forgotten."""
        self.workers = len(came_from)
        for name, views in self._views.items():
            for kept in self._kept[name]:
                if kept.slot.copies:
                    views[kept.name] = _regrouped(views[kept.name], came_from)
        self._bound, self._shadows, self._moving, self._layout_of = {}, {}, {}, {}

    def settled(self, name: str, slot: str, turn: int) -> Tensor:
        """One parameter's slot as it was before this turn: what `remember` noted, where it is being changed."""
        codes = self._settled(name, slot, turn)
        if _scales(slot) not in self._views[name]:
            return codes
        return byte_values(codes, self._settled(name, _scales(slot), turn), self._alone(name), BLOCK)

    def _settled(self, name: str, slot: str, turn: int) -> Tensor:
        layout = self._layout_of.get(name)
        if layout is None or self._moving.get(layout) != turn:
            return self._views[name][slot]
        return next(
            self._shadows[layout][slot][..., place] for piece, place in self._places(layout, slot) if piece.name == name
        )

    def _places(self, layout: Layout, slot: str) -> Iterator[tuple[Piece, slice]]:
        """Each piece of a layout with its part of a flat tensor."""
        kept = next(each for each in self._kept[layout.pieces[0].name] if each.name == slot)
        stop = 0
        for piece in layout.pieces:
            start, stop = stop, stop + kept.length(piece.shape)
            yield piece, slice(start, stop)


def _regrouped(rows: Tensor, came_from: Sequence[int | None]) -> Tensor:
    stay = [row for row in came_from if row is not None]
    mean = rows[stay].mean(0) if stay else rows.mean(0)
    return torch.stack([mean if row is None else rows[row] for row in came_from])


@lru_cache(maxsize=256)
def _of_scales(layout: Layout) -> Layout:
    """How the scales of a layout's pieces lie."""
    return Layout.of([(piece.name, piece.index, (-(-piece.numel // BLOCK),)) for piece in layout.pieces])
