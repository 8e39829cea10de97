"""A rehearsal taken: every method trained on each rank by itself, all ranks at once, and the slowest rank's figures."""

from __future__ import annotations

import os
import platform
import statistics
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.advice.actors import Actor, Ensemble, Mark, Posted, Split, Workload, middle, typical
from thinwire.advice.candidates import outer_of
from thinwire.advice.rehearsal import Burden, Findings, Leg, Rehearsal
from thinwire.bench.timing import in_turns
from thinwire.engines.ddp.agreement import told
from thinwire.errors import ConfigError
from thinwire.exchange import Group, adds_up
from thinwire.exchange.bundle import FULL, SHORT
from thinwire.exchange.group import DIRECT
from thinwire.feedback import Rule
from thinwire.lab.setting import ALONE, DENSE, is_rule
from thinwire.report.provenance import cpu_model
from thinwire.timeline import GATHER, LATER, SHARES, SUM, TELL, Compute, Kind, Wire

SETTLED, TORCHS_WARM_UP = 22, 4
"""Steps that are not measured: a rule's (MemAdam's first 20 send second moments too), and those of torch's hooks."""
FEW = 4
"""Workers whose messages are really decoded; what more of them take is the line through two and four."""
TURN, MOST_STEPS = 0.2, 50
"""Seconds that a turn takes at least, with so many steps at most: short steps are measured more often."""
POWERSGD_ROUNDS = 2
"""All-reduces of torch's PowerSGD that begin when the one before is over."""


@dataclass(frozen=True)
class Programme:
    """What is to be rehearsed, for how many workers, in how many rounds of how many steps."""

    load: Workload
    methods: tuple[str, ...]
    workers: int
    rounds: int = 3
    steps: int = 5

    def __post_init__(self) -> None:
        for what, value in (("rounds", self.rounds), ("steps", self.steps)):
            if value < 1:
                raise ConfigError(f"a rehearsal takes at least 1 of {what}, got {value}; 3 rounds of 5 steps are usual")


