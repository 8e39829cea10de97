"""A rule for each parameter, chosen by its name and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ClassVar

from thinwire.checks import is_whole
from thinwire.compressors import Compressor, Identity
from thinwire.errors import AttachError, ConfigError
from thinwire.feedback.base import Feedback
from thinwire.feedback.plain import Plain
from thinwire.named import Named

DENSE = Plain(Identity())


@dataclass(frozen=True)
class Route(Named):
    """Shell patterns over parameter names, first match wins; parameters below `min_numel` numbers travel dense.

    >>> from thinwire import EF21, Identity, TopK
    >>> route = Route({"embed.*": Identity(), "*": EF21(TopK(0.01))}, min_numel=1024)
    >>> str(route.rule("layer.weight", 4096)), str(route.rule("layer.bias", 64))
    ('ef21(topk(0.01))', 'plain(identity())')
    """

    table: Mapping[str, Feedback]
    min_numel: int = field(default=1024)
    name: ClassVar[str] = "route"

    def __post_init__(self) -> None:
        if not isinstance(self.table, Mapping) or not self.table:
            raise ConfigError(f"route takes a table of patterns and rules, got {self.table!r}")
        if odd := [pattern for pattern in self.table if not isinstance(pattern, str)]:
            raise ConfigError(f"route patterns are texts such as 'embed.*', got {odd[0]!r}")
        if not (is_whole(self.min_numel) and self.min_numel >= 0):
            raise ConfigError(f"route min_numel must be at least 0, got {self.min_numel!r}")
        object.__setattr__(self, "table", {pattern: as_feedback(rule) for pattern, rule in self.table.items()})

    def __eq__(self, other: object) -> bool:
        """Order decides which pattern wins, so it is part of a route: two tables are compared as they are written."""
        return isinstance(other, Route) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def rule(self, parameter: str, numel: int) -> Feedback:
        """The rule of one parameter."""
        if numel < self.min_numel:
            return DENSE
        for pattern, rule in self.table.items():
            if fnmatchcase(parameter, pattern):
                return rule
        raise AttachError(
            f"no pattern of the route matches parameter {parameter!r}; patterns: {', '.join(map(repr, self.table))}. "
            'Add a last entry "*"'
        )


Rule = Feedback | Route
"""What a user attaches: one rule for all parameters, or a route."""


def as_feedback(value: object) -> Feedback:
    """A rule, or a bare compressor as `plain(compressor)`."""
    if isinstance(value, Compressor):
        return Plain(value)
    if isinstance(value, Feedback):
        return value
    raise ConfigError(f"expected a rule such as ef21(topk(0.01)) or a compressor, got {value!r}")


def as_rule(value: object) -> Rule:
    """A route or a rule; a bare compressor as `plain(compressor)`."""
    return value if isinstance(value, Route) else as_feedback(value)


def rule_of(rule: Rule, parameter: str, numel: int) -> Feedback:
    """The rule of one parameter under a rule or a route; refuses a parameter that the rule cannot serve."""
    chosen = rule.rule(parameter, numel) if isinstance(rule, Route) else rule
    chosen.admit(parameter, numel)
    return chosen
