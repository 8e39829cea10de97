"""What a channel is given about a bucket, and the letter that it makes of it, on its way to the others."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thinwire.errors import AttachError
from thinwire.feedback import Need, Signal
from thinwire.hub import Shares
from thinwire.layout import Layout
from thinwire.ops import Key, block_norms, first_nonfinite
from thinwire.ops.blocks import WHOLE
from thinwire.payload import Beside, Dense, Payload, Payloads, add_all_to, placed_in
from thinwire.payload.base import Count, both_counts
from thinwire.payload.letter import FINITE, Expected, Letter, read, write
from thinwire.payload.sums import Summand, read_total
from thinwire.step import Fault, Part

Agreed = Mapping[tuple[int, ...], Sequence[Tensor]]
"""For each part of a bucket whose rule needs an agreement, by its places: the sum of all workers' sketches of each
piece."""

USUAL = 64
"""Numbers of a bucket to a byte of its letter, where that may be of any length."""


@dataclass(frozen=True)
class Given:
    """What one worker gives for one bucket, laid out as the bucket is; none of it is changed."""

    gradients: Tensor
    """Times `scale`."""
    step_sizes: Mapping[str, float] | None = None
    """Of every parameter. Where a rule needs one and it is zero, the parameter's state stays as it is, and zeros are
    sent for it: no size of a message may depend on what one rank alone believes."""
    scale: float = 1.0
    """The loss scale, by which the result is multiplied again."""
    used: Sequence[bool] | None = None
    """Which pieces some rank used; the others take no part, and their state stays as it is."""
    moment: Tensor | None = None
    """Second moments where a rule needs them, zeros elsewhere; *not* scaled."""
    previous: Tensor | None = None
    """Gradients of the same samples at the previous point, times `scale`."""
    measure: bool = False
    """Whether the ledger wants norms."""
    mark: int = 0
    """A number that all ranks must have in common, such as a digest of the step sizes."""
    agreed: Agreed | None = None
    """What came of all workers' sketches, where `Channel.sketch` made any."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of one worker's gradient and of what it has not said, for one parameter."""

    gradient: Tensor
    residual: Tensor | None
    step_size: float | None = None
    """The step size that both are to be multiplied by, where the rule keeps its memory in units of updates."""


@dataclass(frozen=True)
class Outgoing:
    """A letter on its way, and what is needed to read the answers."""

    letter: Letter
    expected: Expected
    fixed: bool
    """Whether every rank's letter is as long as this one."""
    elements: Count
    """How many numbers the letter holds, where its formats count them."""
    layout: Layout
    parts: tuple[Part, ...]
    scale: float
    norms: Mapping[str, Norms]
    alike: Hashable | None = None
    """What this step has in common with others of the same work, if that is known."""
    summand: Summand | None = None
    """What may be added up on its way in place of the letter."""
    shares: Shares | None = None
    """Letters to every owner in place of the letter, which is then this rank's to itself."""

    @property
    def message(self) -> Tensor:
        """The bytes that travel."""
        return self.letter.message

    @property
    def usual(self) -> int:
        """By how many bytes ranks choose its way: the same on every rank, or their collectives would not meet. Of a
        letter whose length depends on what it says, as many as of 1 % of the numbers in 12 bits each."""
        return self.message.numel() if self.fixed else self.layout.numel // USUAL


@dataclass(frozen=True)
class Template:
    """What is known of a letter without looking at the device that it lies on."""

    fields: tuple[bytes, ...]
    fixed: bool
    elements: Count


