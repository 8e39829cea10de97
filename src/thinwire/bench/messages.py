"""Contests of whole steps of the wire: a memory's step with its packing, and eight messages unpacked and added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire import Key, Layout, TopK
from thinwire.bench.contest import Contest, Run
from thinwire.bench.inputs import Inputs, draw
from thinwire.bench.selections import torch_memory
from thinwire.payload import (
    LateReader,
    Payload,
    Reader,
    add_all_to,
    chunks_of,
    pack_payload,
    unpack_payload,
    unpack_payloads,
)
from thinwire.payload.envelope import FINITE, fields_of, open_rest, open_version, seal

MESSAGES = 8
"""How many workers' messages are unpacked and added."""
DIGEST = 0
SENDER = 0


def memory_and_packing(given: Inputs) -> Contest:
    """The step of a memory, and its message; plain torch sends positions as int32, beside the values."""
    value, layout, counts = given.second, given.layout, given.counts
    compressor = TopK(given.density)

    def by_torch(error: Tensor) -> Tensor:
        positions, values = torch_memory(error, value, layout, counts)
        return torch.cat([positions.to(torch.int32).view(torch.uint8), values.view(torch.uint8)])

    return Contest(lambda error: pack_payload(compressor.take_(error, value, None, layout, Key())), by_torch)


def unpacking_and_adding(given: Inputs) -> Contest:
    """Messages of 8 workers: opened, checked, unpacked and added; plain torch adds at int32 positions, unchecked."""
    layout, device = given.layout, given.second.device
    vectors = (draw("normal", layout.numel, seed, device) for seed in range(MESSAGES))
    payloads = [TopK(given.density)(x, layout, Key()) for x in vectors]
    plain = [(payload.positions.to(torch.int32), payload.values) for payload in payloads]

    def by_torch(out: Tensor) -> None:
        for positions, values in plain:
            out.index_add_(0, positions, values)

    together = device.type == "cuda" and payloads[0].fixed  # as `Channel.receive` decides
    return Contest((read_together if together else read_in_turn)(payloads, layout), by_torch)


def read_together(payloads: Sequence[Payload], layout: Layout) -> Run:
    """Messages of one size read all at once, as on a GPU; whether they are sound is left there."""
    rows = torch.stack(_sealed(payloads))
    own, fields = rows[0].clone(), fields_of(chunks_of(payloads[0]), DIGEST)

    def run(out: Tensor) -> Tensor:
        reader = LateReader(rows, own, fields)
        open_version(reader)
        open_rest(reader, SENDER)
        add_all_to(out, unpack_payloads(reader, layout, Key(), out.dtype))
        return reader.sound()

    return run


def read_in_turn(payloads: Sequence[Payload], layout: Layout) -> Run:
    """Messages read one after the other, as on a CPU; what is not sound is an error at once."""
    messages = _sealed(payloads)

    def run(out: Tensor) -> Tensor:
        return add_all_to(out, [_open(Reader(message), layout, out.dtype) for message in messages])

    return run


def _open(reader: Reader, layout: Layout, dtype: torch.dtype) -> Payload:
    open_version(reader)
    open_rest(reader, SENDER)
    return unpack_payload(reader, layout, Key(), dtype)


def _sealed(payloads: Sequence[Payload]) -> list[Tensor]:
    bodies = [chunks_of(payload) for payload in payloads]
    device = next(chunk.device for chunk in bodies[0] if isinstance(chunk, Tensor))
    return [seal(body, DIGEST, torch.tensor(FINITE, device=device), SENDER) for body in bodies]
