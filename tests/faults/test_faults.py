"""One or two trials of each kind of fault; `python -m tests.faults.campaign` is the long form."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from tests.faults.kinds import KINDS, Kind, Worlds

from thinwire.lab import namespaces

pytestmark = pytest.mark.dist

ELSEWHERE = {"full disk: record"}
"""tests/unit/test_lines.py holds it."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    living = Worlds(tmp_path_factory.mktemp("worlds"))
    yield living
    living.close()


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name not in ELSEWHERE])
def test_nothing_hangs_nothing_is_lost_and_the_errors_are_clear(kind: Kind, worlds: Worlds) -> None:
    if kind.name == "link cut" and not namespaces.available():
        pytest.skip("links are cut by root alone, with iproute2")
    outcome = kind.trial(kind, worlds, Random(f"short {kind.name}"))
    assert outcome.is_right, "\n".join([*outcome.lost, *outcome.unclear, *outcome.hung])
