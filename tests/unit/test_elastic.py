"""Workers that leave and join: what `ElasticHandle` keeps, copies, sends anew and refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.engines.elastic import Chronicle, ElasticHandle, Elasticity
from thinwire.errors import AttachError, BackendError, NonFiniteGradient, PeerLost, QuorumError, StateError
from thinwire.exchange import Loopback
from thinwire.moments import watch
from thinwire.spec import parse
from thinwire.torchft import attach_elastic

RATE = 0.5


class Torn:
    """An end whose link breaks when the others have heard all that it says of something."""

    def __init__(self, end: Any, what: str) -> None:
        self._end, self._what = end, what
        self.rank, self.size, self.begin, self.gather = end.rank, end.size, end.begin, end.gather

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        answers: list[list[int]] = self._end.everyone(numbers, what)
        if what == self._what:
            raise PeerLost(self.rank, self.size, "a step", what, None, "connection closed")
        return answers


class Worker:
    """A model of two parameters, its optimizer and its handle."""

    def __init__(self, rule: str = "memsgd(topk(count=1))", rate: float = RATE, **given: Any) -> None:
        self.model = nn.Linear(3, 1, dtype=torch.float64)
        nn.init.zeros_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.handle = ElasticHandle(self.model, parse(rule), self.optimizer, Elasticity(ledger_every=1, **given))
        self.sum_given = torch.zeros(4, dtype=torch.float64)

    def give(self, *numbers: float) -> None:
        self.model.weight.grad = torch.tensor([numbers[:3]], dtype=torch.float64)
        self.model.bias.grad = torch.tensor(numbers[3:], dtype=torch.float64)
        self.sum_given += RATE * torch.tensor(numbers, dtype=torch.float64)

    def step(self) -> bool:
        """As the door does it."""
        try:
            taken = self.handle.exchange()
        except PeerLost:
            self.handle.revoke()
            return False
        if taken:
            self.optimizer.step()
            self.handle.commit()
        return taken

    def parameters(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def kept(self) -> Tensor:
        return RATE * torch.cat([memory.reshape(-1) for memory in self.handle.owed().values()])

    def heal(self, peer: Worker) -> None:
        """As the door does it."""
        self.handle.load_shared_state(peer.handle.shared_state())
        self.model.load_state_dict(peer.model.state_dict())
        self.optimizer.load_state_dict(peer.optimizer.state_dict())


def at_once(workers: Sequence[Worker], job: Callable[[Worker, int], Any]) -> list[Any]:
    """What each worker's job gives, or the error that it raises."""

    def guarded(worker: Worker, rank: int) -> Any:
        try:
            return job(worker, rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(guarded, workers, range(len(workers))))


def enrolled(*workers: Worker, torn: int | None = None, at: str = "") -> list[Any]:
    """All workers in one group; of one of them the link breaks later, or now."""
    ends: list[Any] = list(Loopback(len(workers)).ends)
    if torn is not None:
        ends[torn] = Torn(ends[torn], at)
    return at_once(workers, lambda worker, rank: worker.handle.enroll(ends[rank]))


def stepped(*workers: Worker, gradients: Sequence[Sequence[float]] | None = None) -> list[Any]:
    given = gradients or [[4.0 + rank, 2.0, 1.0 - rank, 1.0] for rank in range(len(workers))]
    for worker, numbers in zip(workers, given, strict=True):
        worker.give(*numbers)
    return at_once(workers, lambda worker, _: worker.step())


