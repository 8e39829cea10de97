"""Faults after which the run goes on: every rank refuses the step alike, or notices nothing, and nothing is lost.

Each is a job for the ranks of a living world. `random` draws alike on every rank.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from tests.dist.training import network
from tests.faults.findings import Finding
from tests.faults.trainee import RULES, Trainee, finite, same, undisturbed
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.checkpoint import Rotating
from thinwire.errors import NonFiniteGradient
from thinwire.exchange import Group, Pending

BATCHES = 8
Say = Callable[[Any], None]
Disturbance = Callable[[Trainee, Random], AbstractContextManager[Callable[[Tensor], Tensor] | None]]


# ------------------------------------------------------------------------------------------ steps that all ranks refuse


def refused(rank: int, size: int, say: Say, rule: str, draw: int, disturbance: Disturbance) -> Finding:
    """Disturb one step on one rank: all refuse it, and the rest is the run without it."""
    random, finding = Random(draw), Finding()
    bad, victim = random.randrange(1, BATCHES - 1), random.randrange(size)
    trainee = Trainee(rank, rule)
    for number in range(BATCHES):
        if number != bad:
            trainee.step()
            continue
        before = trainee.handle.state_dict()["slots"]
        with disturbance(trainee, random) if rank == victim else nullcontext() as spoiled:
            finding.hear(lambda: trainee.step(spoiled) if spoiled else trainee.step())
        finding.check(same(before, trainee.handle.state_dict()["slots"]), "a refused step has changed the state")
    finding.check(same(trainee.parameters(), undisturbed(rank, rule, BATCHES, (bad,))), "other parameters at the end")
    return finding


@contextmanager
def not_finite(trainee: Trainee, random: Random) -> Iterator[Callable[[Tensor], Tensor]]:
    """A gradient with NaN or infinity in one bias."""
    bad = float(random.choice(["nan", "inf", "-inf"]))
    bias: Any = trainee.model[random.choice([0, 2, 4])].bias  # type: ignore[index]
    yield lambda loss: loss + bias[0] * bad


@contextmanager
def another_rate(trainee: Trainee, random: Random) -> Iterator[None]:
    """A learning rate that only this rank has."""
    with rate(trainee, 0.1 * random.choice([0.5, 1.1, 1.0000001])):
        yield


@contextmanager
def no_rate(trainee: Trainee, random: Random) -> Iterator[None]:
    """A learning rate of zero."""
    with rate(trainee, 0.0):
        yield


@contextmanager
def rate(trainee: Trainee, value: float) -> Iterator[None]:
    group = trainee.optimizer.param_groups[0]
    before, group["lr"] = group["lr"], value
    try:
        yield
    finally:
        group["lr"] = before


@contextmanager
def a_flipped_bit(trainee: Trainee, random: Random) -> Iterator[None]:
    """One bit of one message is another when it arrives here."""

    def flip(messages: list[Tensor]) -> None:
        message = messages[random.randrange(len(messages))]
        message[random.randrange(len(message))] ^= 1 << random.randrange(8)

    with _tampered(flip):
        yield


@contextmanager
def a_message_in_anothers_place(trainee: Trainee, random: Random) -> Iterator[None]:
    """A message arrives twice here, the second time as if another rank had sent it."""

    def swap(messages: list[Tensor]) -> None:
        source, place = random.sample(range(len(messages)), 2)
        messages[place] = messages[source].clone()

    with _tampered(swap):
        yield


@contextmanager
def _tampered(act: Callable[[list[Tensor]], None]) -> Iterator[None]:
    wait, left = Pending.wait, 0  # short buckets travel together, so that a step may have one gather alone

    def tampered(self: Pending) -> Any:
        nonlocal left
        left -= 1
        if left != -1:
            return wait(self)
        messages = [message.clone() for message in wait(self)]
        act(messages)
        return messages

    with patch.object(Pending, "wait", tampered):
        yield


@contextmanager
def a_forged_length(trainee: Trainee, random: Random) -> Iterator[None]:
    """This rank announces a message of 600 MB to all."""
    everyone = Group.everyone

    def forged(self: Group, numbers: Any, *rest: Any) -> Any:
        return everyone(self, [600_000_000] if len(numbers) == 1 else numbers, *rest)

    with patch.object(Group, "everyone", forged):
        yield


# ------------------------------------------------------------------------------------------------------- huge gradients


def huge(rank: int, size: int, say: Say, rule: str, draw: int) -> Finding:
    """Gradients near the end of float32 on one rank: every step is refused or taken by all, and no memory overflows."""
    random, finding = Random(draw), Finding()
    victim, scale = random.randrange(size), random.choice([1e37, 1e38, 3e38])
    without: tuple[int, ...] = ()
    trainee = _tiny_rate(Trainee(rank, rule))
    for number in range(BATCHES):
        try:
            trainee.step(_scaled(scale if rank == victim and number > 1 else 1.0))
        except NonFiniteGradient as error:
            finding.errors.append((type(error).__name__, str(error)))
            without += (number,)
    finding.check(finite(trainee.handle.state_dict()["slots"].values()), "a memory is no longer finite")
    twin = _tiny_rate(Trainee(rank, rule))
    for number in range(BATCHES):
        if number in without:
            twin.skip()
        else:
            twin.step(_scaled(scale if rank == victim and number > 1 else 1.0))
    finding.check(same(trainee.parameters(), twin.parameters()), "other parameters than without the refused steps")
    return finding


def _tiny_rate(trainee: Trainee) -> Trainee:
    for group in trainee.optimizer.param_groups:
        group["lr"], group["momentum"] = 1e-38, 0.0
    return trainee


def _scaled(scale: float) -> Callable[[Tensor], Tensor]:
    return lambda loss: loss * scale


# ----------------------------------------------------------------------------------------------------------- mismatches


def attached_otherwise(rank: int, size: int, say: Say, rule: str, draw: int) -> Finding:
    """One rank attaches with another rule, seed, momentum or type: nobody is attached; then all do it right."""
    random, finding = Random(draw), Finding()
    odd, what = rank == random.randrange(size), random.choice(["rule", "seed", "momentum", "dtype"])
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.8 if odd and what == "momentum" else 0.9)
    if odd and what == "dtype":
        ddp.module.to(torch.bfloat16)
    other = "ef21(topk(0.2))" if odd and what == "rule" else "ef21(topk(0.1))"
    finding.hear(lambda: thinwire.attach(ddp, other, optimizer, seed=int(odd and what == "seed")))
    return _goes_on(finding, Trainee(rank, rule))


def _goes_on(finding: Finding, trainee: Trainee) -> Finding:
    """Train to the end: it must be as if nothing had been."""
    while trainee.step_number < BATCHES:
        trainee.step()
    right = undisturbed(trainee.rank, str(trainee.handle.rule), BATCHES)
    finding.check(same(trainee.parameters(), right), "other parameters at the end")
    return finding


# -------------------------------------------------------------------------------------------- states at unusual moments


def saved_by_signals(rank: int, size: int, say: Say, rule: str, draw: int) -> Finding:
    """A signal handler saves at random moments; every state is that of a finished step, and the run is as before."""
    states: list[dict[str, Any]] = []
    trainee = Trainee(rank, rule)
    old = signal.signal(signal.SIGUSR1, lambda *_: states.append(trainee.handle.state_dict()))
    try:
        with _again_and_again(Random(draw + rank), lambda: os.kill(os.getpid(), signal.SIGUSR1)):
            finding = _goes_on(Finding(), trainee)
    finally:
        signal.signal(signal.SIGUSR1, old)
    return _compared(finding, states, rank, rule)


def saved_by_a_thread(rank: int, size: int, say: Say, rule: str, draw: int) -> Finding:
    """Another thread saves at random moments."""
    states: list[dict[str, Any]] = []
    trainee = Trainee(rank, rule)
    with _again_and_again(Random(draw + rank), lambda: states.append(trainee.handle.state_dict())):
        finding = _goes_on(Finding(), trainee)
    return _compared(finding, states, rank, rule)


@contextmanager
def _again_and_again(random: Random, act: Callable[[], object]) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.wait(random.uniform(0.0, 0.01)):
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _compared(finding: Finding, states: list[dict[str, Any]], rank: int, rule: str) -> Finding:
    """Each state must be the one of its step in a quiet run."""
    quiet = Trainee(rank, rule)
    right = [quiet.handle.state_dict()["slots"]]
    while quiet.step_number < BATCHES:
        quiet.step()
        right.append(quiet.handle.state_dict()["slots"])
    for state in states:
        finding.check(same(state["slots"], right[state["step"]]), f"a state of step {state['step']} is torn")
    return finding


def loaded_in_the_middle(rank: int, size: int, say: Say, rule: str, draw: int) -> Finding:
    """One rank loads a state while a bucket is being sent: refused there, and the step goes on."""
    random, finding = Random(draw), Finding()
    trainee, left = Trainee(rank, rule), random.randrange(12)
    state, send = trainee.handle.state_dict(), trainee.handle.channel.send
    victim = random.randrange(size)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        sent = send(*arguments, **options)
        if left == 0 and rank == victim:
            finding.hear(lambda: trainee.handle.load_state_dict(state))
        return sent

    trainee.handle.channel.send = interrupted  # type: ignore[method-assign]
    return _goes_on(finding, trainee)


def a_mutated_state(rank: int, size: int, say: Say, rule: str, draw: int) -> Finding:
    """One rank's state is torn or of another moment: nobody loads, and the run goes on as it was."""
    random, finding = Random(draw), Finding()
    trainee, victim = Trainee(rank, rule), random.randrange(size)
    for _ in range(3):
        trainee.step()
    state = trainee.handle.state_dict()
    mutate = random.choice(MUTATIONS)
    key = random.choice(sorted(state["slots"])) if rank == victim else ""
    finding.hear(lambda: trainee.handle.load_state_dict(mutate(state, key) if rank == victim else state))
    finding.check(same(state["slots"], trainee.handle.state_dict()["slots"]), "a refused state was loaded")
    return _goes_on(finding, trainee)


