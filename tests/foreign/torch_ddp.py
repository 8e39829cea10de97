"""torch's own DDP tests, with every DDP model that they build attached to a rule: nothing they assert may change.

    python -m tests.foreign.torch_ddp [--rule RULE]... [--only PATTERN] [--world 2] [--no-stand-in] [--tracebacks]

The tests are those of `torch/testing/_internal/distributed/distributed_test.py` in the installed wheel, over gloo. Most
ask for two GPUs; here the CPU stands in for them, unless --no-stand-in. Each is run plainly first; those that pass and
build a DDP model are run again under each rule. A table says what became of each:

    pass      the test passes with the model attached
    refused   `attach` refused every model of the test, for the reason shown
    own hook  the test registers a comm hook of its own, and DDP takes only one
    any hook  the test fails, but so it does with torch's own allreduce_hook: it asks for a DDP without a hook
    excused   the test fails because it asks for what no gradient depends on, for the reason shown
    time-out  the test was not done within --seconds; the status is 1
    fail      all else; the status is 1
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tests.foreign.attached import PLAIN

if TYPE_CHECKING:
    from tests.foreign.torch_world import Outcome

RULES = ["plain(identity())", "ef21(topk(1.0))"]
VERDICTS = ["pass", "refused", "own hook", "any hook", "excused", "time-out", "fail"]


def main() -> int:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False, soft_wrap=True)
    prepare(options.world, options.seconds, stand_in=not options.no_stand_in)
    from tests.faults import warm  # noqa: F401  (kernels are loaded once, before anything is forked)
    from tests.foreign import torch_world

    rules = options.rule or RULES
    plain: dict[str, Outcome] = {}
    attached: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in torch_world.names(options.only):
            plain[name] = torch_world.run(name, PLAIN, Path(folder))
            if plain[name].verdict == "pass" and plain[name].models:
                attached[name] = [torch_world.run(name, rule, Path(folder)) for rule in rules]
                console.print(name, *(outcome.verdict for outcome in attached[name]), sep="  ")
    console.print(_table(rules, attached))
    for line in _reasons(rules, plain, attached, tracebacks=options.tracebacks):
        console.print(line)
    for line in _counts(rules, plain, attached):
        console.print(line)
    return int(any(outcome.verdict in ("fail", "time-out") for row in attached.values() for outcome in row))


def prepare(world: int, seconds: int, *, stand_in: bool) -> None:
    """Set what torch's module of tests and `torch_world` read when they are imported."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(world), "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(seconds)}
    os.environ |= {"CPU_FOR_GPU": "1" if stand_in else "", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", action="append", help=f"may be given several times (default: {' and '.join(RULES)})")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression that test names must hold")
    parser.add_argument("--world", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--seconds", type=int, default=60, help="the limit of each test (default: 60)")
    parser.add_argument("--no-stand-in", action="store_true", help="only the tests that ask for no GPU")
    parser.add_argument("--tracebacks", action="store_true", help="show failures in full")
    return parser.parse_args()


def _table(rules: list[str], attached: dict[str, list[Outcome]]) -> Table:
    table = Table("test", *rules, "models attached", "steps", box=SIMPLE_HEAD)
    for name, row in attached.items():
        last = row[-1]
        table.add_row(name, *(each.verdict for each in row), f"{last.attached} of {last.models}", str(last.steps))
    return table


def _reasons(
    rules: list[str], plain: dict[str, Outcome], attached: dict[str, list[Outcome]], *, tracebacks: bool
) -> list[str]:
    rows = {name: [outcome] for name, outcome in plain.items() if outcome.verdict == "fail"} | attached
    return [
        f"{name} ({hook}): {each.verdict}: {each.reason if tracebacks else each.reason.splitlines()[-1]}"
        for name, row in rows.items()
        for hook, each in zip([PLAIN] if row == [plain[name]] else rules, row, strict=True)
        if each.reason
    ]


def _counts(rules: list[str], plain: dict[str, Outcome], attached: dict[str, list[Outcome]]) -> list[str]:
    counts = Counter(outcome.verdict for outcome in plain.values())
    lines = [f"plainly: {len(plain)} tests: {_listed(counts)}; {len(attached)} passed and built a DDP model"]
    for index, rule in enumerate(rules):
        counts = Counter(row[index].verdict for row in attached.values())
        lines.append(f"{rule}: {len(attached)} tests: {_listed(counts)}")
    return lines


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in [*VERDICTS, "skipped"] if counts[verdict])


if __name__ == "__main__":
    sys.exit(main())
