"""`simulate` on problems with many workers: no more gradients than a round looks at, and the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

from thinwire import EF21, EF21PAGE, EF21PP, MARINA, Plain, RandK, Simulation, TopK, Unbias, simulate
from thinwire.engines.crowd import FEW, Partly, Pointwise
from thinwire.engines.simulate import Instant
from thinwire.problems import Dataset, FiniteSum, file_order, logistic_regression
from thinwire.problems.minibatches import Minibatches
from thinwire.updates import Descent

WORKERS = 12
Points = Mapping[str, Tensor]


def problem(workers: int = WORKERS) -> FiniteSum:
    random = np.random.default_rng(0)
    dense = random.normal(size=(60, 7)) * (random.random((60, 7)) < 0.5)
    labels = np.where(np.arange(60) % 3 == 0, 1.0, 2.0)
    return logistic_regression(Dataset("sample", sparse.csr_matrix(dense), labels, "made"), file_order(60, workers))


class Counted:
    """A problem that notes what is asked of it."""

    def __init__(self, inner: FiniteSum | Minibatches) -> None:
        self.inner, self.workers, self.start, self.loss = inner, inner.workers, inner.start, inner.loss
        self.asked: list[str] = []

    def gradient(self, worker: int, x: Points, step: int) -> dict[str, Tensor]:
        return self.inner.gradient(worker, x, step)

    def all_gradients(self, x: Points, step: int) -> dict[str, Tensor]:
        self.asked.append("all")
        return self.inner.all_gradients(x, step)

    def all_full_gradients(self, x: Points) -> dict[str, Tensor]:
        self.asked.append("full")
        return self.inner.all_full_gradients(x)


class CountedPartly(Counted):
    def some_gradients(self, workers: Sequence[int], x: Points, step: int) -> dict[str, Tensor]:
        self.asked.append(str(len(workers)))
        return self.inner.some_gradients(workers, x, step)


class CountedPointwise(Counted):
    def gradients_at(self, places: Tensor, x: Points, step: int) -> Tensor:
        self.asked.append(f"at {places.numel()}")
        return self.inner.gradients_at(places, x, step)


@pytest.mark.parametrize(
    "rule", [EF21(RandK(count=2)), Plain(RandK(count=2)), MARINA(Unbias(RandK(count=2)), 0.2)], ids=str
)
@pytest.mark.parametrize("batches", [False, True], ids=["exact", "batches"])
def test_only_drawn_coordinates_are_taken(rule: EF21 | Plain | MARINA, batches: bool) -> None:
    inner = Minibatches(problem(), 0.5) if batches else problem()
    whole, pointwise = Counted(inner), CountedPointwise(inner)
    assert isinstance(pointwise, Pointwise)
    runs = [simulate(each, rule, steps=40, step_size=0.1, beyond_theory=True, seed=3) for each in (whole, pointwise)]
    assert runs[0].x["x"].tolist() == runs[1].x["x"].tolist()
    assert runs[0].losses == runs[1].losses
    assert runs[0].ledger.summary() == runs[1].ledger.summary()
    at = [asked for asked in pointwise.asked if asked != "all"]
    assert set(at) == {f"at {2 * WORKERS}", f"at {2 * WORKERS - 2 + 7}"}  # with all of worker 0's where it is measured
    assert len(at) > len(whole.asked) / 2


def test_dense_rows_give_the_same_coordinates() -> None:
    """As do CSR rows with more entries than all gradients have numbers, and with fewer."""
    few, many = problem(), problem(60)
    assert few.workers * few.d <= few.rows.nnz
    assert many.workers * many.d > many.rows.nnz
    dense = FiniteSum(few.rows.toarray(), few.targets, few.offsets, few.sample_loss, few.regulariser)
    x, places = few.start(), torch.tensor([0, 3, 8, 9, 40, 83])
    for each in (few, many, dense):
        assert each.gradients_at(places, x, 0).tolist() == each.all_gradients(x, 0)["x"].view(-1)[places].tolist()


@pytest.mark.parametrize("probability", [0.05, 0.15])
@pytest.mark.parametrize("batches", [False, True], ids=["exact", "batches"])
@pytest.mark.parametrize("compressor", [TopK(count=1), RandK(count=2)], ids=str)
def test_gradients_of_those_who_stay_away_are_not_taken(
    compressor: TopK | RandK, batches: bool, probability: float
) -> None:
    inner = Minibatches(problem(), 0.5) if batches else problem()
    whole, partly, rule = Counted(inner), CountedPartly(inner), EF21PP(compressor, probability)
    assert isinstance(partly, Partly)
    runs = [simulate(each, rule, steps=40, step_size=0.1, beyond_theory=True, seed=3) for each in (whole, partly)]
    assert runs[0].x["x"].tolist() == runs[1].x["x"].tolist()
    assert runs[0].losses == runs[1].losses
    assert runs[0].ledger.summary() == runs[1].ledger.summary()
    assert partly.asked[0] == "all"
    few = [int(asked) for asked in partly.asked[1:] if asked != "all"]
    assert max(few) <= WORKERS * FEW
    assert len(few) > 20
    assert sum(few) < 2 * probability * WORKERS * 39 + 4  # 4 times worker 0's norms


def test_a_rule_may_be_given_as_text() -> None:
    by_text = simulate(problem(), "EF21(topk(count=1))", steps=5, step_size=0.1, beyond_theory=True)
    by_value = simulate(problem(), EF21(TopK(count=1)), steps=5, step_size=0.1, beyond_theory=True)
    assert by_text.losses == by_value.losses


def test_the_run_is_that_of_channels() -> None:
    """CSR rows: one worker's gradient is its row of all workers', bit for bit."""
    rule, inner = EF21PP(TopK(count=1), 0.3), problem()
    run = simulate(inner, rule, steps=30, step_size=0.1, beyond_theory=True, seed=3)
    x = inner.start()
    made = Simulation(x, rule, WORKERS, seed=3)
    for _ in range(30):
        rows = inner.all_gradients(x, 0)["x"]
        Descent()(x, made.exchange([{"x": row} for row in rows]), 0.1)
    assert run.x["x"].tolist() == x["x"].tolist()


def test_who_watches_sees_all_gradients() -> None:
    inner = problem()

    def watch(now: Instant) -> bool:
        assert torch.equal(now.gradients["x"], inner.all_gradients(now.x, now.step)["x"])
        return now.step == 9

    for rule in (EF21PP(TopK(count=1), 0.2), EF21(RandK(count=2))):
        run = simulate(inner, rule, steps=20, step_size=0.1, beyond_theory=True, watch=watch)
        assert run.ledger.steps == 9


@pytest.mark.parametrize("kind", [CountedPartly, CountedPointwise])
def test_all_are_taken_at_once_where_somebody_watches_them(kind: type[Counted]) -> None:
    """From the second round that is looked at on: not some of them for the exchange, and then all."""
    rule = EF21PP(TopK(count=1), 0.01) if kind is CountedPartly else EF21(RandK(count=2))
    counted, seen = kind(problem()), []

    def watch(now: Instant) -> bool:
        if 3 <= now.step < 8:
            seen.append(now.gradients["x"])
        return False

    run = simulate(counted, rule, steps=12, step_size=0.1, beyond_theory=True, watch=watch)
    assert [asked == "all" for asked in counted.asked] == [True] + [False] * 3 + [True] * 6 + [False] * 3
    assert len(counted.asked) == 13  # in step 3 both
    assert (
        run.x["x"].tolist()
        == simulate(counted.inner, rule, steps=12, step_size=0.1, beyond_theory=True).x["x"].tolist()
    )


def test_page_takes_one_gradient_in_a_full_round_and_two_in_the_others() -> None:
    counted = Counted(Minibatches(problem(), 0.4))
    simulate(counted, EF21PAGE(TopK(count=2), 0.5), steps=30, step_size=0.1, beyond_theory=True, seed=1)
    full = counted.asked.count("full")
    assert 5 < full < 25
    assert counted.asked.count("all") == 2 * (30 - full)
