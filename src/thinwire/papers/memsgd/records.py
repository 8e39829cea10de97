"""Records of the Mem-SGD experiments, read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thinwire.papers.memsgd.run import Outcome, Point
from thinwire.papers.memsgd.settings import Setting
from thinwire.training.outcomes import read_runs

KIND = "memsgd"


def read_outcomes(path: Path) -> list[Outcome]:
    """The runs of a record."""
    return read_runs(path, KIND, _outcome)


def _outcome(line: dict[str, Any]) -> Outcome:
    setting, curve = line.pop("setting"), line.pop("curve")
    return Outcome(setting=Setting(**setting), curve=tuple(Point(*point) for point in curve), **line)
