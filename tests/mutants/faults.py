"""Faults to be found, read from `faults.txt`: each is one place of the source and what stands there instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path("src") / "thinwire"
LIST = Path(__file__).with_name("faults.txt")


@dataclass(frozen=True)
class Fault:
    """`old`, which stands once in the files under `place` of the package, becomes `new`."""

    place: str
    name: str
    old: str
    new: str

    def file(self, root: Path) -> Path:
        """The one file that holds the text; another number of places is an error: the list has rotted."""
        place = root / PACKAGE / self.place
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        holding = [file for file in files for _ in range(file.read_text().count(self.old))]
        if len(holding) != 1:
            raise LookupError(f"{self.place}: {self.name}: its text stands {len(holding)} times: {self.old!r}")
        return holding[0]

    def apply(self, root: Path) -> None:
        """Put the fault into the tree at `root`."""
        file = self.file(root)
        file.write_text(file.read_text().replace(self.old, self.new))


def read_faults(text: str) -> list[Fault]:
    """The faults of a text: blocks of a head `place: name`, lines that begin with - and lines that begin with +."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [_fault(block.splitlines()) for block in lines.strip().split("\n\n")]


def _fault(block: list[str]) -> Fault:
    place, _, name = block[0].partition(": ")
    old, new = ("\n".join(line[2:] for line in block[1:] if line[0] == mark) for mark in "-+")
    return Fault(place, name, old, new)


FAULTS = read_faults(LIST.read_text())