@dataclass(frozen=True)
class Sketched:
    """Sketches of what rules will compress, on their way before the message."""

    outgoing: Outgoing
    sketches: Layout
    """How they lie: for each piece its own, part after part."""
    numbers: Tensor

    def agree(self, messages: Sequence[Tensor] | Tensor) -> tuple[Agreed, Fault | None]:
        """What all ranks' letters add up to, in rank order, so that all have the same bits: zeros where one raises its
        flag. A sum that is not finite is a fault, which all ranks see."""
        contents = read(messages, self.outgoing.expected)
        return self._agreed(contents.flags, contents.payloads[0] if contents.payloads else ())

    def agree_total(self, flags: Sequence[int], messages: Sequence[Tensor] | Tensor) -> tuple[Agreed, Fault | None]:
        """As `agree`, of letters that were added up on their way."""
        assert self.outgoing.summand is not None
        return self._agreed(flags, read_total(messages, self.outgoing.summand, self.outgoing.expected))

    def _agreed(self, flags: Sequence[int], sketches: Sequence[Payload]) -> tuple[Agreed, Fault | None]:
        if any(flag != FINITE for flag in flags):
            return self.none(), None  # the message's flag will be raised too
        total = add_all_to(torch.zeros_like(self.numbers), sketches)
        place = int(first_nonfinite(total, self.sketches))
        if place == FINITE:
            return self.agreed(total), None
        return self.none(), Fault(None, self.sketches.pieces[place].name)

    def agreed(self, total: Tensor) -> Agreed:
        """The sum of all workers' sketches, by parts."""
        views = iter([view for _, view in self.sketches.views(total)])
        return {part.places: [next(views) for _ in part.layout.pieces] for part in self.outgoing.parts}

    def none(self) -> Agreed:
        """Where nothing was agreed upon: as if all sketches were zero, so that all sizes stay as they are."""
        return self.agreed(torch.zeros_like(self.numbers))


SKETCHES = 0x5CE7C4
"""Marks letters with sketches."""
ROW = 4096
"""So many squares are added up at a time."""


def longest_message(layout: Layout) -> int:
    """A bound in bytes that no message about these parameters reaches, whatever its format."""
    return 1024 + 256 * len(layout.pieces) + 32 * layout.numel


def flagged(layout: Layout, given: Given) -> tuple[Tensor, Given]:
    """The place of the first piece that is not finite, and what is sent: on a CPU zeros in place of such numbers.

    On a GPU nobody waits to know: whatever is sent is refused.
    """
    flag = first_nonfinite(given.gradients, layout)
    for more in (given.moment, given.previous):
        if more is not None:
            flag = torch.where(flag == FINITE, first_nonfinite(more, layout), flag)
    if flag.is_cuda or int(flag) == FINITE:
        return flag, given
    zeros = torch.zeros_like(given.gradients)
    moment, previous = (None if more is None else zeros for more in (given.moment, given.previous))
    return flag, replace(given, gradients=zeros, moment=moment, previous=previous)


def squared_norm(flat: Tensor) -> Tensor:
    """Row by row: 10 M float32 take 1.2 ms on one core of an EPYC, as exactly as by squares, which take 17."""
    rows, dtype = flat.numel() // ROW, torch.promote_types(flat.dtype, torch.float32)
    whole = flat[: rows * ROW].view(rows, ROW)
    norms: Tensor = torch.linalg.vector_norm(whole, dim=1, dtype=dtype)
    return norms.square().sum() + flat[rows * ROW :].to(dtype).square().sum()


def squared_norms(flat: Tensor, layout: Layout) -> Sequence[Tensor]:
    """Of each piece; on a GPU in a few launches."""
    if not flat.is_cuda or any(piece.numel == 0 for piece in layout.pieces):
        return [squared_norm(view) for _, view in layout.views(flat)]
    return block_norms(flat, layout, WHOLE, order=2).square().unbind()


def are_fixed(parts: Sequence[Part], payloads: Sequence[Payload]) -> bool:
    """Whether every rank's letter is as long as this one."""
    return all(payload.fixed and not part.rule.varies for part, payload in zip(parts, payloads, strict=True))


def elements_of(payloads: Sequence[Payload]) -> Count:
    total: Count = 0
    for payload in payloads:
        total = both_counts(total, payload.elements)
    return total


def summand_of(parts: Sequence[Part], payloads: Sequence[Payload], flag: Tensor) -> Summand | None:
    """The numbers of a message about parameters of one rule, where that rule wants no more than their mean.

    On a GPU there is none so far: who has the sum only has to wait to know whether it is sound.
    """
    if len(parts) != 1 or not parts[0].rule.averages or flag.is_cuda:
        return None
    numbers = payloads[0].summand
    return None if numbers is None else Summand(payloads[0], numbers, flag)


