"""Every back-end of the random draw against its definition: the same indices."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS

from thinwire import ops
from thinwire.ops import Key, reference


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("numel", [0, 1, 2, 63, 64, 65, 1000, 65_537, 300_001])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_is_the_reference(name: str, device: str, numel: int, threads: int) -> None:
    where = torch.device(device)
    torch.set_num_threads(threads)
    try:
        for k in {0, 1, 2, numel // 1000, numel // 100, numel // 2, numel - 1, numel, numel + 1} - {-1}:
            for number in (0, 1, -1, (1 << 63), (1 << 64) - 1, Key(3, step=k).number):
                with ops.backend(name):
                    found = ops.randk_indices(number, numel, k, where)
                assert torch.equal(found, reference.randk_indices(_word(number), numel, k, where))
    finally:
        torch.set_num_threads(1)


def _word(number: int) -> int:
    return number & ((1 << 64) - 1)


def test_an_unlucky_draw_is_settled_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a margin proves too small, whether too few or too many words came, the indices are the same."""
    draw = pytest.importorskip("thinwire.ops.cpu.draw")
    expected = reference.randk_indices(7, 10_000, 500, torch.device("cpu"))
    for deviations in (-3, 0, 100):
        monkeypatch.setattr(draw, "DEVIATIONS", deviations)
        assert torch.equal(draw.drawn(7, 10_000, 500), expected)
