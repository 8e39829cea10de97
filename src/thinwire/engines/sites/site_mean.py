"""DDP's buckets on several sites: each member averages its shards of the site's, and exchanges those between sites."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from thinwire.engines.ddp.bucket import MemoryOrder
from thinwire.engines.ddp.handle import Handle
from thinwire.engines.flush import apply_
from thinwire.engines.sites.shard import Shard
from thinwire.exchange import Exchange, Incoming, Scatters
from thinwire.layout import Layout


@dataclass(frozen=True)
class MemberRows:
    """How some parameters, one behind the other, are cut into a row for each member, with room for the longest."""

    pieces: Sequence[Shard]

    @cached_property
    def width(self) -> int:
        """Numbers of a row."""
        return sum(shard.padded for shard in self.pieces)

    @cached_property
    def is_even(self) -> bool:
        """Whether nothing is left over."""
        return all(shard.whole[0] % shard.members == 0 for shard in self.pieces)

    def rows(self, flat: Tensor) -> Tensor:
        """Row j has member j's shards; what is left over is zero."""
        members = self.pieces[0].members
        rows = (flat.new_empty if self.is_even else flat.new_zeros)((members, self.width))
        for shard, whole, place in self._places(flat):
            rows[:, place] = _padded(whole, members * shard.padded).view(members, shard.padded)
        return rows

    def own(self, row: Tensor) -> Tensor:
        """This member's shards of its row, without what is left over."""
        if self.is_even:
            return row
        parts = torch.split(row, [shard.padded for shard in self.pieces])
        return torch.cat([part[: math.prod(shard.shape)] for shard, part in zip(self.pieces, parts, strict=True)])

    def row(self, own: Tensor) -> Tensor:
        """The inverse of `own`."""
        if self.is_even:
            return own
        parts = torch.split(own, [math.prod(shard.shape) for shard in self.pieces])
        return torch.cat([_padded(part, shard.padded) for shard, part in zip(self.pieces, parts, strict=True)])

    def whole_(self, flat: Tensor, rows: Tensor) -> Tensor:
        """The inverse of `rows`, written into a flat tensor."""
        for _, whole, place in self._places(flat):
            part = rows[:, place]
            if whole.numel() == part.numel():
                whole.view(part.shape).copy_(part)
            else:
                whole.copy_(part.reshape(-1)[: whole.numel()])
        return flat

    def _places(self, flat: Tensor) -> Iterator[tuple[Shard, Tensor, slice]]:
        start = 0
        wholes = torch.split(flat, [math.prod(shard.whole) for shard in self.pieces])
        for shard, whole in zip(self.pieces, wholes, strict=True):
            yield shard, whole, slice(start, start + shard.padded)
            start += shard.padded


@dataclass(frozen=True)
class ShardBucket:
    """This member's shards of a bucket of DDP's, in the mean over its site: a `Bucket`."""

    place: int
    last: bool
    parts: Sequence[Tensor]
    numbers: Tensor

    def index(self) -> int:
        """Its place in the order."""
        return self.place

    def is_last(self) -> bool:
        """Whether the step ends with it."""
        return self.last

    def parameters(self) -> Sequence[Tensor]:
        """The shards whose gradients these are."""
        return self.parts

    def buffer(self) -> Tensor:
        """The gradients."""
        return self.numbers


@dataclass(frozen=True)
class Scattered:
    """A bucket that is on its way to the members of the site."""

    place: int
    last: bool
    names: tuple[str, ...]
    flat: Tensor
    order: MemoryOrder
    incoming: Incoming
    result: Future[Tensor]


