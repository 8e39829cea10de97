"""Every back-end of VGC's two steps against their definition: the same positions, and the same bits everywhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.backends import BACKENDS, KINDS, NONFINITE, assert_same, circumstances, layout_of, on_threads, pair
from torch import Tensor

from thinwire import Layout, ops
from thinwire.ops import reference

TAUS = (1e-50, 1e-39, 1e-3, 0.7, 1.75, 1e9, 1e39)
"""Zero in float32, a denormal of it, little, a number that it rounds down, the very number of "equal", more than all
but one, and infinity in float32."""
State = tuple[Tensor, ...]
"""r, v, g and q."""


def state_of(kind: str, numel: int, dtype: torch.dtype) -> State:
    """An awkward r + g, and squares of about its size."""
    r, g = pair(kind, numel, dtype)
    size = (r + g).square().nan_to_num().mean().clamp(max=1.0)
    v, q = (x.square() * size for x in pair("normal", numel, dtype))
    return r, v, g, q


def alphas_of(layout: Layout, dtype: torch.dtype) -> Tensor:
    """A number for each piece; one sends all that is not zero, one nothing."""
    return torch.tensor([1.5, 1e-30, 1.0, 2.0, 1e30, 1.0 / 3] * len(layout.pieces), dtype=dtype)[: len(layout.pieces)]


def check(
    state: State,
    layout: Layout,
    alphas: Tensor,
    name: str,
    device: str,
    taus: tuple[float | None, ...],
    threads: int = 1,
) -> None:
    """Both steps by the back-end and by the reference."""
    for tau in taus:
        op, more = ("variance_", (0.999,)) if tau is None else ("variance_strom_", (0.999, tau))
        mine, its = [x.clone().to(device) for x in state], [x.clone() for x in state]
        with on_threads(threads), ops.backend(name):
            found = getattr(ops, op)(*mine, layout, alphas.to(device), *more)
        expected = getattr(reference, op)(*its, layout, alphas, *more)
        for a, b in zip((*found, *mine), (*expected, *its), strict=True):
            assert_same(a.cpu(), b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "device", "shape", "threads"), circumstances())
def test_every_back_end_is_the_reference(name: str, device: str, shape: str, threads: int, dtype: torch.dtype) -> None:
    layout = layout_of(shape)
    alphas = alphas_of(layout, dtype)
    taus = TAUS if layout.numel < 10_000 else (0.7, 1.75)
    for kind in KINDS + NONFINITE:
        state = state_of(kind, layout.numel, dtype)
        check(state, layout, alphas, name, device, (None, *taus), threads)
        check(state, layout, alphas * 0 + 1.5, name, device, (None,), threads)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
@settings(max_examples=50)
@given(data=st.data())
def test_any_numbers_are_those_of_the_reference(name: str, device: str, data: st.DataObject) -> None:
    """NaN and infinity among them: no comparison with NaN is true."""
    sizes = data.draw(st.lists(st.integers(0, 70), max_size=8))
    layout = Layout.of([(str(i), i, (n,)) for i, n in enumerate(sizes)])
    few = data.draw(st.lists(st.floats(width=32), min_size=1, max_size=12))
    seed = data.draw(st.integers(0, 99))
    picks = torch.randint(len(few), (4, layout.numel), generator=torch.Generator().manual_seed(seed))
    r, v, g, q = torch.tensor(few)[picks]
    alphas = torch.tensor(data.draw(st.lists(st.floats(0.25, 4, width=32), min_size=len(sizes), max_size=len(sizes))))
    check((r, v.abs(), g, q.abs()), layout, alphas, name, device, (None, data.draw(st.sampled_from(TAUS))))


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_a_tie_is_not_sent_and_neither_is_zero(name: str, device: str) -> None:
    """r^2 = alpha v stays, and one bit less of v is sent; so is |r| = tau, and one bit more of r."""
    layout, alphas = Layout.of([("x", 0, (100,))]), torch.tensor([2.0])
    r, v, zero = torch.full((100,), 3.0), torch.full((100,), 4.5), torch.zeros(100)
    v[70], v[99], r[80] = torch.nextafter(torch.tensor(4.5), torch.tensor(0.0)), 0.0, 0.0
    v[80] = 0.0
    state = r, v, zero, zero
    check(state, layout, alphas, name, device, (None, 3.0, 2.5))
    with ops.backend(name):
        positions, _, _ = ops.variance_(*(x.clone().to(device) for x in state), layout, alphas.to(device), 1.0)
    assert positions.tolist() == [70, 99]


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_product_is_rounded_by_itself(name: str, device: str) -> None:
    """Numbers for which one rounding less would send others, or leave another v."""
    layout, one = Layout.of([("x", 0, (4096,))]), torch.tensor([1.0])
    r = 1 + torch.rand(4096, generator=torch.Generator().manual_seed(0))
    v, zero = r * r, torch.zeros(4096)
    assert ((r.double() ** 2 > v) & ~(r * r > v)).sum() > 1000  # a fused test would send these
    check((r, v, zero, zero), layout, one, name, device, (None,))
    tau, v = torch.tensor(0.7), r * r * 0.99
    fused = (v.double() - tau.double() * (2 * r - tau).double()).float()
    assert (fused != v - tau * (2 * r - tau)).sum() > 1000
    check((r, v, zero, zero), layout, one, name, device, (0.7,))


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_finds_that_come_all_at_the_end_or_everywhere(name: str, device: str, share: float) -> None:
    """Nothing lets the first buffer expect what comes after it."""
    numel = 200_001
    layout, r = Layout.of([("x", 0, (numel,))]), torch.full((numel,), share)
    r[100_000:] = 3.0
    check((r, r * 0 + 1e-3, r * 0, r * 0), layout, torch.tensor([2.0]), name, device, (None, 0.5))


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_strided_vectors_are_the_same(name: str, device: str) -> None:
    layout, alphas = Layout.of([("x", 0, (1000,)), ("y", 1, (500,))]), torch.tensor([1.5, 0.5])
    state = state_of("normal", 1500, torch.float32)
    mine, its = [torch.zeros(3000, device=device)[::2].copy_(x) for x in state], [x.clone() for x in state]
    with ops.backend(name):
        found = ops.variance_(*mine, layout, alphas.to(device), 0.999)
    for a, b in zip((*found, *mine), (*reference.variance_(*its, layout, alphas, 0.999), *its), strict=True):
        assert_same(a.cpu(), b)
