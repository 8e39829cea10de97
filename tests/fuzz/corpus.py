"""Real messages to damage: every payload format and every way to write values, over several layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from tests.methods import FUZZ_COMPRESSORS, FUZZ_RULES
from torch import Tensor

from thinwire import (
    Feedback,
    Identity,
    Key,
    Layout,
    RandK,
    Route,
    TopK,
)
from thinwire.channel import Channel
from thinwire.outgoing import Given, Outgoing
from thinwire.payload import Empty, Flagged, Partial, Payload, Reader, SparseWords, Sum, chunks_of
from thinwire.payload.letter import read_one
from thinwire.payload.message import Chunk, join
from thinwire.payload.nested import SECOND
from thinwire.step import Part

CPU = torch.device("cpu")
KEY = Key(seed=1, step=2, worker=3)
LAYOUTS = [
    Layout.of([("a", 0, (3, 5)), ("b", 1, (0, 4)), ("c", 2, (1,)), ("d", 3, ()), ("f", 7, (33,))]),
    Layout.of([("a", 0, (7,)), ("b", 1, (300,))]),
    Layout.of([("a", 0, (61,))]),
    Layout.of([("a", 0, (5,))]),
]


@dataclass(frozen=True)
class Sample:
    """One packed payload: its bytes, and where in them its chunks begin and end."""

    label: str
    layout: Layout
    dtype: torch.dtype
    message: bytes
    fields: tuple[tuple[int, int], ...]
    """Start and end of each run of fixed fields (tags, counts, lengths)."""
    ends: tuple[int, ...]
    """Where chunks end, without and with what fills up their last word: padding may stand before either."""


def samples() -> list[Sample]:
    """Payloads of every format, value format and layout, in both precisions of a state."""
    return [
        _sample(payload, layout, dtype)
        for layout, dtype in product(LAYOUTS, (torch.float32, torch.float64))
        for payload in _payloads(layout, dtype)
    ]


def _payloads(layout: Layout, dtype: torch.dtype) -> list[Payload]:
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(layout.numel), dtype=torch.float64).to(dtype)
    made = [compressor(x, layout, KEY) for compressor in FUZZ_COMPRESSORS]
    made += [SparseWords.of(TopK(share, values="exponent4")(x, layout, KEY)) for share in (0.5, 0.1)]
    flags = torch.arange(len(layout.pieces)) % 2 == 0
    some = layout.select(flags.tolist())
    part = torch.cat([view for pick, (_, view) in zip(flags.tolist(), layout.views(x), strict=True) if pick])
    whole, top, masked = Identity(), TopK(0.5), RandK(0.3, shared=True)
    small, single, words = TopK(0.5, values="float32"), TopK(0.2), made[len(FUZZ_COMPRESSORS)]
    second = KEY.stream(SECOND)
    made += [Sum(one(x, layout, KEY), two(x, layout, second)) for one, two in ((top, whole), (small, masked))]
    made += [Partial(flags, inner(part, some, KEY), layout) for inner in (whole, top, masked)]
    flagged = [Empty(), *(inner(x, layout, KEY) for inner in (whole, top, small, single)), words]
    return [Empty(), *made, *(Flagged(flags, inner) for inner in flagged)]


def _sample(payload: Payload, layout: Layout, dtype: torch.dtype) -> Sample:
    chunks = chunks_of(payload)
    spans = _spans(chunks, 0)
    fixed = tuple(span for span, chunk in zip(spans, chunks, strict=True) if isinstance(chunk, bytes))
    ends = tuple(end + filling for _, end in spans for filling in {0, -end % 4})
    return Sample(label_of(payload), layout, dtype, bytes(join(chunks, CPU).tolist()), fixed, ends)


def _spans(chunks: list[Chunk], start: int) -> list[tuple[int, int]]:
    spans = []
    for chunk in chunks:
        length = len(chunk) if isinstance(chunk, bytes) else chunk.numel()
        spans.append((start, start + length))
        start += length + -length % 4
    return spans


def label_of(payload: Payload) -> str:
    """The format's name, with the format of its values where it has one."""
    if isinstance(payload, Flagged | Partial):
        return f"{type(payload).__name__.lower()} {label_of(payload.inner)}"
    if isinstance(payload, Sum):
        return f"sum {label_of(payload.one)} and {label_of(payload.two)}"
    written = getattr(payload, "written", None)
    return type(payload).__name__.lower() + (f" {written.name}" if written else "")


