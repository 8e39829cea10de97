"""Kills at random moments while two ranks save: nothing saved is lost, and the ranks always agree.

    python -m tests.faults.rotating_kills --trials 200 [--seed 0] [--naive]

Half of the kills come by the clock, half right before a random call to the file system. Ends with status 1 if a
checkpoint was lost, if the ranks loaded different steps, or if one hung. `--naive` shows what plain `torch.save` loses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tests.faults.kills import Naive, Safe, Tally, Trials

VICTIMS = ("rank 0", "rank 1", "both")


def show(tally: Tally, console: Console) -> None:
    """When the kills came, what was passed over afterwards, and what was found."""
    table = Table("what the disk held after the kill", box=SIMPLE_HEAD, pad_edge=False)
    for victim in (*VICTIMS, "all"):
        table.add_column(victim, justify="right")
    for moment in sorted({moment for moment, _ in tally.moments}):
        counts = [tally.moments[moment, victim] for victim in VICTIMS]
        table.add_row(moment, *map(str, counts), str(sum(counts)))
    console.print(table)
    for reason, count in tally.skipped.most_common():
        console.print(f"{count:4} passed over: {reason}", markup=False)
    for finding, count in Counter(tally.findings).most_common():
        console.print(f"{count:4} FOUND: {finding}", markup=False)
    console.print(f"{tally.trials} kills over {tally.saves} saves: {len(tally.findings)} findings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--naive", action="store_true", help="write over one file a rank with torch.save instead")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Naive if options.naive else Safe, Path(folder), options.seed)
        for _ in track(trials.run(options.trials), "kills", options.trials, console=console):
            continue
    show(trials.tally, console)
    console.print(f"{time.perf_counter() - start:.0f} s, seed {options.seed}")
    sys.exit(1 if trials.tally.findings else 0)


if __name__ == "__main__":
    main()
