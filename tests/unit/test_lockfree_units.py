"""Units of the lock-free engine: who is compared with what, and that nothing else depends on them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import load_iris
from tests.unit.lockfree_data import samples

from thinwire.errors import ConfigError
from thinwire.linear import Bottou, Decoupled, InMemory, LockFree, Samples, Uniform, independent
from thinwire.linear.losses import slope
from thinwire.linear.steps.sparse_step import sparse_product
from thinwire.sklearn import MemSGDClassifier, MemSGDRegressor

N, D, STEPS = 80, 300, 400
SCHEDULE = Bottou(0.7, 0.02)
Choice = Callable[[Any, float], Any]
"""Of |p|/u and η: which coordinates are written."""


def words(seed: int = 0, *, units: str | None = "popularity") -> Samples:
    """Sparse rows whose first columns are in most of them and whose last are in one or none."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N, D)) * (rng.random((N, D)) < 1 / (1 + np.arange(D) / 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.where(rows @ rng.normal(size=D) > 0, 1.0, -1.0)
    shuffled = rng.permutation(D)
    return Samples.of(csr_matrix(rows[:, shuffled]), labels, units=units)


def above(share: Any, eta: float) -> Any:
    return np.flatnonzero(share >= eta * 0.9)


def largest(share: Any, eta: float) -> Any:
    return np.argsort(-share, kind="stable")[:4]


def transcribed(data: Samples, choose: Choice) -> tuple[Any, Any]:
    """Algorithm 1 with p compared as |p|/u, and everything in units of one. x and m."""
    assert data.units is not None
    x, m, u = np.zeros(data.d), np.zeros(data.d), data.units.sizes
    order, etas = independent(len(data), 0, 0, STEPS), SCHEDULE(np.arange(STEPS, dtype=np.float64))
    for i, eta in zip(order, etas, strict=True):
        first, last = data.rows.indptr[i : i + 2]
        columns, values = data.rows.indices[first:last], data.rows.data[first:last]
        z = float(sparse_product(columns.astype(np.uint32), values, x))
        m[columns] += (eta * slope(int(data.loss), z, data.targets[i])) * values
        chosen = choose(np.abs(m) / u, float(eta))
        x[chosen] -= m[chosen]
        m[chosen] = 0
    return x, m


@pytest.mark.parametrize(("rule", "choose"), [("threshold(0.9)", above), ("topk(count=4)", largest)])
def test_every_number_has_the_bits_that_it_has_without_units(rule: str, choose: Choice) -> None:
    data = words()
    engine = LockFree(data, f"memsgd({rule})", SCHEDULE, order=independent)
    engine.run(STEPS)
    x, m = transcribed(data, choose)
    assert np.array_equal(engine.x, x)
    assert np.array_equal(engine.memory[0], m)
    assert x.any()
    assert m.any()
    equal = LockFree(words(units=None), f"memsgd({rule})", SCHEDULE, order=independent)
    equal.run(STEPS)
    assert not np.array_equal(equal.x, x)


def test_units_are_powers_of_two_about_the_cube_root_of_popularity() -> None:
    data = words()
    assert data.units is not None
    counts, places, sizes = np.bincount(data.rows.indices, minlength=D), data.units.places, data.units.sizes
    assert sorted(places.tolist()) == list(range(D))
    assert (np.diff(counts[np.argsort(places)]) <= 0).all()
    assert np.array_equal(np.exp2(np.rint(np.log2(sizes))), sizes)
    first = np.maximum(counts[np.argsort(places)][places // 64 * 64], 1)  # the most popular of 64 neighbours
    assert (np.abs(np.log2(sizes) - np.log2(first / N) / 3) <= 0.5).all()
    assert len(set(sizes.tolist())) >= 3


def test_equally_popular_features_have_equal_units() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 70))
    data = Samples.of(csr_matrix(rows), np.ones(20), loss="squared", units="popularity")
    assert data.units is not None
    assert data.units.sizes.tolist() == [1.0] * 70


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_written_is_remembered(threads: int, dtype: type) -> None:
    """x − Σ m_w takes the steps of SGD, whatever the units."""
    data = words()
    data = Samples.of(data.rows.astype(dtype), data.targets, units="popularity")
    engine = LockFree(data, "memsgd(threshold(0.9))", SCHEDULE, threads=threads)
    engine.run(STEPS)
    assert engine.last is not None
    moves = engine.last.coefficients[:, None] * data.rows.toarray()[engine.last.samples]
    virtual = engine.x - engine.memory.sum(axis=0)
    assert np.abs(virtual + moves.sum(axis=0)).max() <= STEPS * 4 * np.finfo(dtype).eps
    assert 0 < engine.written < STEPS * data.rows.nnz / N / 2
    engine.flush_()
    assert np.abs(engine.x - virtual).max() <= 4 * np.finfo(dtype).eps
    assert not engine.memory.any()


