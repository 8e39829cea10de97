"""Coins that fall the same way for whoever holds their key."""

from __future__ import annotations

from torch import Tensor

from thinwire.checks import is_number
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback
from thinwire.ops import Key, first_uniforms
from thinwire.ops.keys import first_uniform

COIN = 1 << 20
"""The stream of keys that coins are tossed by: compressors draw from others."""


def toss(key: Key, probability: float) -> bool:
    """True with this probability: by a worker's key for each worker by itself, by a shared key for all alike."""
    return first_uniform(key.stream(COIN).at(0).number) < probability


def tosses(key: Key, workers: Tensor, probability: float) -> Tensor:
    """`toss` by the key of each of many workers, as booleans.

    >>> import torch
    >>> one_by_one = [toss(Key(step=1, worker=i), 0.5) for i in range(9)]
    >>> tosses(Key(step=1), torch.arange(9), 0.5).tolist() == one_by_one
    True
    """
    return first_uniforms(key.stream(COIN).at(0).across(workers)) < probability


def takes_part(rule: Feedback, key: Key) -> bool:
    """Whether the worker of this key sends in its round, where that is not the first one."""
    return rule.participation >= 1 or toss(key, rule.participation)


def check_probability(name: str, probability: float) -> None:
    """Check a probability in (0, 1]."""
    if not (is_number(probability) and 0 < probability <= 1):
        raise ConfigError(f"{name} probability must lie in (0, 1], got {probability!r}")
