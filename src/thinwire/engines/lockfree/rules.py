"""The project's rules as the lock-free engine runs them: what a step writes, and whether the rest is remembered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from thinwire.compressors import QSGD, Compressor, Identity, RandK, TopK
from thinwire.compressors.density import kept
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, MemSGD, Plain, Rule, as_rule
from thinwire.schedule import Warmup

ALL, TOP, RANDOM, LEVELS = range(4)
"""What is written: all that is not zero, the largest k, k at random, or stochastic levels of all."""
KNOWN = "memsgd or plain of identity, topk or randk, and plain(qsgd(levels, bucket=d))"


class Code(NamedTuple):
    """A rule, as the compiled steps read it."""

    writes: int
    remembers: bool
    kept: int
    """k of TOP and RANDOM, the levels of LEVELS."""
    probability: float
    """That RANDOM writes at all: below one for k < 1 (remark 2.3)."""


@dataclass(frozen=True)
class Compiled:
    """A rule and its code for d coordinates."""

    rule: Feedback
    code: Code

    @staticmethod
    def of(rule: Rule, d: int) -> Compiled:
        """Refuses a rule that the engine does not run, or whose k exceeds d."""
        rule = as_rule(rule)
        if not isinstance(rule, MemSGD | Plain):
            raise ConfigError(f"the lock-free engine runs {KNOWN}; got {rule}")
        writes, count, probability = _writes(rule.compressor, rule, d)
        remembers = isinstance(rule, MemSGD) and writes != ALL  # of all, nothing is left to remember
        return Compiled(rule, Code(writes, remembers, count, probability))


def _writes(compressor: Compressor, rule: Feedback, d: int) -> tuple[int, int, float]:
    match compressor:
        case Identity():
            return ALL, d, 1.0
        case TopK(ratio=ratio, count=count, values="full") if not isinstance(ratio, Warmup):
            return TOP, _kept(compressor, ratio, count, d), 1.0
        case RandK(ratio=ratio, count=count, values="full", shared=False) if not isinstance(ratio, Warmup):
            sure = count is None or count >= 1
            return RANDOM, _kept(compressor, ratio, count, d), 1.0 if sure or count is None else float(count)
        case QSGD(levels=levels, bucket=bucket) if isinstance(rule, Plain):
            if bucket < d:
                raise ConfigError(f"the lock-free engine quantises whole gradients: write qsgd({levels}, {d})")
            return LEVELS, levels, 1.0
    raise ConfigError(f"the lock-free engine runs {KNOWN}; got {rule}")


def _kept(compressor: Compressor, ratio: float | None, count: float | None, d: int) -> int:
    if count is not None and count > d:
        raise ConfigError(f"{compressor} keeps more than the {d} coordinates there are: take a count of at most {d}")
    return kept(d, ratio, count)
