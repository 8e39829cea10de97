"""One fault of each kind under torchft; `python -m tests.faults.elastic` does a hundred."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.faults.elastic import KINDS, campaign

from thinwire.lab import namespaces

pytestmark = [pytest.mark.dist, pytest.mark.slow]


@pytest.mark.parametrize("rule", ["memsgd(topk(0.1))", pytest.param("ef21(topk(0.1))", marks=pytest.mark.exhaustive)])
def test_replicas_are_lost_and_come_back_and_nothing_is_lost_with_them(rule: str) -> None:
    pytest.importorskip("torchft")
    pytest.importorskip("sklearn")
    kinds = KINDS if namespaces.available() else KINDS[:2]
    found = campaign(rule, len(kinds), seed=1, console=Console(quiet=True), kinds=kinds)
    assert not found.findings
    assert found.steps > 60
