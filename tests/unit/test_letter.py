"""What is read of a letter that may not count."""

from __future__ import annotations

import pytest
import torch

from thinwire import Key, Layout, TopK
from thinwire.errors import WireError
from thinwire.payload import Beside
from thinwire.payload.letter import FINITE, Expected, refuse, write

LAYOUT = Layout.of([("a", 3, (2, 3)), ("b", 5, (4,))])
EXPECTED = Expected(7, "step 1", len(LAYOUT.pieces), ((LAYOUT, torch.float32),), Key())


def letter_with(flag: int) -> torch.Tensor:
    """A letter whose second moments are those of a gradient that has NaN."""
    x = torch.arange(float(LAYOUT.numel))
    moments = torch.full((sum(piece.factors for piece in LAYOUT.pieces),), torch.nan, dtype=torch.bfloat16)
    payload = Beside(moments, TopK(count=1)(x, LAYOUT, Key()))
    return write([payload], EXPECTED.digest, torch.tensor(flag), 1).message


def test_what_stands_in_a_letter_whose_flag_is_raised_is_no_damage() -> None:
    """It was made of numbers that are not finite; the flag says so, and the step is refused for that."""
    refuse(letter_with(1), EXPECTED, 1)


def test_the_same_in_a_letter_without_a_flag_is_named() -> None:
    with pytest.raises(WireError, match=r"rank 1: .*second moments that are none"):
        refuse(letter_with(FINITE), EXPECTED, 1)