def test_workers_step_together_a_third_joins_and_one_leaves() -> None:
    one, two, three = Worker(), Worker(), Worker()
    assert enrolled(one, two) == [None, None]
    assert stepped(one, two) == [True, True]
    three.heal(one)
    assert enrolled(one, two, three) == [None] * 3
    assert three.kept().abs().sum() == 0
    assert one.kept().abs().sum() > 0
    assert stepped(one, two, three) == [True] * 3
    assert all(torch.equal(one.parameters(), other.parameters()) for other in (two, three))
    left = float(torch.linalg.vector_norm(two.kept()))
    assert enrolled(one, three) == [None] * 2
    (departure,) = one.handle.departures
    assert (departure.member, departure.step) == (two.handle.member, 1)
    assert departure.unsent == pytest.approx(left, rel=1e-12)
    assert stepped(one, three) == [True] * 2
    assert torch.equal(one.parameters(), three.parameters())
    assert (one.handle.size, one.handle.ledger.workers) == (2, 2)


def test_the_mean_of_differences_follows_who_is_there() -> None:
    workers = [Worker("ef21(topk(count=1))") for _ in range(3)]
    enrolled(*workers)
    stepped(*workers)
    stepped(*workers, gradients=[[9.0, 0, 0, 1], [0, 9.0, 0, 1], [0, 0, 9.0, 1]])
    one, two, three = workers
    four = Worker("ef21(topk(count=1))")
    four.heal(two)
    enrolled(one, four, three)
    locals_ = [w.handle.channel.worker.view("weight", "local") for w in (one, three)]
    for worker in (one, four, three):
        mean = worker.handle.channel.server.view("weight", "mean")
        assert torch.allclose(mean, torch.stack(locals_).mean(0), rtol=1e-14)
    assert torch.equal(four.handle.channel.worker.view("weight", "local"), mean)
    booked = one.handle.ledger.summary()["sent_bytes"]
    five = Worker("ef21(topk(count=1))")
    five.heal(one)
    enrolled(one, four, three, five)
    assert one.handle.ledger.summary()["sent_bytes"] == booked  # who only joins costs no bytes


@pytest.mark.parametrize("heard", ["agreeing on the step", "norms of what is not sent"])
def test_a_step_that_one_took_and_one_did_not_is_taken_by_both_in_the_end_or_by_none(heard: str) -> None:
    """n times what was applied, plus what waits, is what was given: whichever way the step went."""
    one, two = Worker(), Worker()
    applied = torch.zeros(4, dtype=torch.float64)
    enrolled(one, two)
    stepped(one, two)
    applied -= 2 * one.parameters()
    before = one.parameters()
    if heard == "agreeing on the step":
        assert enrolled(one, two, torn=1, at=heard) == [None, None]
        assert stepped(one, two) == [True, False]
        two.heal(one)  # a quorum's step counts tell the manager
    else:

        def broken(worker: Worker, rank: int) -> None:
            worker.give(3.0, 2.0, 1.0, 0.5)
            worker.handle.revoke()

        at_once([one, two], broken)
    assert enrolled(one, two) == [None, None]
    applied -= 2 * (one.parameters() - before)
    assert torch.equal(one.parameters(), two.parameters())
    assert torch.allclose(applied + one.kept() + two.kept(), one.sum_given + two.sum_given, rtol=1e-14)


def test_who_took_a_step_that_the_run_did_not_take_is_found_astray_and_takes_it_back() -> None:
    one, two, three = Worker(), Worker(), Worker()
    enrolled(one, two, three)
    stepped(one, two, three)
    before = three.parameters()
    assert enrolled(one, two, three, torn=1, at="agreeing on the step") == [None] * 3
    # the last word reaches the third alone
    one.give(1.0, 2.0, 3.0, 4.0), two.give(1.0, 2.0, 3.0, 4.0), three.give(1.0, 2.0, 3.0, 4.0)
    at_once([one, two, three], lambda worker, _: worker.handle.exchange() and None)
    for worker in (one, two):
        worker.handle.revoke()
    three.optimizer.step()
    three.handle.commit()
    enrolled(one, two)
    stepped(one, two)
    errors = enrolled(one, two, three)
    assert all(isinstance(error, QuorumError) for error in errors)
    assert [worker.handle.astray for worker in (one, two, three)] == [False, False, True]
    three.heal(one)
    assert enrolled(one, two, three) == [None] * 3
    applied = -3 * before - 2 * (one.parameters() - before)
    kept = sum(worker.kept() for worker in (one, two, three))
    assert torch.allclose(applied + kept, sum(worker.sum_given for worker in (one, two, three)), rtol=1e-14)


