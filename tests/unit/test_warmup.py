"""Numbers that move with the step."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire import Key, Layout, TopK, Warmup
from thinwire.errors import ConfigError
from thinwire.warmup import at, bounds

positive = st.floats(1e-6, 1e6)


@given(positive, positive, st.integers(1, 1000), st.integers(0, 2000))
def test_warmup_is_geometric_between_its_ends_and_then_stays(start: float, end: float, steps: int, step: int) -> None:
    ramp = Warmup(start, end, steps)
    slack = 1 + 64 * torch.finfo(torch.float64).eps
    assert min(start, end) / slack <= ramp.at(step) <= max(start, end) * slack
    assert ramp.at(0) == start
    assert ramp.at(steps) == ramp.at(steps + step) == end
    if step + 2 <= steps:
        ratios = [ramp.at(step + i + 1) / ramp.at(step + i) for i in range(2)]
        assert math.isclose(ratios[0], ratios[1], rel_tol=1e-10)


def test_a_constant_is_its_own_schedule() -> None:
    assert at(0.3, 17) == 0.3
    assert bounds(0.3) == (0.3, 0.3)
    assert bounds(Warmup(0.1, 0.5, 3)) == bounds(Warmup(0.5, 0.1, 3)) == (0.1, 0.5)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 0), (-1, 1), (math.nan, 1), (1, math.nan)])
def test_warmup_ends_must_be_positive(start: float, end: float) -> None:
    with pytest.raises(ConfigError, match=r"positive numbers, got .*(0|-1|nan)"):
        Warmup(start, end, 3)


@pytest.mark.parametrize("steps", [0, -1])
def test_warmup_needs_a_step(steps: int) -> None:
    with pytest.raises(ConfigError, match=rf"at least 1, got {steps}"):
        Warmup(0.5, 0.1, steps)


@pytest.mark.parametrize(("start", "end", "steps"), [("a", 1, 1), (1, "a", 1), (1, 1, "a"), (1, 1, 2.5)])
def test_warmup_refuses_other_types(start: object, end: object, steps: object) -> None:
    with pytest.raises(ConfigError):
        Warmup(start, end, steps)  # type: ignore[arg-type]


def test_a_moving_ratio_moves_the_number_of_entries_sent() -> None:
    layout = Layout.of([("x", 0, (100,))])
    compressor = TopK(Warmup(0.5, 0.05, 4))
    sent = [compressor(torch.randn(100), layout, Key(step=t)).positions.numel() for t in range(6)]
    assert sent[0] == 50
    assert sent[4:] == [5, 5]
    assert sent == sorted(sent, reverse=True)
    assert compressor.delta(100) == 0.05
