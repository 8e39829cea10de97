"""Records of the EF21 experiments, read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thinwire.papers.ef21.course import Reached
from thinwire.papers.ef21.run import Outcome
from thinwire.papers.ef21.settings import Setting
from thinwire.training.outcomes import read_runs

KIND = "ef21"


def read_outcomes(path: Path) -> list[Outcome]:
    """The runs of a record."""
    return read_runs(path, KIND, _outcome)


def _outcome(line: dict[str, Any]) -> Outcome:
    setting, reached, curve = line.pop("setting"), line.pop("reached"), line.pop("curve")
    return Outcome(
        setting=Setting(**setting),
        reached=tuple(Reached(**one) for one in reached),
        curve=tuple((step, value) for step, value in curve),
        **line,
    )
