"""Every kind of fault: how one trial of it is done, and what its errors must say."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.faults import broken, going_on
from tests.faults.findings import Finding, Outcome, unclear
from tests.faults.trainee import RULES, VARIABLE
from tests.faults.worlds import Answer, World

from thinwire.lab import namespaces

LIMIT = 120.0
"""Seconds after which a trial hangs."""


class Worlds:
    """Worlds that live over many trials, one of each size; a broken one is replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._worlds: dict[int, World] = {}

    def do(self, size: int, job: Callable[..., Any], *arguments: Any) -> list[Answer]:
        """A job for all ranks of a world of this size."""
        if size not in self._worlds:
            self._worlds[size] = World(size, self.folder)
        answers = self._worlds[size].do(job, *arguments, limit=LIMIT)
        if any(answer.trouble for answer in answers):
            self._worlds.pop(size).close()
        return answers

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()


Trial = Callable[["Kind", Worlds, Random], Outcome]


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    name: str
    weight: int
    """Its share of the trials."""
    words: str
    """What every error must say, as a regular expression."""
    trial: Trial
    rules: tuple[str, ...] = RULES


def _outcome(kind: Kind, answers: list[Answer], findings: list[Finding], seconds: float) -> Outcome:
    trouble = [answer.trouble for answer in answers if answer.trouble]
    return Outcome(
        kind.name,
        tuple(finding.errors[-1][0] if finding.errors else "none" for finding in findings),
        seconds,
        tuple(finding.lost for finding in findings if finding.lost) + tuple(t for t in trouble if "hangs" not in t),
        unclear(findings, kind.words),
        tuple(t for t in trouble if "hangs" in t),
        tuple(text for finding in findings for _, text in finding.errors),
    )


# --------------------------------------------------------------------------------------------------- in a living world


def _living(job: Callable[..., Finding], kind: Kind, worlds: Worlds, random: Random, *more: Any) -> Outcome:
    size, rule, draw = random.choice([2, 3]), random.choice(kind.rules), random.getrandbits(30)
    start = time.monotonic()
    answers = worlds.do(size, job, rule, draw, *more)
    findings = [answer.value for answer in answers if answer.value is not None]
    return _outcome(kind, answers, findings, time.monotonic() - start)


def living(job: Callable[..., Finding]) -> Trial:
    """A trial that leaves its world as it was."""
    return partial(_living, job)


def refusing(disturbance: going_on.Disturbance) -> Trial:
    """A trial of a step that all ranks refuse."""
    return lambda kind, worlds, random: _living(going_on.refused, kind, worlds, random, disturbance)


def full_disk(kind: Kind, worlds: Worlds, random: Random) -> Outcome:
    """A disk that is full while all ranks save."""
    with tempfile.TemporaryDirectory(dir=worlds.folder) as folder:
        return _living(going_on.a_full_disk, kind, worlds, random, folder)


# ------------------------------------------------------------------------------------------------------- in a new world


def breaking(fault: Callable[[Random, str, int, Path], broken.Broken]) -> Trial:
    """A trial that ends its world; a restart follows in a living one."""

    def trial(kind: Kind, worlds: Worlds, random: Random) -> Outcome:
        size, rule = random.choice([2, 3]), random.choice(kind.rules)
        with tempfile.TemporaryDirectory(dir=worlds.folder) as folder:
            found = fault(random, rule, size, Path(folder))
            findings = [answer.value.finding for answer in found.answers if answer.value is not None]
            again = worlds.do(size, broken.restarted, rule, folder)
        findings[0:1] = [_joined(findings[:1], [answer.value[0] for answer in again if answer.value])]
        return _outcome(kind, [*found.answers, *again], findings, found.seconds)

    return trial


def _joined(first: list[Finding], later: list[Finding]) -> Finding:
    """The first survivor's finding with what the restart lost."""
    finding = first[0] if first else Finding(lost="nobody survived")
    for other in later:
        finding.check(not other.lost, other.lost)
    return finding


