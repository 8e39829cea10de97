"""Laws that every compressor obeys."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.gradients import LAYOUTS, eps, vectors
from tests.methods import COMPRESSORS
from torch import Tensor

from thinwire import Compressor, Key, Layout, TopK
from thinwire.compressors import Draws
from thinwire.payload import Reader, pack_payload, unpack_payload

DTYPES = st.sampled_from([torch.float32, torch.float64])
each_compressor = pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)


def decoded(compressor: Compressor, x: Tensor, layout: Layout, key: Key) -> Tensor:
    return compressor(x, layout, key).decode(layout, x.dtype)


@each_compressor
@settings(max_examples=25)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS), dtype=DTYPES, step=st.integers(0, 9))
def test_pack_and_unpack_are_inverse(
    compressor: Compressor, data: st.DataObject, layout: Layout, dtype: torch.dtype, step: int
) -> None:
    """The bytes decode to exactly what the sender's own payload decodes to, with nothing left over."""
    x, key = data.draw(vectors(layout, dtype)), Key(1, step, 2)
    payload = compressor(x, layout, key)
    reader = Reader(pack_payload(payload))
    arrived = unpack_payload(reader, layout, key, dtype)
    reader.finish()
    assert torch.equal(arrived.decode(layout, dtype), payload.decode(layout, dtype))


@each_compressor
@settings(max_examples=15)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS), dtype=DTYPES)
def test_input_is_left_alone_and_equal_keys_give_equal_messages(
    compressor: Compressor, data: st.DataObject, layout: Layout, dtype: torch.dtype
) -> None:
    x = data.draw(vectors(layout, dtype))
    before = x.clone()
    first, again = (pack_payload(compressor(x, layout, Key(3, 1, 0))) for _ in range(2))
    assert torch.equal(x, before)
    assert torch.equal(first, again)


@each_compressor
@settings(max_examples=10)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS), dtype=DTYPES)
def test_contraction_with_the_claimed_delta(
    compressor: Compressor, data: st.DataObject, layout: Layout, dtype: torch.dtype
) -> None:
    """E|C(x) - x|^2 <= (1 - delta)|x|^2 on each piece: always, or for a random compressor in the mean of 200 keys.

    The mean of N draws of a variable in [0, M] exceeds its expectation by more than M sqrt(ln(1e9) / 2N) with
    probability below 1e-9 (Hoeffding); M is the largest error seen, doubled.
    """
    x = data.draw(vectors(layout, dtype))
    draws = 1 if compressor.draws is Draws.NOTHING else 200
    errors = [squared_errors(compressor, x, layout, Key(seed, 7, 0)) for seed in range(draws)]
    scope = layout if getattr(compressor, "per", "parameter") == "parameter" else layout.whole()
    for place, (piece, view) in enumerate(scope.views(x)):
        seen = [error[place] for error in errors]
        noise = 0.0 if draws == 1 else 2 * max(seen) * math.sqrt(math.log(1e9) / (2 * draws))
        bound = (1 - compressor.delta(piece.numel)) * float(view.double().square().sum())
        rounding = 8 * eps(dtype) * float(view.double().square().sum())
        assert sum(seen) / draws <= bound + noise + rounding


def squared_errors(compressor: Compressor, x: Tensor, layout: Layout, key: Key) -> list[float]:
    scope = layout if getattr(compressor, "per", "parameter") == "parameter" else layout.whole()
    gap = (decoded(compressor, x, layout, key) - x).double()
    return [float(view.square().sum()) for _, view in scope.views(gap)]


@each_compressor
def test_it_draws_as_it_says(compressor: Compressor) -> None:
    """Nothing: no key changes the message. Alike: the worker's does not, the step's does. Apart: either does."""
    layout = Layout.of([("a", 0, (60,)), ("b", 1, (7,))])
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def differs(keys: list[Key]) -> bool:
        first, *others = [decoded(compressor, x, layout, key) for key in keys]
        return any(not torch.equal(first, other) for other in others)

    workers = differs([Key(1, 2, worker) for worker in range(20)])
    seeds = differs([Key(seed, 2, 0) for seed in range(20)])
    said = compressor.draws
    assert (workers, seeds) == (said is Draws.APART, said is not Draws.NOTHING)


UNBIASED = [c for c in COMPRESSORS if c.omega(100) is not None]


@pytest.mark.parametrize("compressor", UNBIASED, ids=str)
@pytest.mark.parametrize("kind_seed", range(3))
def test_unbiased_with_the_claimed_variance(compressor: Compressor, kind_seed: int) -> None:
    """Over 1,500 keys, the mean is x and the variance within omega.

    The mean of N draws that lie within M of each other is off by more than sqrt(2 V L / N) + 7 L M / 3(N - 1), V the
    sample variance, with probability below 2 exp(-L) (Maurer and Pontil 2009).
    """
    layout, draws = Layout.of([("a", 0, (20,)), ("b", 1, (7,))]), 1500
    generator = torch.Generator().manual_seed(kind_seed)
    x = torch.randn(layout.numel, generator=generator, dtype=torch.float64) ** (1 + 2 * (kind_seed % 2))
    samples = torch.stack([decoded(compressor, x, layout, Key(0, step)) for step in range(draws)])
    unlikely, reach = math.log(2e9), float(x.norm())
    slack = (2 * samples.var(0) * unlikely / draws).sqrt() + 7 * unlikely * reach / (3 * (draws - 1))
    assert ((samples.mean(0) - x).abs() <= slack).all()
    for piece, view in layout.views((samples - x).square().mean(0)):
        omega = compressor.omega(piece.numel)
        assert omega is not None
        assert float(view.sum()) <= omega * float(x[piece.part].square().sum()) * (1 + 6 / math.sqrt(draws))


@settings(max_examples=60)
@given(
    data=st.data(), layout=st.sampled_from(LAYOUTS), dtype=DTYPES, ratio=st.sampled_from([0.01, 0.1, 0.29, 0.5, 1.0])
)
def test_topk_is_exact_and_ties_go_to_the_lower_index(
    data: st.DataObject, layout: Layout, dtype: torch.dtype, ratio: float
) -> None:
    """Against a stable sort, piece by piece."""
    x = data.draw(vectors(layout, dtype))
    chosen = TopK(ratio)(x, layout, Key()).positions.tolist()
    expected: list[int] = []
    for piece, view in layout.views(x):
        k = min(piece.numel, max(1, round(ratio * 100) * piece.numel // 100))
        order = sorted(range(piece.numel), key=lambda i: (-abs(float(view[i])), i))
        expected += sorted(piece.offset + i for i in order[:k])
    assert chosen == expected


@pytest.mark.parametrize(
    "compressor", [c for c in COMPRESSORS if getattr(c, "per", "parameter") == "parameter"], ids=str
)
@settings(max_examples=10)
@given(data=st.data())
def test_each_piece_is_compressed_on_its_own(compressor: Compressor, data: st.DataObject) -> None:
    """Whatever else is in the buffer, and wherever the piece stands in it."""
    layout = LAYOUTS[-1]
    x, key = data.draw(vectors(layout, torch.float32)), Key(9, 4, 1)
    together = decoded(compressor, x, layout, key)
    for piece, view in layout.views(x):
        alone = Layout.of([(piece.name, piece.index, piece.shape)])
        assert torch.equal(decoded(compressor, view.clone(), alone, key), together[piece.part])
