"""Auto: dense, dense in 16 bits or compressed, for each bucket as the wire would have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from thinwire.compressors import Identity
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback
from thinwire.feedback.route import DENSE, Route, Rule, as_rule
from thinwire.named import Named


@dataclass(frozen=True)
class Auto(Named):
    """What `attach` takes in place of a rule: each bucket goes dense, in 16 bits, or by this rule, whichever is faster.

    Without a rule `attach` takes what `docs/choosing.md` recommends for the optimizer as it is. A rule must be one that
    with `identity()` in its compressor's place is dense training by the mean of what workers say: `plain`, `memsgd`,
    `memadam`, or a route to such. See `docs/auto.md`.

    >>> from thinwire import MemSGD, TopK
    >>> print(Auto(), Auto(MemSGD(TopK(0.01))))
    auto auto(memsgd(topk(0.01)))
    """

    rule: Rule | None = None
    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        if self.rule is None:
            return
        if isinstance(self.rule, Auto):
            raise ConfigError("auto takes the rule that it may choose, and not another auto: write auto(memsgd(...))")
        object.__setattr__(self, "rule", as_rule(self.rule))
        rules = each_rule(self.rule)
        for rule in rules:
            _check_served(rule)
        if all(isinstance(rule.compressor, Identity) for rule in rules):
            raise ConfigError(
                f"auto({self.rule}) has nothing to choose from: it considers dense in any case. Give it a rule that "
                "compresses, such as memsgd(topk(0.01)), or none"
            )

    def __str__(self) -> str:
        return self.name if self.rule is None else super().__str__()


def each_rule(rule: Rule) -> list[Feedback]:
    """The rules of a route, or the one rule."""
    return [*rule.table.values(), DENSE] if isinstance(rule, Route) else [rule]


def dense_form(rule: Feedback) -> Feedback:
    """The same rule, leaving nothing out: its state is as long and means the same.

    >>> from thinwire import MemSGD, TopK
    >>> print(dense_form(MemSGD(TopK(0.01), decay=0.95)))
    memsgd(identity(), decay=0.95)
    """
    changed: Feedback = replace(rule, compressor=Identity())  # type: ignore[type-var]  # every rule is a dataclass
    return changed


def _check_served(rule: Feedback) -> None:
    if not rule.dense_by_identity:
        raise ConfigError(
            f"auto cannot go over from {rule} to dense and back: its dense form is another algorithm. It serves plain, "
            "memsgd and memadam, such as auto(memsgd(topk(0.01)))"
        )