def expected_of(
    layout: Layout, parts: Sequence[Part], dtypes: Sequence[torch.dtype], mark: int, method: str, key: Key
) -> Expected:
    """What every rank's letter about a bucket must have in common with this rank's."""
    marks = [mark, layout.digest, *(part.layout.digest ^ part.first for part in parts)]
    named = zlib.crc32(method.encode())
    common = struct.pack(f"<QQQ{len(marks)}I", named, key.seed % (1 << 64), key.step, *marks)
    return Expected(
        digest=zlib.crc32(common),
        subject=f"step {key.step} of {method}",
        pieces=len(layout.pieces),
        parts=tuple((part.layout, dtype) for part, dtype in zip(parts, dtypes, strict=True)),
        key=key,
    )


def check_agreed(part: Part, signal: Signal) -> None:
    """Refuse to send without the agreement that a rule needs: each worker would choose for itself."""
    if signal.agreed is None and Need.AGREEMENT in part.rule.needs:
        raise AttachError(
            f"{part.rule} needs {Need.AGREEMENT.value}, which nobody asks for here: use it under attach or in a "
            "Simulation, or take topk in place of arctopk"
        )


def sketched_of(
    parts: tuple[Part, ...],
    made: Sequence[Sequence[Tensor]],
    layout: Layout,
    expected: Expected,
    flag: Tensor,
    rank: int,
) -> Sketched:
    """A letter with the sketches of all pieces of some parts of a bucket."""
    pieces = [piece for part in parts for piece in part.layout.pieces]
    every = [sketch for of_part in made for sketch in of_part]
    lying = [(piece.name, piece.index, (sketch.numel(),)) for piece, sketch in zip(pieces, every, strict=True)]
    numbers, sketches = torch.cat(every), Layout.of(lying)
    payload = Dense(numbers)
    expected = replace(expected, digest=expected.digest ^ SKETCHES, parts=((sketches, numbers.dtype),))
    letter = write([payload], expected.digest, flag, rank)
    summand = None if flag.is_cuda else Summand(payload, numbers, flag)
    return Sketched(Outgoing(letter, expected, True, 0, layout, parts, 1.0, {}, summand=summand), sketches, numbers)


def norms_of(given: Tensor, unsaid: Tensor | None, layout: Layout, step_sizes: Mapping[str, float]) -> dict[str, Norms]:
    """What the ledger wants to know of each parameter."""
    names = [piece.name for piece in layout.pieces]
    kept = [None] * len(names) if unsaid is None else [*squared_norms(unsaid, layout)]
    every = zip(names, squared_norms(given, layout), kept, strict=True)
    return {name: Norms(gradient, residual, step_sizes.get(name)) for name, gradient, residual in every}


def overflow_of(out: Tensor, sent: Outgoing, payloads: Sequence[Sequence[Payload]]) -> int:
    """The place of the first piece of a result that is not finite, or FINITE.

    No number of a mean is larger than the magnitudes of all messages together, which are few where they are sparse.
    """
    rule = sent.parts[0].rule if len(sent.parts) == 1 else None
    is_mean = rule is not None and (rule.averages or rule.dense_by_identity)
    if is_mean and _most(payloads[0], out.dtype) * sent.scale < torch.finfo(out.dtype).max:
        return FINITE
    return int(first_nonfinite(out, sent.layout))


def _most(payloads: Sequence[Payload], dtype: torch.dtype) -> float:
    """The sum of all magnitudes, where that is quickly found; else infinity."""
    if isinstance(payloads, Payloads):
        return math.inf
    inner = [payload.inner if isinstance(payload, Beside) else payload for payload in payloads]
    placed = placed_in(inner, torch.promote_types(dtype, torch.float32))
    return math.inf if placed is None else sum(float(torch.linalg.vector_norm(values, 1)) for values in placed[1])


def without(names: Collection[str], layout: Layout, flat: Tensor) -> Tensor:
    """Set some pieces to zero, in place."""
    for piece, view in layout.views(flat):
        if piece.name in names:
            view.zero_()
    return flat
