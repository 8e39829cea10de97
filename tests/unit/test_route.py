"""A rule for each parameter."""

from __future__ import annotations

import pytest
import torch

from thinwire import EF21, Identity, MemSGD, Plain, Route, Simulation, TopK, parse
from thinwire.errors import AttachError, ConfigError
from thinwire.feedback.route import as_feedback, rule_of

DENSE = Plain(Identity())
SPARSE = EF21(TopK(0.01))


def test_the_first_match_wins_and_small_parameters_travel_dense() -> None:
    route = Route({"embed.*": Identity(), "*.bias": MemSGD(TopK(0.1)), "*": SPARSE}, min_numel=100)
    assert route.rule("embed.weight", 10_000) == DENSE
    assert route.rule("layer.bias", 100) == MemSGD(TopK(0.1))
    assert route.rule("layer.weight", 100) == SPARSE
    assert route.rule("layer.weight", 99) == DENSE


def test_patterns_are_shell_patterns_with_case() -> None:
    route = Route({"L[01].w?": Identity(), "*": SPARSE}, min_numel=0)
    assert route.rule("L1.wa", 5) == DENSE
    assert route.rule("l1.wa", 5) == SPARSE
    assert route.rule("L2.wa", 5) == SPARSE


def test_a_parameter_without_a_pattern_is_named() -> None:
    route = Route({"embed.*": Identity()}, min_numel=0)
    with pytest.raises(AttachError, match=r"no pattern .* matches parameter 'head.weight'; patterns: 'embed.\*'. Add"):
        Simulation({"head.weight": torch.zeros(3)}, route, 2)


@pytest.mark.parametrize("table", [{}, None, [("*", Identity())], "ef21", TopK(0.1)], ids=repr)
def test_a_table_must_be_a_mapping_with_entries(table: object) -> None:
    with pytest.raises(ConfigError, match="route takes a table of patterns and rules, got"):
        Route(table)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [0.1, "ef21", None, Route({"*": Identity()})], ids=str)
def test_an_entry_must_be_a_rule_or_a_compressor(rule: object) -> None:
    with pytest.raises(ConfigError, match="expected a rule such as"):
        Route({"*": rule})  # type: ignore[dict-item]
    if not isinstance(rule, Route):
        with pytest.raises(ConfigError, match="expected a rule such as"):
            as_feedback(rule)


def test_a_pattern_must_be_text() -> None:
    with pytest.raises(ConfigError):
        Route({1: Identity()})  # type: ignore[dict-item]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_numel must be at least 0, got -1"):
        Route({"*": Identity()}, min_numel=-1)


@pytest.mark.parametrize("size", ["10", 1.5, None], ids=repr)
def test_a_size_of_another_type_is_refused(size: object) -> None:
    with pytest.raises(ConfigError):
        Route({"*": Identity()}, min_numel=size)  # type: ignore[arg-type]


def test_order_is_part_of_a_route() -> None:
    """Two routes that choose differently are not equal, and equal routes have equal hashes."""
    one = Route({"a*": Identity(), "*": SPARSE})
    two = Route({"*": SPARSE, "a*": Identity()})
    assert one != two
    assert hash(one) == hash(Route({"a*": Identity(), "*": SPARSE}))
    assert parse(str(one)) == one


def test_the_table_given_may_change_without_changing_the_route() -> None:
    table = {"*": SPARSE}
    route = Route(table, min_numel=0)
    table["*"] = DENSE
    assert route.rule("x", 1) == SPARSE


def test_a_bare_compressor_is_a_plain_rule() -> None:
    assert as_feedback(TopK(0.1)) == Plain(TopK(0.1))
    assert rule_of(SPARSE, "x", 5) is SPARSE


def test_each_parameter_is_served_by_its_own_rule() -> None:
    route = Route({"a": Identity(), "b": EF21(TopK(count=1), start="zero"), "c": MemSGD(TopK(count=1))}, min_numel=0)
    parameters = {name: torch.zeros(3) for name in "abc"}
    simulation = Simulation(parameters, route, 1)
    gradient = torch.tensor([1.0, 2, 3])
    out = simulation.exchange([dict.fromkeys("abc", gradient)], dict.fromkeys("abc", 1.0))
    assert {name: value.tolist() for name, value in out.items()} == {"a": [1, 2, 3], "b": [0, 0, 0], "c": [0, 0, 3]}
    assert list(simulation.state_dict()["slots"]) == ["local/rank0/b", "error/rank0/c", "mean/b"]