# ------------------------------------------------------------------------------------------------- messages of channels

SHAPES = {"a": (3, 4), "b": (5,), "c": (0,), "d": (40,)}


class Watched(Channel):
    """A channel that keeps the payloads it reads."""

    def _receive_part(self, part: Part, payloads: Sequence[Payload], sent: Outgoing, out: Tensor, key: Key) -> None:
        self.seen += enumerate(payloads)
        super()._receive_part(part, payloads, sent, out, key)

    seen: list[tuple[int, Payload]]


@dataclass
class Link:
    """Rank 0 of one to three, in the middle of a step: its own message is sent, that of the rank `suspect` is to come.

    Of one, the message to come is its own, as it comes back.
    """

    label: str
    channel: Watched
    sent: Outgoing
    gathered: tuple[bytes, ...]
    """Every rank's message, undamaged."""
    suspect: int
    fields: tuple[tuple[int, int], ...]
    """Start and end of each run of fixed fields, with what fills up its last word; every rank's are alike in size."""
    ends: tuple[int, ...]
    out: Tensor = field(repr=False)

    @property
    def message(self) -> bytes:
        """What the suspect sent."""
        return self.gathered[self.suspect]

    def with_message(self, message: bytes) -> list[bytes]:
        """Every rank's message, the suspect's replaced."""
        return [message if rank == self.suspect else other for rank, other in enumerate(self.gathered)]


def links() -> list[Link]:
    """A link for each rule in its first step and in its second, of one, two and three ranks."""
    return [_link(rule, steps, size) for rule in FUZZ_RULES for steps in (0, 1) for size in (1, 2, 3)]


def _link(rule: Feedback | Route, steps: int, size: int) -> Link:
    parameters = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    ends = [Watched(rule, parameters, rank=rank, size=size) for rank in range(size)]
    for end in ends:
        end.seen = []
    layout = ends[0].layout(list(SHAPES))
    for step in range(steps + 1):
        sent = [_send(end, layout, 10 * step + end.rank) for end in ends]
        if step < steps:
            for end, mine in zip(ends, sent, strict=True):
                end.receive(mine, [s.message for s in sent], torch.empty(layout.numel))
                end.finish()
    gathered, suspect = tuple(bytes(s.message.tolist()) for s in sent), size // 2
    fixed, marks = _places(ends[suspect], sent[suspect], gathered[suspect])
    return Link(str(rule), ends[0], sent[0], gathered, suspect, fixed, marks, torch.empty(layout.numel))


def _send(end: Channel, layout: Layout, seed: int) -> Outgoing:
    gradient = torch.randn(layout.numel, generator=torch.Generator().manual_seed(seed))
    return end.send(layout, Given(gradient, step_sizes=dict.fromkeys(SHAPES, 0.1), moment=gradient.square() / 2))


def _places(end: Channel, sent: Outgoing, message: bytes) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Where a sealed message's fields stand and its chunks end: found by reading it."""
    reader = _Noting(torch.tensor(list(message), dtype=torch.uint8))
    read_one(reader, sent.expected, end.rank)
    return tuple(reader.fixed), tuple(reader.ends)


class _Noting(Reader):
    """A reader that notes what it was asked for."""

    def __init__(self, message: Tensor) -> None:
        super().__init__(message)
        self.fixed: list[tuple[int, int]] = []
        self.ends: list[int] = []

    def _words(self, nbytes: int) -> Tensor:
        start, taken = self.place, super()._words(nbytes)
        self.ends += {start + nbytes, self.place}
        return taken

    def fields(self, layout: str) -> tuple[int, ...]:
        start = self.place
        found = super().fields(layout)
        self.fixed.append((start, self.place))
        return found