@final
class SiteMean:
    """What DDP's hook hands buckets to: between DDP and a handle that exchanges shards.

    A bucket travels inside the site while the next one is computed; then its shards go to the handle. All results are
    gathered inside the site once the handle has received them, in the body of the last hook.
    """

    def __init__(self, handle: Handle, inside: Scatters, held: Held) -> None:
        self.handle, self._inside, self._held = handle, inside, held
        self._underway: list[Scattered] = []
        self._shares: list[Future[Tensor]] = []

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """Exchange one bucket: what the comm hook does."""
        if bucket.index() == 0:
            self._underway, self._shares = [], []
        self._scatter(bucket)
        keep = 0 if bucket.is_last() else 1
        while len(self._shares) < len(self._underway) - keep:
            self._share(self._underway[len(self._shares)])
        result = self._underway[-1].result
        if bucket.is_last():
            self._tell()
        return result

    def _scatter(self, bucket: GradBucket) -> None:
        """Start to send every member its shards."""
        flat = bucket.buffer().detach()
        names = tuple(self._held.names[id(parameter)] for parameter in bucket.parameters())
        order = MemoryOrder(self._held.layout(names), self._held.named)
        rows = self._held.cut(names).rows(order.logical(flat))
        incoming = self._inside.scatter(rows.view(torch.uint8), f"bucket {bucket.index()} inside the site")
        result: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)
        self._underway.append(Scattered(bucket.index(), bucket.is_last(), names, flat, order, incoming, result))

    def _share(self, one: Scattered) -> None:
        """Average this member's shards over its site, in rank order, and start to exchange them between sites."""
        rows = [row.view(one.flat.dtype) for row in one.incoming.wait()]
        total = rows[0].to(_sum_dtype(one.flat), copy=True)
        for row in rows[1:]:
            total.add_(row)
        mean = self._held.cut(one.names).own(total.div_(len(rows)).to(one.flat.dtype))
        parts = [self._held.parts[name] for name in one.names]
        self._shares.append(self.handle.exchange(ShardBucket(one.place, one.last, parts, mean)))

    def _tell(self) -> None:
        """Tell the site what was exchanged of this member's shards, and DDP all of it."""
        cuts = [self._held.cut(one.names) for one in self._underway]
        shares = [cut.row(share.value()) for cut, share in zip(cuts, self._shares, strict=True)]
        gathers = [
            gather_rows(self._inside, row, f"bucket {place} inside the site") for place, row in enumerate(shares)
        ]
        for one, cut, incoming in zip(self._underway, cuts, gathers, strict=True):
            rows = arrived_rows(incoming, one.flat.dtype)
            if one.order.is_logical:
                cut.whole_(one.flat, rows)
            else:
                one.order.write_(one.flat, cut.whole_(torch.empty_like(one.flat), rows))
            one.result.set_result(one.flat)
        self._underway, self._shares = [], []


@final
class Held:
    """The parameters of a DDP model, and this member's shards of them."""

    def __init__(self, named: Mapping[str, Tensor], member: int, members: int) -> None:
        self.named = named
        self.shards = {n: Shard(tuple(p.shape) or (1,), 0, member, members) for n, p in named.items()}
        self.parts = {n: p.detach().new_zeros(()).expand(self.shards[n].shape) for n, p in named.items()}
        """Of the shapes and types of shards; they have no numbers of their own."""
        self.names = {id(p): name for name, p in named.items()}
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._cuts: dict[tuple[str, ...], MemberRows] = {}

    def layout(self, names: tuple[str, ...]) -> Layout:
        """Whole parameters, one behind the other."""
        if names not in self._layouts:
            self._layouts[names] = Layout.of([(name, i, tuple(self.named[name].shape)) for i, name in enumerate(names)])
        return self._layouts[names]

    def cut(self, names: tuple[str, ...]) -> MemberRows:
        """How they are cut."""
        if names not in self._cuts:
            self._cuts[names] = MemberRows([self.shards[name] for name in names])
        return self._cuts[names]

    def apply_(self, inside: Exchange, updates: Mapping[str, Tensor]) -> float:
        """x <- x - update, of which every member of the site has its shards; the norm of all of them together."""
        wholes = {}
        for name, update in updates.items():
            cut = self.cut((name,))
            incoming = gather_rows(inside, cut.row(update), f"the update of {name!r}")
            wholes[name] = cut.whole_(update.new_empty(self.named[name].numel()), arrived_rows(incoming, update.dtype))
        return apply_(self.named, wholes)


def _padded(flat: Tensor, numel: int) -> Tensor:
    """With zeros behind it; padding by nothing would copy."""
    return flat if flat.numel() == numel else torch.nn.functional.pad(flat, (0, numel - flat.numel()))


def gather_rows(inside: Exchange, row: Tensor, what: str) -> Incoming:
    """Start to tell the site's members a row."""
    return inside.gather(row.view(torch.uint8), fixed=True, longest=0, what=what)


def arrived_rows(incoming: Incoming, dtype: torch.dtype) -> Tensor:
    """All members' rows."""
    rows = incoming.wait()
    return (rows if isinstance(rows, Tensor) else torch.stack(list(rows))).view(dtype)


def _sum_dtype(flat: Tensor) -> torch.dtype:
    return torch.float64 if flat.dtype == torch.float64 else torch.float32
