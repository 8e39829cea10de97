"""Deliberate faults against real training runs: nothing hangs, nothing is lost, every error can be understood.

    python -m tests.faults.campaign [--trials 120] [--seed 0] [--only KIND] [--words]

Each trial is one fault in a run of 2 or 3 gloo processes under thinwire. Where the run can go on, it must end with the
parameters of an undisturbed run, or of one without the refused step, bit for bit; where a rank is lost, the others must
raise `PeerLost`, hold the state of the last finished step, and a restart must continue bit for bit. Ends with status 1
if anything was lost or hung, or if an error lacked what its kind must say. Links are cut only as root.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tests.faults.findings import Outcome
from tests.faults.kinds import KINDS, Kind, Worlds, possible


def shared_out(kinds: Sequence[Kind], trials: int) -> list[Kind]:
    """So many trials, each kind by its weight and at least once; alike ones stand together."""
    total = sum(kind.weight for kind in kinds)
    return [kind for kind in kinds for _ in range(max(1, round(trials * kind.weight / total)))]


def outcomes(kinds: Sequence[Kind], seed: int, folder: Path) -> Iterator[Outcome]:
    """Do the trials, one after the other."""
    worlds = Worlds(folder)
    try:
        for place, kind in enumerate(kinds):
            yield kind.trial(kind, worlds, Random(f"{seed} {place} {kind.name}"))
    finally:
        worlds.close()


def show(found: Sequence[Outcome], console: Console) -> None:
    """The table: kind by kind, then everything that was not right."""
    table = Table("fault", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("trials", "on each rank that lives", "median s", "longest s", "lost", "unclear", "hung"):
        table.add_column(column, justify="left" if column.startswith("on") else "right")
    for name in dict.fromkeys(outcome.kind for outcome in found):
        mine = [outcome for outcome in found if outcome.kind == name]
        errors = Counter(error for outcome in mine for error in outcome.errors)
        seconds = sorted(outcome.seconds for outcome in mine)
        counts = [sum(bool(getattr(outcome, what)) for outcome in mine) for what in ("lost", "unclear", "hung")]
        said = ", ".join(f"{error} {count}" for error, count in errors.most_common())
        times = [f"{seconds[len(seconds) // 2]:.2f}", f"{seconds[-1]:.2f}"]
        table.add_row(name, str(len(mine)), said, *times, *map(str, counts))
    console.print(table)
    for outcome in found:
        for what in (*outcome.lost, *outcome.unclear, *outcome.hung):
            console.print(f"FOUND {outcome.kind}: {what}", markup=False)


def read_aloud(found: Sequence[Outcome], console: Console) -> None:
    """Every error that was raised, once for each wording: numbers apart, they are the same."""
    told: set[str] = set()
    for outcome in found:
        for text in outcome.texts:
            wording = re.sub(r"\d+(\.\d+)?|'[\w./]+'|/\S+", "_", text)
            if wording not in told:
                console.print(f"{outcome.kind}: {text}\n", markup=False)
            told.add(wording)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[kind.name for kind in KINDS], help="one kind alone")
    parser.add_argument("--words", action="store_true", help="show every wording of the errors, to be read aloud")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    kinds = [kind for kind in possible() if options.only in (None, kind.name)]
    for kind in set(KINDS) - set(possible()):
        console.print(f"{kind.name}: left out, it needs root and iproute2")
    start, trials, found = time.perf_counter(), shared_out(kinds, options.trials), []
    with tempfile.TemporaryDirectory() as folder:
        for outcome in track(outcomes(trials, options.seed, Path(folder)), "faults", len(trials), console=console):
            found.append(outcome)
    if options.words:
        read_aloud(found, console)
    show(found, console)
    wrong = sum(not outcome.is_right for outcome in found)
    console.print(f"{len(found)} trials in {time.perf_counter() - start:.0f} s, seed {options.seed}: {wrong} not right")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