def test_a_memory_is_carried_to_the_step_size_of_the_run_that_it_comes_back_to() -> None:
    """Its mass in units of updates is what counts."""
    one, two = Worker(), Worker()
    enrolled(one, two)
    stepped(one, two)
    kept = two.kept()
    enrolled(one)
    one.optimizer.param_groups[0]["lr"] = RATE / 4
    one.give(1.0, 1.0, 1.0, 1.0)
    one.step()
    two.heal(one)
    assert torch.allclose(two.kept() / 4, kept, rtol=1e-14)


def test_without_folding_a_failed_step_leaves_everything_as_it_was() -> None:
    worker = Worker(fold=False)
    enrolled(worker)
    stepped(worker)
    kept = worker.kept()
    worker.give(9.0, 9.0, 9.0, 9.0)
    worker.handle.exchange()
    worker.handle.revoke()
    assert torch.equal(worker.kept(), kept)


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_step_with_nan_is_undone_on_all(nonfinite: str) -> None:
    workers = [Worker(nonfinite=nonfinite) for _ in range(2)]
    enrolled(*workers)
    stepped(*workers)
    kept = [worker.kept() for worker in workers]
    answers = stepped(*workers, gradients=[[1.0, 2.0, 3.0, 4.0], [1.0, float("nan"), 3.0, 4.0]])
    if nonfinite == "skip":
        assert answers == [False, False]
    else:
        assert all(isinstance(answer, NonFiniteGradient) and answer.rank == 1 for answer in answers)
    assert all(torch.equal(worker.kept(), before) for worker, before in zip(workers, kept, strict=True))
    assert stepped(*workers) == [True, True]


def test_another_rule_is_an_error_on_all_at_the_start() -> None:
    errors = enrolled(Worker(), Worker("memsgd(topk(count=2))"))
    assert all(
        isinstance(error, AttachError) and "rule: rank 0 has memsgd(topk(count=1))" in str(error) for error in errors
    )


def test_another_rule_later_is_an_error_there_and_the_run_goes_on() -> None:
    one, two, other = Worker(), Worker(), Worker("memsgd(topk(count=2))")
    enrolled(one, two)
    stepped(one, two)
    with pytest.raises(StateError, match=r"belongs to memsgd\(topk\(count=1\)\), this run uses"):
        other.heal(one)
    here, there, error = enrolled(one, two, Worker("memsgd(topk(count=2))"))
    assert isinstance(here, QuorumError)
    assert isinstance(there, QuorumError)
    assert isinstance(error, AttachError)
    assert enrolled(one, two) == [None, None]
    assert stepped(one, two) == [True, True]


def test_another_learning_rate_is_told_with_both_values() -> None:
    one, two = Worker(), Worker()
    enrolled(one, two)
    two.optimizer.param_groups[0]["lr"] = 0.25
    errors = stepped(one, two)
    assert all(
        "learning rate of the optimizer's parameter group 0: rank 0 has 0.5, rank 1 has 0.25" in str(e) for e in errors
    )


def test_messages_of_another_quorum_are_refused() -> None:
    """Their digest holds the quorum, and how many take part."""
    one, two = Worker(), Worker()
    enrolled(one, two)
    two.handle.epoch += 1
    assert all("drifted apart in quorum" in str(error) for error in stepped(one, two))


def test_a_rule_for_a_fixed_number_of_workers_is_refused() -> None:
    with pytest.raises(AttachError, match=r"ef21w.* cannot be resized, .*Use ef21 in its place"):
        Worker("ef21w(topk(0.1), smoothness=(1.0, 2.0))")


