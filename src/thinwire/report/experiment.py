"""An experiment: how its runs are read from a record, and the sections that show them on a page or in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from thinwire.report.page import Section
from thinwire.report.record_file import Line, check_experiment, read_record

RunT = TypeVar("RunT")


@dataclass(frozen=True)
class Experiment(Generic[RunT]):
    """What `thinwire report` must know to draw a record whose head has this name."""

    name: str
    read: Callable[[Sequence[Line]], list[RunT]]
    """The runs of a record, from the lines behind its head."""
    sections: Callable[[Sequence[RunT]], list[Section]]
    """What a page shows of the runs."""

    def runs(self, path: Path) -> list[RunT]:
        """The runs of the record at `path`, which must be one of this experiment."""
        return self.read(check_experiment(read_record(path), self.name).lines)