def rehearse(
    plan: Programme,
    wire: Wire,
    *,
    model: str,
    batch: int | None = None,
    here: int | None = None,
    known: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Rehearsal:
    """All methods on as many ranks of each machine as it has cores, at once; what the slowest of them found.

    Every rank of the world calls it, and gets the same. `here` says how many workers are to share a machine, where they
    are not all there.
    """
    world = Group()
    place = zlib.crc32(platform.node().encode())
    places = [row[0] for row in world.everyone([place], "who shares a machine")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    first = [rank for rank, each in enumerate(places) if places[:rank].count(each) < cores]
    makers: Any = dist
    alone, troupe = makers.new_subgroups(1)[0], makers.new_group(first)
    mine = Stage(plan, alone, Group(troupe), tell).findings().plain() if world.rank in first else None
    every = [Findings.of_plain(each) for each in told(world, mine, "rehearsing") if each is not None]
    found = max(every, key=lambda each: each.compute.total)
    return Rehearsal(model, batch, here or places.count(place), cores, cpu_model(), found, wire, known)


@final
class Stage:
    """One rank's place to rehearse in: its model without exchange, beside which each method is measured by turns."""

    def __init__(self, plan: Programme, alone: Any, troupe: Group, tell: Callable[[str], None]) -> None:
        self._plan, self._group, self._troupe, self._tell = plan, alone, troupe, tell
        self._workload, self._workers, self._rounds, self._steps = plan.load, plan.workers, plan.rounds, plan.steps
        self._alone = Actor(ALONE, self._workload, self._group)
        self._bare: list[Split] = []
        self._last: list[Split] = []
        self._turns: list[float] = []

    def _together(self) -> list[list[int]]:
        """All who rehearse begin at once."""
        return self._troupe.everyone([0], "beginning together")

    def _settle_steps(self) -> None:
        """So many steps to a turn that it takes a while, on all ranks alike."""
        seconds = middle([split.forward + split.backward for split in self._alone.splits])
        wanted = min(MOST_STEPS, max(self._steps, round(TURN / max(seconds, 1e-6))))
        self._steps = max(row[0] for row in self._troupe.everyone([wanted], "steps of a turn"))

    def findings(self) -> Findings:
        """All methods, one after the other, as this rank finds them."""
        self._warm_up(self._alone, TORCHS_WARM_UP)
        for _ in range(self._steps):
            self._alone.step()
        self._settle_steps()
        self._alone.forget()
        with warnings.catch_warnings(action="ignore"):  # an optimizer that does not suit a rule takes as long
            burdens = {method: self._burden(method) for method in self._plan.methods}
        bare, turns = typical(self._bare), statistics.quantiles([*self._turns, *self._turns], n=4)
        return Findings(
            Compute(bare.forward, bare.backward, bare.optimizer),
            low=turns[0] / turns[1],
            high=turns[2] / turns[1],
            parameters=sum(mark.numel for mark in self._marks),
            burdens=burdens,
        )

    def _warm_up(self, actor: Actor, steps: int) -> None:
        for _ in range(steps):
            actor.step()
        actor.forget()

    def _burden(self, method: str) -> Burden:
        self._tell(method)
        actor = Actor(method, self._workload, self._group)
        self._warm_up(actor, SETTLED if actor.channels else TORCHS_WARM_UP)
        self._alone.splits.clear()
        before = 0 if actor.powersgd is None else actor.powersgd.total_numel_after_compression
        turns = {ALONE: self._turn(self._alone), method: self._turn(actor)}
        times = in_turns(turns, self._together, self._rounds, warm_up=0, enough=float("inf"))
        self._bare += self._alone.splits
        self._last = list(self._alone.splits)
        self._turns += times[ALONE]
        if outer_of(method) is not None:
            return self._outer(actor)
        if is_rule(method):
            return self._of_rule(actor)
        after = 0 if actor.powersgd is None else actor.powersgd.total_numel_after_compression
        return self._of_torch(actor, (after - before) / len(actor.splits))

    def _turn(self, actor: Actor) -> Callable[[], None]:
        def turn() -> None:
            for _ in range(self._steps):
                actor.step()

        return turn

    @property
    def _marks(self) -> list[Mark]:
        """The buckets of a typical step; they are ready after a share of the backward pass."""
        watch = self._alone.watch
        assert watch is not None
        backward = middle([split.backward for split in self._bare])
        return [
            Mark(
                min(1.0, middle([each.ready for each in column]) / backward),
                column[0].names,
                column[0].numel,
                column[0].nbytes,
            )
            for column in zip(*watch.steps, strict=True)
        ]

    def _excess(self, actor: Actor) -> float:
        """Seconds of a backward pass beyond one in which nothing is exchanged."""
        return max(0.0, typical(actor.splits).backward - typical(self._last).backward)

    # -------------------------------------------------------------------------------------------------- torch's own

    def _of_torch(self, actor: Actor, compressed: float) -> Burden:
        optimizer, excess, marks = typical(actor.splits).optimizer, self._excess(actor), self._marks
        whole = sum(mark.numel for mark in marks)
        if actor.powersgd is not None:
            leg = Leg(marks[-1].ready, SUM, 4 * compressed, encode=excess)
            return Burden((leg,), optimizer, rounds=POWERSGD_ROUNDS, state=4.0)
        size = [mark.nbytes if actor.method == DENSE else 2 * mark.numel for mark in marks]
        legs = [
            Leg(mark.ready, SUM, nbytes, encode=excess * mark.numel / whole)
            for mark, nbytes in zip(marks, size, strict=True)
        ]
        return Burden(tuple(legs), optimizer, state=0.0)

    # ------------------------------------------------------------------------------------------------------- rules

    def _of_rule(self, actor: Actor) -> Burden:
        marks = self._marks
        rule = actor.channels[0].rule
        posted = self._posted(rule, [mark.names for mark in marks], self._kept)
        encode = _by_bucket(actor.parts["send"], len(marks))
        between = self._excess(actor) - sum(encode) - sum(_by_bucket(actor.parts["receive"], len(marks)))
        legs = [
            Leg(mark.ready, LATER, own.nbytes, seconds, own.decode, own.each)
            for mark, own, seconds in zip(marks, posted, encode, strict=True)
        ]
        kinds = [self._kind(own, leg) for own, leg in zip(posted, legs, strict=True)]
        return Burden(
            bundled(legs, kinds),
            typical(actor.splits).optimizer,
            max(0.0, between),
            verdicts=1 + sum(not own.fixed for own in posted),
            state=state_bytes(actor),
        )

    def _kind(self, own: Mail, leg: Leg) -> Kind | None:
        """How a message travels by itself; None where it is short, and waits for others."""
        if own.summed and adds_up(own.summed, self._workers):
            return SHARES
        return None if own.nbytes < SHORT else by_size(leg.nbytes)

    def _outer(self, actor: Actor) -> Burden:
        """An exchange of all that parameters moved, at the end of a window."""
        outer = outer_of(actor.method)
        assert outer is not None
        names = tuple(name for mark in self._marks for name in mark.names)
        flats = [[torch.cat(list(step))] for step in self._kept]
        (posted,) = self._posted(outer.rule, [names], flats)
        steps = len(actor.splits)
        encode, decode = (sum(actor.parts[half]) / steps for half in ("send", "receive"))
        exchange = middle(actor.parts["outer"])
        leg = Leg(0.0, by_size(posted.nbytes), posted.nbytes, encode, posted.decode, posted.each)
        return Burden(
            (leg,),
            max(0.0, typical(actor.splits).optimizer - exchange),
            max(0.0, exchange - encode - decode),
            verdicts=1,
            every=outer.every,
            state=state_bytes(actor) + 4.0,
        )

    @property
    def _kept(self) -> list[list[Tensor]]:
        assert self._alone.watch is not None
        return self._alone.watch.kept

    def _posted(self, rule: Rule, buckets: Sequence[tuple[str, ...]], kept: Sequence[Sequence[Tensor]]) -> list[Mail]:
        """What is sent about each bucket, and what decoding takes: by so many workers' messages, where they are few."""
        parameters = {name: p.detach() for name, p in self._alone.ddp.module.named_parameters()}
        parameters = {name: parameters[name] for names in buckets for name in names}
        sizes = [self._workers] if self._workers <= FEW else [2, FEW]
        steps = [self._played(Ensemble(rule, parameters, size), buckets, kept) for size in sizes]
        few, many = [[_mean(column) for column in zip(*each, strict=True)] for each in (steps[0], steps[-1])]
        return [Mail.of(*pair, sizes) for pair in zip(few, many, strict=True)]

    def _played(
        self, ensemble: Ensemble, buckets: Sequence[tuple[str, ...]], kept: Sequence[Sequence[Tensor]]
    ) -> list[list[Posted]]:
        for turn in range(SETTLED):
            ensemble.step(buckets, kept, turn)
        self._together()
        return [ensemble.step(buckets, kept, turn) for turn in range(self._rounds * self._steps)]


@dataclass(frozen=True)
class Mail:
    """What is sent about a bucket in a typical step."""

    nbytes: float
    fixed: bool
    summed: int
    decode: float
    each: float

    @staticmethod
    def of(few: Posted, many: Posted, sizes: Sequence[int]) -> Mail:
        """From the messages of two numbers of workers, or of one."""
        if len(sizes) == 1:
            each, rest = many.decode / sizes[0], 0.0
        else:
            each = max(0.0, (many.decode - few.decode) / (sizes[1] - sizes[0]))
            rest = max(0.0, many.decode - sizes[1] * each)
        return Mail(many.nbytes, many.fixed, many.summed, rest, each)


def _mean(posted: Sequence[Posted]) -> Posted:
    nbytes = statistics.fmean(each.nbytes for each in posted)
    fixed, summed = all(each.fixed for each in posted), max(each.summed for each in posted)
    return Posted(round(nbytes), fixed, summed, middle([each.decode for each in posted]))


def _by_bucket(seconds: Sequence[float], buckets: int) -> list[float]:
    """The typical seconds of each bucket, from those of all steps in order."""
    return [middle(seconds[place::buckets]) for place in range(buckets)]


def by_size(nbytes: float) -> Kind:
    """How gloo carries a message of so many bytes."""
    return TELL if nbytes <= DIRECT else GATHER


def bundled(legs: Sequence[Leg], kinds: Sequence[Kind | None]) -> tuple[Leg, ...]:
    """As the hook sends them: short messages wait, and travel with the one that makes them long, or with the last.

    >>> few = [Leg(at, "later", 10_000.0, decode=0.001) for at in (0.1, 0.2)]
    >>> [(leg.kind, leg.nbytes, leg.decode) for leg in bundled(few, [None, None])]
    [('later', 0.0, 0), ('tell', 20000.0, 0.002)]
    """
    done: list[Leg] = []
    waiting: list[Leg] = []
    for place, (leg, kind) in enumerate(zip(legs, kinds, strict=True)):
        waiting += [leg] if kind is None else []
        ends = place == len(legs) - 1 or sum(each.nbytes for each in waiting) >= FULL
        if kind is not None:
            done.append(_as(leg, kind, [leg]))
        if kind is None or (waiting and ends):
            done.append(_together(leg, waiting) if ends else _as(leg, LATER, []))
        waiting = [] if ends else waiting
    return tuple(done)


def _together(leg: Leg, waiting: Sequence[Leg]) -> Leg:
    return _as(leg, by_size(sum(each.nbytes for each in waiting)), waiting)


def _as(leg: Leg, kind: Kind, whole: Sequence[Leg]) -> Leg:
    """A leg that carries the messages of several."""
    encode = leg.encode if not whole or whole[-1] is leg else 0.0
    nbytes, decode, each = (sum(getattr(one, what) for one in whole) for what in ("nbytes", "decode", "each"))
    return Leg(leg.ready, kind, float(nbytes), encode, decode, each)


def state_bytes(actor: Actor) -> float:
    """Bytes a parameter that an actor's rules remember; what is shared by a row or a column counts as nothing."""
    pairs = [(channel.rules[n], info.numel) for channel in actor.channels for n, info in channel.parameters.items()]
    held = sum(
        numel * sum(slot.bits / 8 for slot in rule.slots if not (slot.single or slot.factored)) for rule, numel in pairs
    )
    return held / sum(numel for _, numel in pairs)
