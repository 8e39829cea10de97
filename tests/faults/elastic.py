"""Kills at random moments while three replicas train under torchft: nobody hangs, parts or loses what was not sent.

    python -m tests.faults.elastic [--kills 100] [--seed 0] [--losses 10]

A replica is killed, stopped for some seconds or (as root) cut off from the network, comes back, and the next one's turn
comes once all three have trained together. In the end all must have had the same parameters after each step of the run,
and n times what was applied must be what all replicas have sent, killed ones too. Ends with status 1 otherwise.
`--losses` compares the loss of a run with so many kills with that of one without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tests.faults.replicas import Place, lighthouse, sent_of, train
from tests.forks import CONTEXT

from thinwire.engines.elastic import Chronicle
from thinwire.lab import namespaces

REPLICAS = 3
LIMIT = 60.0
"""Seconds without a step after which the run hangs."""
AWAY = 2.5
"""Seconds that a replica is stopped or cut off: longer than the lighthouse waits."""
KINDS = ("SIGKILL", "SIGSTOP", "link down")


@dataclass
class Life:
    """One process of a replica, and as much of its log of steps as was read."""

    name: str
    process: Any
    steps: list[list[Any]] = field(default_factory=list)
    place: int = 0
    killed: bool = False

    def read(self, folder: Path) -> None:
        """Take in what it has logged since: time, workers, taken, step, epoch, checksum of the parameters."""
        with contextlib.suppress(FileNotFoundError), open(folder / f"steps-{self.name}", "rb") as file:
            file.seek(self.place)
            *lines, rest = file.read().split(b"\n")
            self.place = file.tell() - len(rest)
            self.steps += [json.loads(line) for line in lines]


@dataclass
class Found:
    """What a run showed."""

    recoveries: dict[str, list[float]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    steps: int = 0
    failed: int = 0
    differing: int = 0
    error: float = 0.0
    """Of the conserved quantity, over what was given."""
    loss: float = 0.0


class Run:
    """Three replicas in training."""

    def __init__(self, folder: Path, rule: str, address: str, net: namespaces.Namespaces | None, seed: int) -> None:
        self.folder, self.rule, self._address, self._net = folder, rule, address, net
        self.random, self.found = Random(f"{seed} {rule}"), Found()
        self.lives: list[Life] = []
        self.present: list[Life] = []

    def start(self) -> None:
        """Start all replicas."""
        self.present = [self._born(number) for number in range(REPLICAS)]

    def _born(self, number: int) -> Life:
        host, space = ("localhost", "") if self._net is None else (namespaces.address(number), self._net.of(number))
        place = Place(number, self.folder, self._address, self.rule, host, space)
        name = f"{number}-{sum(life.name.startswith(f'{number}-') for life in self.lives)}"
        process = CONTEXT.Process(target=train, args=(place, name), daemon=True)
        process.start()
        self.lives.append(Life(name, process))
        return self.lives[-1]

    def await_(self, what: str, done: Any) -> bool:
        """Wait until something holds of the logs; a replica that ended by itself, or a long silence, is a finding."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for number, life in enumerate(self.present):
                life.read(self.folder)
                if not (life.killed or life.process.is_alive()) and life.process.exitcode:
                    self.found.findings.append(f"replica {life.name} ended by itself: {self._last_words(life)}")
                    self.present[number] = self._born(number)
            if done():
                return True
            time.sleep(0.01)
        self.found.findings.append(f"hung: waited {LIMIT:.0f} s until {what}")
        return False

    def _last_words(self, life: Life) -> str:
        text = (self.folder / f"log-{life.name}").read_text(errors="replace")
        return "\n".join([line for line in text.splitlines() if "INFO" not in line][-12:])

    def together(self, since: float) -> bool:
        """Whether all three have taken a step together since."""
        return all(any(s[0] > since and s[1] == REPLICAS and s[2] for s in life.steps[-50:]) for life in self.present)

    def disturb(self, kind: str) -> bool:
        """One fault, its recovery, and the replica's return. False if it hangs."""
        number, now = self.random.randrange(REPLICAS), time.monotonic()
        if not self.await_("all train together", lambda: self.together(now)):
            return False
        time.sleep(self.random.uniform(0.0, 0.2))
        victim, others = self.present[number], [life for n, life in enumerate(self.present) if n != number]
        hit = time.monotonic()
        self._hit(kind, number, victim)
        went_on = self.await_(
            f"the others go on after {kind}",
            lambda: all(any(s[0] > hit and s[1] < REPLICAS and s[2] for s in life.steps[-200:]) for life in others),
        )
        if went_on:
            first = [next(s[0] for s in life.steps if s[0] > hit and s[1] < REPLICAS and s[2]) for life in others]
            self.found.recoveries.setdefault(kind, []).append(max(first) - hit)
        self._return(kind, number, victim, hit)
        return went_on

    def _hit(self, kind: str, number: int, victim: Life) -> None:
        if kind == "link down":
            assert self._net is not None
            self._net.cut(number)
        else:
            victim.killed = kind == "SIGKILL"
            os.kill(victim.process.pid, signal.SIGKILL if kind == "SIGKILL" else signal.SIGSTOP)

    def _return(self, kind: str, number: int, victim: Life, hit: float) -> None:
        if kind == "SIGKILL":
            victim.process.join()
            victim.read(self.folder)
            self.present[number] = self._born(number)
            return
        time.sleep(max(0.0, hit + AWAY - time.monotonic()))
        if kind == "SIGSTOP":
            os.kill(victim.process.pid, signal.SIGCONT)
        else:
            assert self._net is not None
            self._net.mend(number)

    def finish(self, at: int | None = None) -> None:
        """Let all train together, stop them after one common step, and check what they leave."""
        now = time.monotonic()
        if not self.await_("all train together", lambda: self.together(now)):
            return
        step = max(life.steps[-1][3] for life in self.present) + 30
        (self.folder / "stop.tmp").write_text(str(max(step, at or 0)))
        os.replace(self.folder / "stop.tmp", self.folder / "stop")
        if self.await_("all have stopped", lambda: all(self._last(life).exists() for life in self.present)):
            self._check()

    def _last(self, life: Life) -> Path:
        return self.folder / f"last-{life.name}"

    def _check(self) -> None:
        found, last = self.found, [torch.load(self._last(life), weights_only=True) for life in self.present]
        chronicles = {str(one["eras"]) for one in last}
        if len(chronicles) > 1:
            found.findings.append("the replicas tell different histories")
        run = Chronicle.of(last[0]["eras"])
        checksums: dict[int, set[int]] = {}
        for life in self.lives:
            life.read(self.folder)
            found.failed += sum(not s[2] for s in life.steps)
            for _, _, taken, step, epoch, crc in life.steps:
                if taken and run.holds(epoch, step - 1):
                    checksums.setdefault(step, set()).add(crc)
        found.steps, found.differing = len(checksums), sum(len(crcs) > 1 for crcs in checksums.values())
        if found.differing:
            found.findings.append(f"parameters differ after {found.differing} steps")
        if sorted(checksums) != list(range(1, max(checksums) + 1)):
            found.findings.append("steps are missing from the history")
        found.loss = last[0]["loss"]
        self._conserved(last, run)

    def _conserved(self, last: list[dict[str, Any]], run: Chronicle) -> None:
        """Mem-SGD: what was applied is what all have sent. EF21: the mean is that of the present."""
        applied = last[0]["applied"].numpy()
        given = sum(float(one["given"].abs().max()) for one in last) + float(np.abs(applied).max())
        if last[0]["means"]:
            pairs = [(key.split("/")[1], mean) for key, mean in last[0]["means"].items()]
            errors = [
                (torch.stack([one["locals"][name].view_as(mean) for one in last]).mean(0) - mean).abs().max()
                / mean.abs().max()
                for name, mean in pairs
            ]
            self.found.error = float(max(errors))
        else:
            paths = [self.folder / f"account-{life.name}" for life in self.lives]
            sent = sum(sent_of(path, run.holds) for path in paths if path.exists())
            self.found.error = float(np.abs(applied - sent).max()) / given
        bound = 4 * torch.finfo(torch.float32).eps * self.found.steps**0.5
        if not self.found.error <= bound:
            self.found.findings.append(
                f"not conserved: off by {self.found.error:.2g} of what was given, bound {bound:.2g}"
            )

    def end(self) -> None:
        """End whatever is left."""
        for life in self.lives:
            life.process.kill()
            life.process.join()


