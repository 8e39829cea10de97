"""The settings: which method trains which transformer, on which text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from thinwire.engines.outer import sparse_loco
from thinwire.errors import ConfigError
from thinwire.spec import parse

DENSE = "plain(identity())"
RATE = 1e-3
"""AdamW's, tuned for the dense run; every other method takes it over as it is."""
ADAM, SGD, MUON = "adamw", "sgd", "muon"


@dataclass(frozen=True)
class Frame:
    """A transformer, how much text a step sees, and for how long."""

    width: int
    depth: int
    heads: int
    context: int
    workers: int
    batch: int
    """Windows of each worker."""
    steps: int


SCALES = {
    "small": Frame(width=96, depth=3, heads=4, context=64, workers=4, batch=4, steps=300),
    "full": Frame(width=384, depth=6, heads=6, context=256, workers=8, batch=8, steps=1000),
    "other": Frame(width=256, depth=8, heads=8, context=256, workers=8, batch=8, steps=1000),
}
"""`full` has 10.7 million parameters; `other` is the second model, for settings that were found on the first."""
METHODS = {
    "dense": (DENSE, ADAM),
    "memadam 1 %": ("memadam(topk(0.01, values=exponent4))", SGD),
    "memadam 0.5 %": ("memadam(topk(0.005, values=power4), refresh=32)", SGD),
    "memadam 0.25 %": ("memadam(topk(0.0025, values=exponent4), refresh=64)", SGD),
    "VGC": ("vgc()", ADAM),
    "Mem-SGD 1 %": ("memsgd(topk(0.01))", ADAM),
    "EF21-SGDM 1 %": ("ef21sgdm(topk(0.01))", ADAM),
    "QSGD": ("plain(qsgd(15))", ADAM),
}
"""What is compared where nothing else is asked for: a rule, and the optimizer behind it."""
ORTHOGONAL = {
    "Muon": ("ef21sgdm(identity())", MUON),
    "EF21-Muon 5 %": ("ef21sgdm(topk(0.05))", MUON),
    "EF21-Muon 1 %": ("ef21sgdm(topk(0.01))", MUON),
}
"""Steps of Newton and Schulz along the momentum: dense, and by the differences of EF21."""
NAMED = METHODS | ORTHOGONAL
OUTER = {
    "DiLoCo": (DENSE, 0.7, 0.9),
    "SparseLoCo": (str(sparse_loco().rule), 1.0, 0.0),
}
"""Outer steps: a rule, the outer rate, and Nesterov's momentum (Douillard et al. 2023; Sarfi et al. 2025)."""
INGREDIENTS = {
    "beta1 0.9": "memadam(topk(0.01, values=exponent4), beta1=0.9)",
    "no clipping": "memadam(topk(0.01, values=exponent4), clip=None)",
    "D every step": "memadam(topk(0.01, values=exponent4), refresh=1)",
    "values in 32 bits": "memadam(topk(0.01))",
    "decay 0.99": "memadam(topk(0.01, values=exponent4), decay=0.99)",
}
"""What each part of the method brings: one is changed in a run."""


@dataclass(frozen=True)
class AdaptiveSetting:
    """One run."""

    label: str
    rule: str
    """As thinwire writes it."""
    optimizer: str
    scale: str
    text: str
    """A file's name, or `python` for the source of Python's own library."""
    steps: int
    seed: int = 0
    rate: float = RATE
    every: int = 0
    """Steps between two exchanges of how far workers moved; 0: gradients, at every step."""
    outer_rate: float = 1.0
    outer_momentum: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.label}, seed {self.seed}"

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def optimizer_of(rule: str) -> str:
    """SGD for a rule that brings its own Adam, AdamW for any other."""
    return SGD if rule.startswith("memadam") else ADAM


def settings(
    methods: Sequence[str],
    scale: str,
    text: str,
    steps: int | None,
    seeds: int,
    *,
    ingredients: bool = False,
    every: Sequence[int] = (),
) -> list[AdaptiveSetting]:
    """Every method at every seed; a method is a name of NAMED or OUTER, or a rule's text.

    With windows (`every`), rules and those of OUTER exchange how far workers moved.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")
    outside = [method for method in methods if method in OUTER or (every and method not in NAMED)]
    inside = [method for method in methods if method not in outside]
    chosen = {method: NAMED.get(method) or (str(parse(method)), optimizer_of(method)) for method in inside}
    if ingredients:
        chosen |= {label: (rule, SGD) for label, rule in INGREDIENTS.items()}
    length = steps if steps is not None else SCALES[scale].steps
    first = [AdaptiveSetting(label, rule, by, scale, text, length) for label, (rule, by) in chosen.items()]
    if outside and not every:
        raise ConfigError(f"{outside[0]} exchanges every so many steps: say how many, such as --every 30")
    first += [_outer(method, window, scale, text, length) for window in every for method in outside]
    return [replace(one, seed=seed) for seed in range(seeds) for one in first]


def _outer(method: str, every: int, scale: str, text: str, steps: int) -> AdaptiveSetting:
    if every < 1 or steps % every:
        raise ConfigError(f"every must be at least 1 and divide the {steps} steps, got {every}; change --steps")
    rule, rate, momentum = OUTER.get(method) or (str(parse(method)), 1.0, 0.0)
    label = f"{method}, H = {every}"
    return AdaptiveSetting(label, rule, ADAM, scale, text, steps, every=every, outer_rate=rate, outer_momentum=momentum)
