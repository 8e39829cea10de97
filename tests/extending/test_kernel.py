"""A kernel from outside the package serves an operation on a device, equals the definition, and is removed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.kernels.backends import KINDS, LAYOUTS, NONFINITE, check, layout_of, pair, ratios_of
from torch import Tensor

from thinwire import Layout, MemSGD, Simulation, TopK, ops
from thinwire.compressors.density import kept
from thinwire.errors import BackendError, ConfigError

CALLS: list[str] = []


def sorted_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """`ops.memory_topk_` by a stable sort of each piece, as an author might write it for a device of his own."""
    CALLS.append("memory_topk_")
    places = []
    for ratio, count, piece in zip(ratios or [1.0] * len(counts), counts, layout.pieces, strict=True):
        magnitude = error[piece.part].mul_(ratio).add_(value[piece.part]).abs()
        order = magnitude.argsort(descending=True, stable=True)  # torch sorts NaN as the largest number
        places.append(order[:count].sort().values + piece.offset)
    positions = torch.cat(places)
    values = error[positions]
    error[positions] = 0
    return positions, values


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    CALLS.clear()


@pytest.mark.parametrize("shape", [shape for shape in LAYOUTS if shape != "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_is_checked_as_every_back_end_is(shape: str, dtype: torch.dtype) -> None:
    layout = layout_of(shape)
    counts = [kept(piece.numel, 0.1, None) for piece in layout.pieces]
    with ops.serve(ops.memory_topk_, "cpu", sorted_topk_, name="sorted"):
        for kind in KINDS + NONFINITE:
            x, y = pair(kind, layout.numel, dtype)
            check("memory_topk_", x, (y,), (layout, counts, ratios_of(layout)), "sorted", "cpu")
    assert len(CALLS) == len(KINDS + NONFINITE)


def trained() -> list[Tensor]:
    """A few steps of two workers."""
    torch.manual_seed(0)
    parameters = {"w": torch.zeros(24), "b": torch.zeros(3)}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    simulation = Simulation(parameters, MemSGD(TopK(0.2)), workers=2, optimizer=optimizer)
    for _ in range(5):
        simulation.step([{name: torch.randn_like(x) + x for name, x in parameters.items()} for _ in range(2)])
    return list(parameters.values())


def test_a_simulation_uses_it_until_it_is_removed() -> None:
    expected = trained()
    served = ops.serve(ops.memory_topk_, "cpu", sorted_topk_, name="sorted")
    try:
        assert all(torch.equal(a, b) for a, b in zip(trained(), expected, strict=True))
        used = len(CALLS)
        assert used > 0
        with ops.backend("reference"):
            trained()
        assert len(CALLS) == used
    finally:
        served.remove()
    trained()
    assert len(CALLS) == used
    served.remove()  # a second time is nothing


def test_the_last_one_serves_and_the_one_before_comes_back() -> None:
    def named(number: int) -> Callable[[Tensor], Tensor]:
        def pack_bits(bits: Tensor) -> Tensor:
            return torch.tensor([number])

        return pack_bits

    bits = torch.tensor([True])
    with ops.serve(ops.pack_bits, "cpu", named(1), name="one"):
        with ops.serve(ops.pack_bits, "cpu", named(2), name="two"):
            assert ops.pack_bits(bits).item() == 2
            with ops.backend("one"):
                assert ops.pack_bits(bits).item() == 1
                assert ops.negative_bits(-torch.ones(1)).item() == 1  # it has no other: the definition serves
        assert ops.pack_bits(bits).item() == 1
    assert ops.pack_bits(bits=bits).item() == 1
    with pytest.raises(BackendError, match=r"unknown back-end 'one'; known: reference, numba, triton$"):
        ops.backend("one").__enter__()


def wrong(x: Tensor, k: int) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("operation", "device", "kernel", "name", "message"),
    [
        (wrong, "cpu", wrong, "mine", "not an operation; known: add_at_, .*, topk"),
        (ops.topk, "abacus", ops.reference.topk, "mine", "'abacus' is not a device that torch knows"),
        (ops.topk, "cuda:0", ops.reference.topk, "mine", "'cuda' in place of 'cuda:0'"),
        (ops.topk, "cpu", wrong, "mine", r"for topk takes \(x, layout, counts\), this one \(x, k\)"),
        (ops.topk, "cpu", 7, "mine", "must be a function, got 7"),
        (ops.topk, "cpu", ops.reference.topk, "numba", "the name 'numba' belongs to a back-end of thinwire"),
    ],
    ids=["operation", "device", "index", "arguments", "function", "name"],
)
def test_what_cannot_serve_is_refused(operation: Any, device: str, kernel: Any, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ops.serve(operation, device, kernel, name=name)


def test_arguments_may_be_given_by_name_and_a_missing_one_is_named() -> None:
    x, layout = torch.tensor([1.0, -3.0]), Layout.of([("x", 0, (2,))])
    assert ops.topk(counts=[1], layout=layout, x=x)[0].tolist() == [1]
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        ops.topk(layout=layout, counts=[1])  # type: ignore[call-arg]
