"""Contests of whole steps of the wire: a memory's step with its packing, and eight messages unpacked and added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire import Key, Layout, TopK
from thinwire.bench.contest import Contest, Run
from thinwire.bench.inputs import Inputs, draw
from thinwire.bench.selections import torch_memory
from thinwire.payload import Payload, add_all_to, pack_payload
from thinwire.payload.letter import FINITE, Expected, Letter, read, read_late, write

MESSAGES = 8
"""How many workers' messages are unpacked and added."""


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
    letters = _letters(payloads)
    rows = torch.stack([letter.message for letter in letters])

    def run(out: Tensor) -> Tensor:
        contents = read_late(rows, letters[0], _expected(layout, out.dtype))
        add_all_to(out, contents.payloads[0])
        return contents.sound

    return run


def read_in_turn(payloads: Sequence[Payload], layout: Layout) -> Run:
    """Messages read one after the other, as on a CPU; what is not sound is an error at once."""
    messages = [letter.message for letter in _letters(payloads)]
    return lambda out: add_all_to(out, read(messages, _expected(layout, out.dtype)).payloads[0])


def _expected(layout: Layout, dtype: torch.dtype) -> Expected:
    return Expected(0, "a contest", len(layout.pieces), ((layout, dtype),), Key())


def _letters(payloads: Sequence[Payload]) -> list[Letter]:
    packed = pack_payload(payloads[0])
    flag = torch.tensor(FINITE, device=packed.device)
    return [write([payload], 0, flag, rank) for rank, payload in enumerate(payloads)]