def test_a_step_before_any_group_is_an_error() -> None:
    worker = Worker()
    worker.give(1.0, 2.0, 3.0, 4.0)
    with pytest.raises(QuorumError, match="enroll"):
        worker.handle.exchange()
    with pytest.raises(QuorumError, match="exchange first"):
        Worker().handle.commit()
    with pytest.raises(AttachError, match='"raise" or "skip"'):
        Worker(nonfinite="maybe")


def test_a_chronicle_remembers_the_last_changes_and_reads_back() -> None:
    chronicle = Chronicle()
    for step in range(3000):
        chronicle = chronicle.taken(step // 2, step)
    assert len(chronicle.eras) == 1000
    assert chronicle.holds(1499, 2999)
    assert not chronicle.holds(1499, 2997)
    assert not chronicle.holds(0, 0)
    assert Chronicle.of(chronicle.numbers()) == chronicle
    assert Chronicle().mark != chronicle.mark


def test_without_torchft_the_error_has_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    worker = Worker()
    with pytest.raises(BackendError, match=r"pip install 'thinwire\[torchft\]'"):
        attach_elastic(object(), worker.model, "memsgd(topk(0.1))", worker.optimizer)


class TestManagers:
    """What a manager must be like; none of these is started."""

    @pytest.fixture
    def torchft(self) -> Any:
        return pytest.importorskip("torchft")

    def manager(self, torchft: Any, **changed: Any) -> Any:
        manager = torchft.Manager.__new__(torchft.Manager)
        manager._use_async_quorum, manager._group_world_size = False, 1
        manager._replica_world_size_mode = sys.modules["torchft.manager"].WorldSizeMode.DYNAMIC
        manager._pg = torchft.ProcessGroupGloo()
        for name, value in changed.items():
            setattr(manager, name, value)
        return manager

    def refused(self, manager: Any, words: str) -> None:
        worker = Worker()
        with pytest.raises(AttachError, match=words):
            attach_elastic(manager, worker.model, "memsgd(topk(0.1))", worker.optimizer)

    def test_managers_that_cannot_keep_states_together_are_refused(self, torchft: Any) -> None:
        spares = sys.modules["torchft.manager"].WorldSizeMode.FIXED_WITH_SPARES
        self.refused(object(), r"takes a torchft\.Manager, got object")
        self.refused(self.manager(torchft, _use_async_quorum=True), "use_async_quorum=False")
        self.refused(self.manager(torchft, _replica_world_size_mode=spares), "DYNAMIC")
        self.refused(self.manager(torchft, _group_world_size=2), "one process, this one has 2")
        self.refused(self.manager(torchft, _pg=object()), "use torchft.ProcessGroupGloo")

    def test_a_wrapped_model_is_refused(self, torchft: Any) -> None:
        wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
        with pytest.raises(AttachError, match=r"pass ddp\.module"):
            attach_elastic(self.manager(torchft), wrapped, "memsgd(topk(0.1))", Worker().optimizer)


def test_second_moments_come_from_the_backward_pass_and_a_failed_step_lets_go_of_them() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    handle = ElasticHandle(model, parse("vgc(1.0, values=full)"), optimizer, Elasticity(watch(model)))
    handle.enroll(Loopback(1).ends[0])
    given = torch.zeros(3)
    applied = torch.zeros(3)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).mean().backward()
        assert model.weight.grad is not None
        given += model.weight.grad[0]
        assert handle.exchange()
        if step == 3:
            handle.revoke()
        else:
            applied += model.weight.grad[0]
            optimizer.step()
            handle.commit()
    kept = handle.owed()["weight"].reshape(-1)
    assert torch.allclose(applied + kept, given, rtol=0.0, atol=16 * torch.finfo(torch.float32).eps)


def test_a_rule_that_needs_moments_says_where_they_come_from() -> None:
    with pytest.raises(AttachError, match=r"moments=thinwire\.moments\.watch\(model\)"):
        Worker("vgc(1.0)")
