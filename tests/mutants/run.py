"""Puts one fault after the other into a copy of the tree and asks the tests: `python -m tests.mutants.run`.

For each fault the tests nearest to it run first, up to the first failure; where they find nothing, all others do. With
`--all`, what survives is shown to the exhaustive suite too: it should find no more than the quick one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.mutants.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
SECONDS = 3600
"""A run of tests that takes longer hangs, which a fault may well cause."""
NEAREST = {
    "compressors/arctopk": ("unit/test_agreement.py", "paper/test_arctopk.py", "unit/test_sums.py"),
    "compressors/base": ("laws/test_clearing_laws.py", "unit/test_compressors.py", "golden", "laws"),
    "compressors": ("laws/test_compressor_laws.py", "unit/test_compressors.py", "golden", "laws"),
    "feedback": ("unit/test_feedback.py", "unit/test_vgc.py", "golden", "paper/test_equivalences.py", "laws", "paper"),
    "feedback/memsgd": ("unit/test_agreement.py", "paper/test_memsgd.py", "golden", "laws"),
    "feedback/base": ("paper/test_memsgd.py", "unit/test_outer.py"),
    "feedback/dgc": ("paper/test_dgc.py", "golden", "unit/test_flush.py"),
    "feedback/memadam": ("paper/test_memadam.py", "laws/test_clearing_laws.py", "golden"),
    "feedback/memory": ("paper/test_memsgd.py", "paper/test_dgc.py", "paper/test_memadam.py"),
    "payload": ("unit/test_payload.py", "unit/test_values.py", "unit/test_positions.py", "unit/test_reader.py"),
    "payload/letter": ("unit/test_letter.py", "unit/test_channel.py", "fuzz"),
    "payload/nested": ("unit/test_payload.py", "unit/test_family.py", "paper/test_memadam.py", "fuzz"),
    "payload/sums": ("unit/test_sums.py", "dist/test_sums.py"),
    "payload/sparse": ("laws/test_clearing_laws.py", "unit/test_payload.py", "unit/test_agreement.py",
                       "unit/test_values.py", "unit/test_sums.py"),
    "payload/positions": ("unit/test_positions.py", "fuzz"),
    "feedback/second_hop": ("unit/test_server.py", "dist/test_server.py"),
    "ops": ("kernels", "unit/test_ops.py"),
    "ops/live": ("unit/test_replay.py",),
    "ops/reference": ("paper/test_memadam.py", "kernels", "unit/test_ops.py"),
    "ops/cpu/precondition": ("kernels/test_precondition.py", "paper/test_memadam.py"),
    "owners": ("unit/test_owners.py", "unit/test_server.py", "dist/test_server.py"),
    "hub": ("unit/test_server.py", "dist/test_server.py"),
    "store": ("unit/test_store.py", "unit/test_channel.py", "laws/test_rule_laws.py", "unit/test_simulation.py"),
    "replay": ("unit/test_replay.py",),
    "outgoing": ("unit/test_post.py", "unit/test_channel.py", "unit/test_simulation.py", "unit/test_crowd.py",
                 "unit/test_agreement.py", "dist/test_nonfinite.py"),
    "engines/auto": ("unit/test_pilot.py", "unit/test_auto.py"),
    "channel": ("laws/test_clearing_laws.py", "unit/test_channel.py", "unit/test_sums.py", "unit/test_simulation.py",
                "paper/test_memsgd.py",
                "unit/test_family.py", "unit/test_vgc.py", "unit/test_crowd.py", "fuzz"),
    "step": ("unit/test_channel.py", "unit/test_simulation.py", "laws/test_rule_laws.py", "dist"),
    "exchange": ("unit/test_exchange.py", "unit/test_channel.py", "dist"),
    "exchange/bundle": ("unit/test_bundle.py", "dist/test_attach.py"),
    "exchange/emulated": ("unit/test_emulated.py", "dist/test_emulated.py"),
    "exchange/group": ("unit/test_exchange.py", "dist/test_exits.py", "unit/test_channel.py", "dist"),
    "exchange/protocol": ("unit/test_exchange.py", "dist/test_sums.py", "dist"),
    "checkpoint": ("unit/test_checkpoint.py", "unit/test_rotating.py", "unit/test_channel.py", "dist/test_state.py"),
    "ledger": ("unit/test_ledger.py", "unit/test_simulation.py"),
    "spec": ("unit/test_spec.py", "laws/test_rule_laws.py"),
    "engines": ("unit/test_simulation.py", "unit/test_simulate.py", "unit/test_crowd.py", "dist"),
    "engines/ddp": ("dist/test_late.py", "dist/test_attach.py", "dist"),
    "engines/fsdp": ("unit/test_fsdp_innards.py", "dist/test_fsdp.py"),
    "engines/flush": ("unit/test_flush.py", "unit/test_outer.py"),
    "engines/outer": ("unit/test_outer.py", "paper/test_sparseloco.py", "dist/test_outer.py"),
}  # fmt: skip
"""The tests that look at a part of the package, narrow ones first; the longest name that a place begins with counts."""


def nearest(fault: Fault) -> list[str]:
    """The test paths to begin with."""
    part = max((name for name in NEAREST if fault.place.startswith(name)), key=len)
    return [f"tests/{path}" for path in NEAREST[part]]


def copied(folder: Path) -> Path:
    """A copy of all that tests read; compiled kernels come along, so that only changed ones are compiled anew."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    caches = [path.relative_to(ROOT) for path in (ROOT / "src").rglob("*.nb[ic]")]
    for name in [*map(Path, names), *caches]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def first_failure(tree: Path, paths: Sequence[str], options: Sequence[str]) -> str:
    """The first test that fails there; empty where all pass."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *paths]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"a run of more than {SECONDS} s"
    if done.returncode in (0, 5):  # passed, or nothing was selected
        return ""
    told = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return told[1].removeprefix("tests/") if told else f"pytest's exit code {done.returncode}"


def found_by(fault: Fault | None, near: Sequence[str], options: Sequence[str], *, rest: bool = True) -> str:
    """The first test that fails with this fault (or without any) in the tree: among the nearest, then the rest."""
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        tree = copied(Path(folder))
        if fault is not None:
            fault.apply(tree)
        killer = first_failure(tree, near, options) if near else ""
        if killer or not rest:
            return killer
        return first_failure(tree, ["tests", *(f"--ignore={path}" for path in near)], options)


def row(place: str, name: str, find: Callable[[], str]) -> bool:
    """Look for a fault and print its row of the table; whether it was found."""
    begun = time.perf_counter()
    killer = find()
    print(f"| {place} | {name} | {killer or 'survives'} | {time.perf_counter() - begun:.0f} |", flush=True)
    return bool(killer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults whose place or name holds this text")
    parser.add_argument("--all", action="store_true", help="show the survivors to the exhaustive suite too")
    parser.add_argument("--near", action="store_true", help="stop at the nearest tests: quick, for a new fault")
    parser.add_argument("--pytest", default="", help="more options for pytest, such as '-n 2'")
    chosen = parser.parse_args()
    faults = [f for f in FAULTS if chosen.only in f"{f.place} {f.name}"]
    for fault in faults:
        fault.file(ROOT)  # the list has not rotted
    quick = chosen.pytest.split()
    print("| place | fault | found by | s |\n| --- | --- | --- | --- |", flush=True)
    if not (chosen.near or chosen.only) and row("", "none", lambda: found_by(None, [], quick)):
        return 2  # a tree without fault fails: nothing that follows would say anything
    left = [
        fault
        for fault in faults
        if not row(fault.place, fault.name, lambda f=fault: found_by(f, nearest(f), quick, rest=not chosen.near))
    ]
    print(f"\n{len(faults) - len(left)} of {len(faults)} are found by the quick suite.\n", flush=True)
    for fault in left if chosen.all else ():
        row(fault.place, fault.name, lambda f=fault: found_by(f, [], [*quick, "--exhaustive"]))
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