def attached_alone(kind: Kind, worlds: Worlds, random: Random) -> Outcome:
    """A world of its own, whose time-out is beyond the trial's limit: waiting for it is hanging."""
    world = World(random.choice([2, 3]), worlds.folder, timeout=10 * LIMIT)
    start = time.monotonic()
    try:
        answers = world.do(broken.attached_alone, RULES[0], random.getrandbits(30), limit=LIMIT / 2)
    finally:
        world.close()
    findings = [answer.value for answer in answers if answer.value is not None]
    return _outcome(kind, answers, findings, time.monotonic() - start)


# ------------------------------------------------------------------------------------------------- the command's record


def full_record(kind: Kind, worlds: Worlds, random: Random) -> Outcome:
    """`thinwire train` whose record reaches the end of the disk: whole lines, and an error with the path."""
    size = random.randrange(5000, 8000)
    program = [
        sys.executable,
        "-m",
        "thinwire.cli.main",
        "train",
        "digits",
        "-m",
        "dense",
        "--workers",
        "2",
    ]
    start, finding = time.monotonic(), Finding()
    with tempfile.TemporaryDirectory(dir=worlds.folder) as folder:
        done = subprocess.run(
            [*program, "--steps", "60", "--evaluations", "60", "--out", "r.jsonl"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * LIMIT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        )
        finding.errors.append(("exit code " + str(done.returncode), done.stderr))
        finding.check(done.returncode == 2 and "Traceback" not in done.stderr, "not a clean end: " + done.stderr[-300:])
        finding.check(_all_whole(Path(folder) / "r.jsonl"), "the record has a torn line")
    return _outcome(kind, [], [finding], time.monotonic() - start)


def _all_whole(record: Path) -> bool:
    try:
        return bool([json.loads(line) for line in record.read_text().splitlines()])
    except (OSError, ValueError):
        return False


_LOST = r"rank \d of \d lost touch .*state_dict\(\).*restart all"
_RATES = r"learning rate .* group 0: rank 0 has .*, rank \d has "
_DIFFER = r"ranks differ in .*: rank 0 has .*, rank \d has "
_LENGTH = r"announces a message of 600000000 bytes"

KINDS = (
    Kind("kill -9", 22, _LOST, breaking(broken.killed)),
    Kind("SIGSTOP", 7, r"rank \d of \d lost touch with another rank in .*restart all", breaking(broken.stopped)),
    Kind("link cut", 7, r"rank \d of \d lost touch with another rank in .*restart all", breaking(broken.cut_off)),
    Kind("NaN or infinity", 9, r"rank \d computed a gradient.*'\d\.\w+' at step \d", refusing(going_on.not_finite)),
    Kind("huge gradients", 7, r"at step \d+; no rank's state has advanced", living(going_on.huge)),
    Kind("another rate", 7, _RATES, refusing(going_on.another_rate)),
    Kind("rate 0", 5, _RATES, refusing(going_on.no_rate)),
    Kind("attach: mismatch", 9, _DIFFER, living(going_on.attached_otherwise)),
    Kind("attach: alone", 3, r"every rank.* 1 s", attached_alone),
    Kind("bit flip", 9, r"rank \d", refusing(going_on.a_flipped_bit)),
    Kind("another's message", 5, r"another rank's", refusing(going_on.a_message_in_anothers_place)),
    Kind("600 MB announced", 3, _LENGTH, refusing(going_on.a_forged_length), VARIABLE),
    Kind("signal saves", 6, "", living(going_on.saved_by_signals)),
    Kind("thread saves", 4, "", living(going_on.saved_by_a_thread)),
    Kind("load mid-step", 4, r"middle of step \d", living(going_on.loaded_in_the_middle)),
    Kind("mutated state", 10, r"\w+ .*", living(going_on.a_mutated_state)),
    Kind("full disk: Rotating", 5, r"could not .*(File too large|No space).*older ones are as they were", full_disk),
    Kind("full disk: record", 1, r"r.jsonl cannot be written any further", full_record),
)


def possible() -> tuple[Kind, ...]:
    """The kinds that can be tried here: links are cut only by root."""
    return tuple(kind for kind in KINDS if kind.name != "link cut" or namespaces.available())
