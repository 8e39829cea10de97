"""Contests of compressors that send every number in a few bits: to encode, and to decode into a sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire import QSGD, Key, Natural, ScaledSign
from thinwire.bench.contest import Contest, by_reference
from thinwire.bench.inputs import Inputs
from thinwire.compressors.base import Compressor

LEVELS = QSGD(15, 512)


def sign(given: Inputs) -> Contest:
    """Scaled sign: a bit for each number, and the mean magnitude."""
    encoded = _encode(ScaledSign(), given)
    return Contest(encoded.ours, encoded.torch, lambda x: (np.abs(x).mean(), np.packbits(x < 0, bitorder="little")))


def sign_decode(given: Inputs) -> Contest:
    """Scaled sign, added to a sum."""
    decoded = _decode(ScaledSign(), given)
    x = given.second.cpu().numpy()
    bits, scale = np.packbits(x < 0, bitorder="little"), np.abs(x).mean()

    def by_numpy(out: Any) -> None:
        out += np.where(np.unpackbits(bits, count=out.size, bitorder="little"), -scale, scale)

    return Contest(decoded.ours, decoded.torch, by_numpy)


def qsgd(given: Inputs) -> Contest:
    """QSGD with 15 levels in buckets of 512."""
    return _encode(LEVELS, given)


def qsgd_decode(given: Inputs) -> Contest:
    """QSGD, added to a sum."""
    return _decode(LEVELS, given)


def natural(given: Inputs) -> Contest:
    """Natural compression: random powers of two."""
    return _encode(Natural(), given)


def natural_decode(given: Inputs) -> Contest:
    """Natural compression, added to a sum."""
    return _decode(Natural(), given)


def _encode(compressor: Compressor, given: Inputs) -> Contest:
    layout = given.layout
    return Contest(
        lambda x: compressor(x, layout, Key()),
        by_reference(lambda x: compressor(x, layout, Key())),
    )


def _decode(compressor: Compressor, given: Inputs) -> Contest:
    payload = compressor(given.second, given.layout, Key())
    return Contest(payload.add_to, by_reference(payload.add_to))
