"""Coins that fall the same way for whoever holds their key."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.checks import is_number
from thinwire.errors import ConfigError
from thinwire.ops import Key, first_uniforms
from thinwire.ops.keys import first_uniform

COIN = 1 << 20
"""The stream of keys that coins are tossed by: compressors draw from others."""


def toss(key: Key, probability: float) -> bool:
    """True with this probability: by a worker's key for each worker by itself, by a shared key for all alike."""
    return first_uniform(key.stream(COIN).at(0).number) < probability


def tossed(key: Key, probability: float) -> Sequence[int]:
    """The workers of a key for whom `toss` is true, each by its own key.

    >>> from thinwire.ops import JointKey
    >>> [i for i in range(9) if toss(Key(step=1, worker=i), 0.5)] == list(tossed(JointKey(step=1, ranks=range(9)), 0.5))
    True
    """
    heads = first_uniforms(key.stream(COIN).of_workers()) < probability
    return tuple(key.workers[row] for row in heads.nonzero().squeeze(1).tolist())


def check_probability(name: str, probability: float) -> None:
    """Check a probability in (0, 1]."""
    if not (is_number(probability) and 0 < probability <= 1):
        raise ConfigError(f"{name} probability must lie in (0, 1], got {probability!r}")