def _with(state: dict[str, Any], key: str, tensor: Any) -> dict[str, Any]:
    return {**state, "slots": {**state["slots"], key: tensor}}


MUTATIONS: list[Callable[[dict[str, Any], str], Any]] = [
    lambda state, key: {},
    lambda state, key: None,
    lambda state, key: {**state, "slots": {k: t for k, t in state["slots"].items() if k != key}},
    lambda state, key: _with(state, key, state["slots"][key].reshape(-1)[:-1]),
    lambda state, key: _with(state, key, state["slots"][key] * float("nan")),
    lambda state, key: _with(state, key, state["slots"][key].double() + 1e300),
    lambda state, key: _with(state, key, state["slots"][key].to_sparse()),
    lambda state, key: _with(state, key, state["slots"][key].to("meta")),
    lambda state, key: _with(state, key, state["slots"][key].to(torch.int64)),
    lambda state, key: {**state, "step": state["step"] + 1},
    lambda state, key: {**state, "step": 1 << 64},
    lambda state, key: {**state, "method": RULES[0] if state["method"] != RULES[0] else RULES[1]},
    lambda state, key: {**state, "run": state["run"] ^ 1},
    lambda state, key: {**state, "seed": state["seed"] + 1},
    lambda state, key: {**state, "workers": state["workers"] + 1},
    lambda state, key: {**state, "shapes": {}},
]


# ----------------------------------------------------------------------------------------------------------- full disks


def a_full_disk(rank: int, size: int, say: Say, rule: str, draw: int, folder: str) -> Finding:
    """One rank's disk is full while all save: nobody has saved, the older checkpoint is there, and the run goes on."""
    random, finding = Random(draw), Finding()
    trainee, victim = Trainee(rank, rule), random.randrange(size)
    checkpoints = Rotating(Path(folder))
    trainee.step()
    saved = trainee.saved()
    checkpoints.save(1, saved)
    trainee.step()
    with no_file_beyond(random.randrange(100, 5000)) if rank == victim else nullcontext():
        finding.hear(lambda: checkpoints.save(2, trainee.saved()))
    step, found = checkpoints.load() or (0, None)
    finding.check(step == 1 and same(found["thinwire"]["slots"], saved["thinwire"]["slots"]), "an older set is lost")
    return _goes_on(finding, trainee)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Files that would grow beyond so many bytes: the system refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
