"""The candidates: methods that advice is asked about, by their texts, and those of an optimizer where none is named."""

from __future__ import annotations

import re

import thinwire
from thinwire.engines.outer import Outer, sparse_loco
from thinwire.errors import AttachError, ConfigError
from thinwire.feedback import Need, Route, Rule
from thinwire.lab.setting import ALONE, DENSE, is_rule, lab_method, powersgd_rank
from thinwire.training.config import brings_momentum

FULL = (DENSE, "fp16")
"""Methods that lose nothing, or next to nothing: what compression has to be faster than."""
TORCHS = (*FULL, "powersgd1")
WHOLE = ("memsgd(topk(0.01))", "memsgd(topk(0.001))")
"""Shown whatever the optimizer: what few bytes take."""
OWN = {
    "sgd": ("memsgd(topk(0.01))", "memsgd(topk(0.01, values=power4))"),
    "momentum": ("dgc(topk(0.01))", "dgc(topk(0.01, values=power4))"),
    "adam": ("memadam(topk(0.01, values=power4))", "memadam(topk(0.0025, values=exponent4), refresh=64)"),
}
"""What docs/choosing.md names for an optimizer, at two densities or formats; the first is what is advised."""


def recommended(optimizer: str) -> tuple[str, ...]:
    """The methods of an optimizer, by its name in any spelling.

    >>> recommended("AdamW")[0], recommended("sgd")[0]
    ('memadam(topk(0.01, values=power4))', 'memsgd(topk(0.01))')
    """
    name = optimizer.lower()
    return OWN["adam"] if "adam" in name else OWN.get(name, OWN["sgd"])


def candidates(text: str | None, optimizer: str, *, every: int = 30) -> tuple[str, ...]:
    """torch's own, then the methods of a text with semicolons between; or those of the optimizer, and outer steps."""
    usual = (*recommended(optimizer), *WHOLE, str(sparse_loco(every)))
    words = usual if text is None else tuple(word for word in text.split(";") if word.strip())
    return tuple(dict.fromkeys([*TORCHS, *map(candidate, words)]))


def candidate(text: str) -> str:
    """The one spelling of a method: one of torch's, a rule, or outer steps; refuses what cannot be rehearsed.

    >>> candidate("memsgd( topk(0.010) )"), candidate("outer(memsgd(topk(0.01)), every=15)")
    ('memsgd(topk(0.01))', 'outer(memsgd(topk(0.01)), every=15)')
    """
    outer = outer_of(text)
    if outer is not None:
        return str(outer)
    method = lab_method(text)
    if method == ALONE:
        raise ConfigError(f"{ALONE!r} exchanges nothing, and is always shown; name methods that exchange")
    if is_rule(method):
        _check_needs(thinwire.parse(method))
    return method


def _check_needs(rule: Rule) -> None:
    rules = rule.table.values() if isinstance(rule, Route) else (rule,)
    for each in rules:
        if Need.AGREEMENT in each.needs:
            raise AttachError(
                f"{each} needs {Need.AGREEMENT.value}, which a rehearsal does not take: measure it with "
                "`thinwire lab`, or leave it out"
            )
        if each.needs & {Need.MOMENTS, Need.PREVIOUS, Need.FULL}:
            raise AttachError(
                f"{each} needs more of a backward pass than its gradients, which a rehearsal does not take: measure it "
                "with `thinwire lab`, or leave it out"
            )


def outer_of(text: str) -> Outer | None:
    """The outer steps that a text names; None where it names none."""
    match = re.fullmatch(r"outer\((.+), *every=(\d+)\)", text.strip())
    return None if match is None else Outer(thinwire.parse(match[1]), every=int(match[2]))


def compresses(method: str) -> bool:
    """Whether it sends less than all numbers in 16 bits."""
    return method not in FULL


def own_optimizer(method: str) -> bool:
    """Whether the optimizer beside it is plain SGD, since the rule brings the rest."""
    return outer_of(method) is None and is_rule(method) and brings_momentum(method)


def one_bucket(method: str) -> bool:
    """torch's PowerSGD hook hangs on gloo with several buckets in flight."""
    return powersgd_rank(method) is not None
