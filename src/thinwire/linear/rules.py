"""The project's rules as the lock-free engine runs them: what a step writes, and whether the rest is remembered."""

from __future__ import annotations

from typing import NamedTuple

from thinwire.compressors import QSGD, Compressor, HardThreshold, Identity, RandK, TopK
from thinwire.compressors.density import kept
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, MemSGD, Plain, Rule
from thinwire.spec import rule_from
from thinwire.warmup import Warmup

ALL, TOP, RANDOM, LEVELS, ABOVE = range(5)
"""What is written: all that is not zero, the largest k, k at random, stochastic levels of all, or what is large."""
KNOWN = (
    "memsgd or plain of identity, topk, randk or threshold, and plain(qsgd(levels, bucket=d)), without options, for "
    "its threads work on one vector, and no server holds what other rules need"
)


class StepRule(NamedTuple):
    """A rule, as the compiled steps read it."""

    writes: int
    remembers: bool
    kept: int
    """The most that a step may write; of LEVELS, their number."""
    probability: float = 1.0
    """That RANDOM writes at all: below one for k < 1 (remark 2.3)."""
    tau: float = 0.0
    """ABOVE writes where |p| ≥ η tau: a gradient's units, as everywhere."""


def step_rule(rule: Rule | str, d: int) -> StepRule:
    """The rule for d coordinates; refuses one that the engine does not run, or whose k exceeds d."""
    rule = rule_from(rule)
    if not isinstance(rule, MemSGD | Plain) or (isinstance(rule, MemSGD) and rule != MemSGD(rule.compressor)):
        raise ConfigError(f"the lock-free engine runs {KNOWN}; got {rule}")
    return _step_rule(rule.compressor, isinstance(rule, MemSGD), rule, d)


def _step_rule(compressor: Compressor, remembers: bool, rule: Feedback, d: int) -> StepRule:
    match compressor:
        case Identity():
            return StepRule(ALL, False, d)  # of all, nothing is left to remember
        case TopK(ratio=ratio, count=count, values="full") if not isinstance(ratio, Warmup):
            return StepRule(TOP, remembers, _kept(compressor, ratio, count, d))
        case RandK(ratio=ratio, count=count, values="full", shared=False) if not isinstance(ratio, Warmup):
            probability = 1.0 if count is None else min(1.0, float(count))
            return StepRule(RANDOM, remembers, _kept(compressor, ratio, count, d), probability)
        case HardThreshold(tau=tau, values="full") if not isinstance(tau, Warmup):
            return StepRule(ABOVE, remembers, d, tau=float(tau))
        case QSGD(levels=levels, bucket=bucket) if not remembers:
            if bucket < d:
                raise ConfigError(f"the lock-free engine quantises whole gradients: write qsgd({levels}, {d})")
            return StepRule(LEVELS, remembers, levels)
    raise ConfigError(f"the lock-free engine runs {KNOWN}; got {rule}")


def _kept(compressor: Compressor, ratio: float | None, count: float | None, d: int) -> int:
    if count is not None and count > d:
        raise ConfigError(f"{compressor} keeps more than the {d} coordinates there are: take a count of at most {d}")
    return kept(d, ratio, count)