def test_a_start_and_a_mean_are_in_units_of_one() -> None:
    data, start = words(), np.random.default_rng(3).normal(size=D)
    options: dict[str, Any] = {"regulariser": Decoupled(0.01), "start": start}
    engine = LockFree(data, "memsgd(threshold(0.9))", SCHEDULE, average=Uniform(), **options)
    assert np.array_equal(engine.x, start)
    slow = LockFree(data, "memsgd(threshold(0.9))", SCHEDULE, **options)
    iterates = []
    for _ in range(50):
        iterates.append(slow.x.copy())
        slow.run(1)
    engine.run(50)
    assert np.abs(engine.estimate - np.mean(iterates, axis=0)).max() <= 1e-13
    assert engine.loss() == pytest.approx(data.objective(np.mean(iterates, axis=0), 0.01), rel=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_other_samples_are_taken_in_the_same_units(threads: int) -> None:
    engine = LockFree(words(), "memsgd(threshold(0.9))", SCHEDULE, threads=threads, order=independent)
    units = engine.samples.units
    engine.run(100)
    again = pickle.loads(pickle.dumps(engine))
    for each in (engine, again):
        each.feed_(words(1))
        each.run(100)
    assert engine.samples.units is units
    if threads == 1:
        assert np.array_equal(engine.x, again.x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "plain(identity())"}, "units are for topk and threshold"),
        ({"rule": "memsgd(randk(count=3))"}, "units are for topk and threshold"),
        ({"regulariser": InMemory(0.1)}, "decoupled regulariser"),
    ],
)
def test_units_are_refused_where_nothing_is_compared(change: dict[str, Any], message: str) -> None:
    arguments = {"rule": "memsgd(topk(count=3))", "schedule": SCHEDULE} | change
    with pytest.raises(ConfigError, match=message):
        LockFree(words(), **arguments)


def test_units_of_other_features_are_refused() -> None:
    data = words()
    for other in (samples(d=D - 1), samples(d=D, dtype=np.float32), samples(d=D, sparse=False)):
        with pytest.raises(ConfigError, match='units are "popularity", None, or those of'):
            other.in_units(data.units)
    with pytest.raises(ConfigError, match="got 5"):
        MemSGDClassifier(units=5).fit(data.rows, data.targets)


def test_units_that_are_not_known_and_dense_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="units are \"popularity\", or None for equal ones, got 'size'"):
        words(units="size")
    with pytest.raises(ConfigError, match="for sparse rows"):
        samples(sparse=False).in_units("popularity")


# ------------------------------------------------------------------------------------------- in scikit-learn's manner


def test_a_classifier_of_several_classes_in_units() -> None:
    X, y = load_iris(return_X_y=True)
    X = csr_matrix(np.where(X > 1.5, X, 0.0))
    model = MemSGDClassifier(rule="memsgd(threshold(0.05))", units="popularity", random_state=0, max_iter=200)
    assert model.fit(X, y).score(X, y) > 0.9
    shared = {id(engine.samples.units) for engine in model._engines}
    assert len(shared) == 1


def test_partial_fits_keep_the_units_of_the_first_batch() -> None:
    X, y = words().rows, words().rows @ np.ones(D)
    model = MemSGDRegressor(rule="memsgd(topk(count=5))", units="popularity", random_state=0)
    model.partial_fit(X[:40], y[:40])
    units = model._engines[0].samples.units
    model = pickle.loads(pickle.dumps(model)).partial_fit(X[40:], y[40:])
    assert np.array_equal(model._engines[0].samples.units.sizes, units.sizes)
    assert model.n_iter_ == 1


def test_an_estimator_refuses_units_for_dense_rows() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ConfigError, match="for sparse rows"):
        MemSGDClassifier(units="popularity").fit(X, y)