@contextlib.contextmanager
def running(rule: str, seed: int, *, cuts: bool) -> Iterator[Run]:
    """A run of three replicas, in namespaces of their own where links are to be cut."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = stack.enter_context(namespaces.network(REPLICAS + 1)) if cuts else None
        host, space = ("localhost", "") if net is None else (namespaces.address(REPLICAS), net.of(REPLICAS))
        run = Run(folder, rule, stack.enter_context(lighthouse(folder, host, space)), net, seed)
        stack.callback(run.end)
        run.start()
        yield run


def campaign(rule: str, kills: int, seed: int, console: Console, kinds: tuple[str, ...]) -> Found:
    """So many faults of every kind by turns."""
    with running(rule, seed, cuts="link down" in kinds) as run:
        for kill in range(kills):
            if not run.disturb(kinds[kill % len(kinds)]):
                break
            if kill % 10 == 9:
                console.print(f"{rule}: {kill + 1} faults, {len(run.found.findings)} findings", markup=False)
        if not any(finding.startswith("hung") for finding in run.found.findings):
            run.finish()
        return run.found


def lossy(rule: str, losses: int, steps: int, seed: int) -> float:
    """The loss after so many steps, with so many kills spread over them."""
    with running(rule, seed, cuts=False) as run:
        for loss in range(losses):
            due = (loss + 1) * steps // (losses + 2)
            run.await_(f"step {due}", lambda due=due: max((s[3] for s in run.present[0].steps[-1:]), default=0) >= due)
            run.disturb("SIGKILL")
        run.finish(steps)
        for finding in run.found.findings:
            print("FOUND", finding)
        return run.found.loss


def show(found: dict[str, Found], console: Console) -> None:
    """The table: rule by rule and kind by kind."""
    table = Table("rule", "fault", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("faults", "median s", "longest s"):
        table.add_column(column, justify="right")
    for rule, one in found.items():
        for kind, seconds in one.recoveries.items():
            ordered = sorted(seconds)
            times = [f"{ordered[len(ordered) // 2]:.2f}", f"{ordered[-1]:.2f}"]
            table.add_row(rule, kind, str(len(seconds)), *times)
    console.print(table)
    for rule, one in found.items():
        hung = sum(finding.startswith("hung") for finding in one.findings)
        words = (
            f"{one.steps} steps, {one.failed} failed on some replica; {hung} hung, {one.differing} steps with different"
        )
        console.print(f"{rule}: {words} parameters; conserved to {one.error:.1e} of what was given", markup=False)
        for finding in one.findings:
            console.print(f"FOUND {rule}: {finding}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000, help="of the runs that --losses compares")
    parser.add_argument("--rules", nargs="+", default=["memsgd(topk(0.1))", "ef21(topk(0.1))"])
    options = parser.parse_args()
    if odd := [rule for rule in options.rules if not rule.startswith(("memsgd(", "ef21("))]:
        parser.error(f"what {odd[0]} conserves is not gradients, and is not kept account of here: take memsgd or ef21")
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    kinds = KINDS if namespaces.available() else KINDS[:2]
    start, found = time.perf_counter(), {}
    for place, rule in enumerate(options.rules if options.kills else ()):
        share = options.kills // len(options.rules) + (place < options.kills % len(options.rules))
        found[rule] = campaign(rule, share, options.seed, console, kinds)
    show(found, console)
    for rule in options.rules if options.losses else ():
        losses = [lossy(rule, count, options.steps, options.seed) for count in (0, options.losses)]
        console.print(
            f"{rule}: loss {losses[0]:.4f} without, {losses[1]:.4f} with {options.losses} kills", markup=False
        )
    every = [seconds for one in found.values() for times in one.recoveries.values() for seconds in times]
    if every:
        median = sorted(every)[len(every) // 2]
        console.print(
            f"{len(every)} faults in {time.perf_counter() - start:.0f} s; recovery {median:.2f} s in the median"
        )
    sys.exit(any(one.findings for one in found.values()))


if __name__ == "__main__":
    main()
