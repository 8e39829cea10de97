"""A few kills while two ranks save; `python -m tests.faults.rotating_kills` is the long form."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.kills import Safe, Trials


@pytest.mark.dist
@pytest.mark.slow
def test_a_kill_while_saving_loses_nothing(tmp_path: Path) -> None:
    trials = Trials(Safe, tmp_path, seed=1)
    for tally in trials.run(5):
        assert not tally.findings
    assert trials.tally.trials == 5
    assert not trials.tally.findings
