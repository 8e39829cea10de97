"""Laws of runs that workers leave and join, over the one list of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.gradients import LAYOUTS, eps, vectors
from tests.laws.test_rule_laws import EXACT_CRITERIA, EXHAUSTIVE, moment
from tests.methods import METHODS
from torch import Tensor

from thinwire import Channel, EF21Plus, Feedback, Identity, Layout, MemSGD, RandK, TopK
from thinwire.engines.elastic import Roster, Transaction, enter_, settle_, shares
from thinwire.engines.elastic.membership import mean_of
from thinwire.errors import AttachError
from thinwire.feedback import Need
from thinwire.feedback.increments import Increments
from thinwire.outgoing import Given


def is_resizable(rule: Feedback) -> bool:
    try:
        rule.admit_workers(1)
        rule.admit_workers(4)
    except AttachError:
        return False
    return Need.AGREEMENT not in rule.needs


RESIZABLE = [rule for rule in METHODS if is_resizable(rule)]
SOME = [MemSGD(TopK(0.1), memory="int8"), MemSGD(RandK(0.2))]
KEEPS_ALL = [rule for rule in RESIZABLE if isinstance(rule, MemSGD) and (rule.decay, rule.memory) == (1.0, "full")]
KEEPS_ALL_TOO = [rule for rule in EXACT_CRITERIA if rule.decay == 1.0]
FIRST = {
    type(rule): rule for rule in reversed(RESIZABLE) if not isinstance(getattr(rule, "compressor", None), Identity)
}
each_form = pytest.mark.parametrize(
    "rule",
    [pytest.param(r, id=str(r), marks=() if r in (*FIRST.values(), *SOME) else EXHAUSTIVE) for r in RESIZABLE],
)
"""Every form of every rule; the quick suite takes one form of each."""
CHANGES = ("step", "step", "fail", "leave", "join", "both")


@dataclass
class Group:
    """Some workers, each with its own end of the rule, as on different machines."""

    rule: Feedback
    layout: Layout
    channels: list[Channel] = field(default_factory=list)
    roster: Roster = field(default_factory=Roster)
    left: list[Channel] = field(default_factory=list)
    born: int = 0

    def fresh(self) -> Channel:
        zeros = {p.name: torch.zeros(p.shape, dtype=torch.float64) for p in self.layout.pieces}
        return Channel(self.rule, zeros, rank=0, size=1, seed=11)

    def change(self, leaving: Sequence[int], joining: int) -> None:
        """Some workers leave, others join: as `ElasticHandle.enroll` has it."""
        survivors = [channel for rank, channel in enumerate(self.channels) if rank not in leaving]
        self.left += [self.channels[rank] for rank in leaving]
        means = {}
        if leaving and survivors:
            every = [shares(channel) for channel in survivors]
            means = {key: mean_of([own[key] for own in every]) for key in every[0]}
        newcomers = [self._newcomer(survivors[0] if survivors else None) for _ in range(joining)]
        stay = [member for rank, member in enumerate(self.roster.members) if rank not in leaving]
        old, self.roster = self.roster, Roster((*stay, *range(self.born, self.born + joining)))
        self.born += joining
        for rank, channel in enumerate([*survivors, *newcomers]):
            channel.regroup_(rank, self.roster.came_from(old) if old.members else [None] * joining)
            settle_(channel, means)
            if channel in newcomers:
                enter_(channel)
        self.channels = [*survivors, *newcomers]

    def _newcomer(self, peer: Channel | None) -> Channel:
        """What is common is copied from a peer."""
        channel = self.fresh()
        if peer is not None:
            channel.regroup_(0, [None] * peer.size)
            for name in channel.parameters:
                for slot in channel.server.slots_of(name):
                    channel.server.write(name, slot.name, peer.server.view(name, slot.name))
            channel.clock.now = peer.clock.now
        return channel

    def step(
        self, gradients: Sequence[Tensor], size: float, *, fails: bool = False, fold: bool = True
    ) -> Tensor | None:
        """One step; with `fails` it is taken back on all."""
        steps = self.sent(gradients, size, fold=fold)
        if fails:
            for step in steps:
                step.revoke_(self.sizes(size))
            return None
        outs = self.received(steps)
        for step in steps:
            step.commit_()
        assert all(torch.equal(out, outs[0]) for out in outs)
        return outs[0]

    def sizes(self, size: float) -> dict[str, float]:
        return {piece.name: size for piece in self.layout.pieces}

    def sent(self, gradients: Sequence[Tensor], size: float, *, fold: bool = True) -> list[Transaction]:
        steps = []
        for channel, gradient in zip(self.channels, gradients, strict=False):
            step = Transaction(channel, 0, fold=fold)
            asked = Given(gradient, self.sizes(size), moment=moment(gradient), previous=0.75 * gradient)
            step.sent.append(channel.send(self.layout, asked))
            steps.append(step)
        return steps

    def received(self, steps: Sequence[Transaction]) -> list[Tensor]:
        messages = [step.sent[0].message for step in steps]
        empty = torch.empty(self.layout.numel, dtype=torch.float64)
        return [c.receive(s.sent[0], messages, empty.clone()) for c, s in zip(self.channels, steps, strict=True)]

    def kept(self, channel: Channel) -> Tensor:
        """What a worker has not sent, as an update."""
        views = [
            channel.worker.view(p.name, self.rule.owes[0]).reshape(-1) * channel.step_sizes.get(p.name, 1.0)
            for p in self.layout.pieces
        ]
        return torch.cat(views) if views else torch.zeros(0, dtype=torch.float64)


def state(channel: Channel, *, common: bool = True) -> dict[tuple[str, str], Tensor]:
    stores = [channel.worker, *([channel.server] if common else [])]
    return {
        (name, slot.name): store.view(name, slot.name).clone()
        for store in stores
        for name in channel.parameters
        for slot in store.slots_of(name)
    }


def same(one: dict[tuple[str, str], Tensor], two: dict[tuple[str, str], Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def one_step(layout: Layout, workers: int) -> st.SearchStrategy[list[Tensor]]:
    return st.lists(vectors(layout, torch.float64), min_size=workers, max_size=workers)


def changed(group: Group, what: str, rank: int) -> None:
    leaving = [rank % len(group.channels)] if what in ("leave", "both") and len(group.channels) > 1 else []
    joining = 1 if what in ("join", "both") and len(group.channels) - len(leaving) < 4 else 0
    if leaving or joining:
        group.change(leaving, joining)


@each_form
@settings(max_examples=3)
@given(
    data=st.data(),
    layout=st.sampled_from(LAYOUTS),
    changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3)), min_size=1, max_size=7),
)
def test_all_workers_hold_the_same_and_the_mean_is_that_of_the_present(
    rule: Feedback, data: st.DataObject, layout: Layout, changes: list[tuple[str, int]]
) -> None:
    """Who left is no longer in it, who joined is; each of the t changes and steps rounds a handful of times."""
    group = Group(rule, layout)
    group.change([], 3)
    largest = 1.0
    for what, rank in [("step", 0), *changes, ("step", 0)]:
        changed(group, what, rank)
        gradients = data.draw(one_step(layout, 4))
        largest = max(largest, *(float(g.abs().max()) if g.numel() else 0.0 for g in gradients))
        group.step(gradients, 0.5, fails=what == "fail")
    first, *others = group.channels
    for other in others:
        for name in first.parameters:
            for slot in first.server.slots_of(name):
                assert torch.equal(first.server.view(name, slot.name), other.server.view(name, slot.name))
    for piece in layout.pieces if isinstance(rule, Increments | EF21Plus) else ():
        own = [channel.worker.view(piece.name, "local") for channel in group.channels]
        if isinstance(rule, EF21Plus):
            rows = first.server.view(piece.name, "locals")
            assert ((torch.stack(own) - rows).abs() <= 64 * eps(torch.float64) * len(changes) * largest).all()
        else:
            mean = first.server.view(piece.name, "mean")
            error = (torch.stack(own).mean(0) - mean).abs()
            assert (error <= 256 * eps(torch.float64) * (len(changes) + 2) * largest).all()


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=str(rule), marks=EXHAUSTIVE if place % 4 else ())
        for place, rule in enumerate([*KEEPS_ALL, *KEEPS_ALL_TOO])
    ],
)
@settings(max_examples=5)
@given(
    data=st.data(),
    layout=st.sampled_from(LAYOUTS),
    changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3)), min_size=1, max_size=7),
)
def test_nothing_is_lost_by_those_who_stay(
    rule: Feedback, data: st.DataObject, layout: Layout, changes: list[tuple[str, int]]
) -> None:
    """n times what was applied, plus all memories, those that leavers took along too, is what was given: gradients of
    failed steps too, at any step size."""
    group = Group(rule, layout)
    group.change([], 3)
    applied, given_, mass = (torch.zeros(layout.numel, dtype=torch.float64) for _ in range(3))
    scaled = isinstance(rule, MemSGD)  # the others' memories are in units of gradients
    for place, (what, rank) in enumerate(changes):
        changed(group, what, rank)
        size = (1.0, 0.25, 2.0)[place % 3] if scaled else 1.0
        gradients = data.draw(one_step(layout, 4))
        gradients = gradients[: len(group.channels)]
        out = group.step(gradients, size, fails=what == "fail")
        applied += 0.0 if out is None else size * len(group.channels) * out
        given_ += size * sum(gradients)
        mass += size * sum(g.abs() for g in gradients)
    kept = sum(group.kept(channel) for channel in [*group.channels, *group.left])
    scales = mass + mass.max() if mass.numel() else mass
    assert ((applied + kept - given_).abs() <= 64 * eps(torch.float64) * (len(changes) + 1) * scales).all()


@each_form
@settings(max_examples=3)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_a_step_can_be_taken_back_and_taken_after_all(rule: Feedback, data: st.DataObject, layout: Layout) -> None:
    """Whatever a worker believed at first: once the run has spoken, its own state is that of a worker that knew."""
    stream = [data.draw(one_step(layout, 2)) for _ in range(3)]
    groups = [Group(rule, layout) for _ in range(5)]
    for group in groups:
        group.change([], 2)
        group.step(stream[0], 1.0)
        group.step(stream[1], 0.5)
    knew, doubted, fooled, forgot, folded = groups
    before = [state(channel) for channel in forgot.channels]
    knew.step(stream[2], 0.25)
    after = [state(channel, common=False) for channel in knew.channels]
    for step in doubted.sent(stream[2], 0.25):
        step.revoke_(doubted.sizes(0.25))
        step.settle_(True)
    assert all(same(state(c, common=False), known) for c, known in zip(doubted.channels, after, strict=True))
    forgot.step(stream[2], 0.25, fails=True, fold=False)
    assert all(same(state(c), known) for c, known in zip(forgot.channels, before, strict=True))
    folded.step(stream[2], 0.25, fails=True)
    steps = fooled.sent(stream[2], 0.25)
    fooled.received(steps)
    for step in steps:
        step.commit_()
        step.settle_(False)
    pairs = list(zip(fooled.channels, folded.channels, strict=True))
    assert all(same(state(one, common=False), state(two, common=False)) for one, two in pairs)
    assert all(one.step_sizes == two.step_sizes for one, two in pairs)


def test_a_first_step_that_fails_waits_at_its_own_step_size() -> None:
    """A gradient of a step that failed before any was taken waits at the step size of that step."""
    group = Group(MemSGD(TopK(count=1)), Layout.of([("x", 0, (3,))]))
    group.change([], 1)
    group.step([torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)], 0.5, fails=True)
    assert group.kept(group.channels[0]).tolist() == [2.0, 1.0, 0.5]
    group.step([torch.zeros(3, dtype=torch.float64)], 1.0)
    assert group.kept(group.channels[0]).tolist() == [0.0, 1.0, 0.5]
