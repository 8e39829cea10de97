"""Copies of one vector, kept alike by logs: nothing is lost, however short the logs, however many threads."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse
from numba import njit

from thinwire.errors import ConfigError
from thinwire.linear import Constant, LockFree, Samples, engine, independent
from thinwire.linear.steps import plan, state
from thinwire.linear.steps.logs import add_own_, catch_up_, enter_, leave_, publish_, write_down_
from thinwire.linear.steps.state import BROKEN, LEFT, Private, Shared, private_state, shared_state

D = 40


def states(threads: int, dtype: type = np.float64) -> tuple[Shared, list[Private]]:
    shared = shared_state(np.arange(D, dtype=dtype), np.zeros(0, dtype), threads, atomic=True, copies=True)
    none = dict.fromkeys(("tree", "heap", "marks", "row", "mean"), False)
    return shared, [private_state(shared, worker, 1, D, **none) for worker in range(threads)]


@njit(nogil=True)
def write_many(shared: Any, private: Any, steps: int, value: Any) -> None:
    enter_(shared, private)
    for t in range(steps):
        if t % 16 == 0:
            publish_(shared, private)
            catch_up_(shared, private)
        for j in range(t % 7):
            add_own_(private, (3 * t + 5 * j) % shared.v.size, value)
        write_down_(shared, private)
    leave_(shared, private)


def add(shared: Shared, private: Private, j: int, change: float) -> None:
    add_own_(private, j, change)
    write_down_(shared, private)


def total(steps: int, values: list[int]) -> Any:
    """What all threads add to each coordinate."""
    places = [(3 * t + 5 * j) % D for t in range(steps) for j in range(t % 7)]
    return np.arange(D) + sum(values) * np.bincount(places, minlength=D)


@pytest.mark.parametrize("size", [2, 64, state.LOG])
@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_addition_is_lost(threads: int, size: int, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers add without rounding, so the sums are exact or something was lost, or added twice."""
    monkeypatch.setattr(state, "LOG", size)
    shared, privates = states(threads, dtype)
    steps, values = 2000, [3**worker for worker in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda private: write_many(shared, private, steps, dtype(values[private.log[0]])), privates):
            pass
    assert np.array_equal(shared.v, total(steps, values))
    assert shared.counter[LEFT] == threads


def test_threads_hear_of_each_other_before_they_leave() -> None:
    shared, (first, second) = states(2)
    for private in (first, second):
        enter_(shared, private)
    add(shared, first, 4, 0.5)
    catch_up_(shared, second)
    assert second.v[4] == 4.0  # written down, but not told
    publish_(shared, first)
    catch_up_(shared, second)
    assert first.v[4] == second.v[4] == 4.5
    assert shared.v[4] == 4.0
    leave_(shared, second)
    add(shared, first, 4, 0.5)
    leave_(shared, first)
    assert shared.v[4] == 5.0


@pytest.mark.parametrize("gone", [True, False])
def test_a_thread_that_is_gone_or_never_comes_is_not_waited_for(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LOG", 4)
    shared, (first, second) = states(2)
    enter_(shared, first)
    if gone:
        enter_(shared, second)
        leave_(shared, second)
    shared.counter[BROKEN] = not gone
    for _ in range(100):
        add(shared, first, 0, 1.0)
    leave_(shared, first)
    assert first.v[0] == 100.0
    assert shared.v[0] == (100.0 if gone else 0.0)  # who is waited for in vain is never the last


# ------------------------------------------------------------------------------------------------------ in the engine


def samples(sparse: bool) -> Samples:
    rng = np.random.default_rng(0)
    rows = np.where(rng.random((200, 30)) < 0.3, rng.normal(size=(200, 30)), 0.0)
    return Samples.of(scipy.sparse.csr_array(rows) if sparse else rows, rng.choice([-1.0, 1.0], 200))


@pytest.mark.filterwarnings("ignore:.*cores")
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("rule", ["memsgd(topk(count=3))", "memsgd(randk(count=3))", "memsgd(threshold(0.05))"])
def test_runs_with_the_shortest_logs_lose_nothing(
    rule: str, sparse: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LOG", 2)
    data, steps = samples(sparse), 5000
    it = LockFree(data, rule, Constant(0.1), threads=threads)
    it.run(steps)
    assert it.last is not None
    dense = data.rows.toarray() if sparse else data.rows
    moves = it.last.coefficients[:, None] * dense[it.last.samples]
    bound = 8 * steps * np.finfo(np.float64).eps * (np.abs(moves).sum(0) + 1)
    assert (np.abs(it.x - it.memory.sum(0) + moves.sum(0)) <= bound).all()
    assert it.written > steps


def test_one_thread_and_writers_of_everything_have_no_copies() -> None:
    for rule, threads in (("memsgd(topk(count=1))", 1), ("plain(identity())", 2)):
        it = LockFree(samples(True), rule, Constant(0.1), threads=threads)
        assert all(private.v is it.x for private in it._private)


def test_an_engine_that_was_pickled_goes_on() -> None:
    data = samples(True)
    it = LockFree(data, "memsgd(topk(count=3))", Constant(0.1), threads=2)
    it.run(300)
    pickled = pickle.dumps(it)
    again = pickle.loads(pickled)
    assert len(pickled) < 100_000  # no logs
    assert np.array_equal(again.x, it.x)
    assert np.array_equal(again.memory, it.memory)
    before = again.x - again.memory.sum(0)
    again.run(300)
    assert again.last is not None
    moves = again.last.coefficients[:, None] * data.rows.toarray()[again.last.samples]
    assert np.abs(again.x - again.memory.sum(0) - before + moves.sum(0)).max() < 1e-10


@pytest.mark.parametrize(("rule", "threads"), [("memsgd(topk(count=3))", 1), ("plain(identity())", 2)])
def test_an_engine_whose_arrays_came_back_apart_goes_on(rule: str, threads: int, tmp_path: Path) -> None:
    """joblib, by which scikit-learn's models are stored, keeps no array that is there twice as one."""
    engines = [LockFree(samples(True), rule, Constant(0.1), threads=threads) for _ in range(2)]
    engines[0].run(400)
    joblib.dump(engines[0], tmp_path / "engine")
    again = joblib.load(tmp_path / "engine")
    again.run(400)
    engines[1].run(400)
    engines[1].run(400)
    assert np.abs(again.x - engines[1].x).max() < (1e-12 if threads == 1 else 0.2)


@pytest.mark.parametrize("every", [1000, None])
def test_after_ctrl_c_nothing_is_lost(every: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while a stretch is planned, before its threads begin, or while they are at the one before."""
    monkeypatch.setattr(state, "LOG", 64)
    monkeypatch.setattr(plan, "LONGEST", 1000)
    rng, data, ask = np.random.default_rng(0), samples(True), [True]

    def order(count: int, seed: int, begin: int, end: int) -> Any:
        if ask and begin > 0:
            ask.pop()
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)  # long enough for a pool that did not wait to be shut down
        return rng.integers(count, size=end - begin)

    it = LockFree(data, "memsgd(topk(count=3))", Constant(0.1), threads=2, order=order)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert it.run(40_000, every=every).stopped == "interrupted"
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.setattr(plan, "LONGEST", 20_000)
    start = it.x - it.memory.sum(0)
    it.run(20_000)
    assert it.last is not None
    moves = it.last.coefficients[:, None] * data.rows.toarray()[it.last.samples]
    assert np.abs(it.x - it.memory.sum(0) - start + moves.sum(0)).max() < 1e-9


def test_ctrl_c_waits_for_the_end_of_a_short_run() -> None:
    """It is done on the caller's own thread, where the signal could come between a stretch's steps and its books."""
    data, where = samples(True), []

    def order(count: int, seed: int, begin: int, end: int) -> Any:
        where.append(threading.current_thread())
        signal.raise_signal(signal.SIGINT)
        return independent(count, seed, begin, end)

    it = LockFree(data, "memsgd(topk(count=3))", Constant(0.1), order=order)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert it.run(1000).stopped == "interrupted"
        assert it.step == 1000
        assert it.run(1000, every=400).stopped == "interrupted"
        assert it.step == 1400
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert where == [threading.main_thread()] * 2
    with ThreadPoolExecutor(1) as pool:  # no signal comes to other threads, nor may they ask for one
        it.order = independent
        assert pool.submit(it.run, 1000).result().stopped == "steps"


def test_what_ends_a_stretch_before_its_books_leaves_an_engine_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    it = LockFree(samples(True), "memsgd(topk(count=3))", Constant(0.1))

    def alarm(plan: Any, done: int) -> None:
        raise TimeoutError

    monkeypatch.setattr(it, "_close_", alarm)
    with pytest.raises(TimeoutError):
        it.run(1000)
    with pytest.raises(ConfigError, match="begin with a new engine"):
        it.run(1000)


@pytest.mark.parametrize("threads", [1, 2])
def test_stretches_follow_each_other_up_to_one_that_cannot_be_planned(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LONGEST", 1000)
    data, begun = samples(True), []

    def order(count: int, seed: int, begin: int, end: int) -> Any:
        begun.append((begin, end))
        return independent(count, seed, begin, end)

    def schedule(t: Any) -> Any:
        return np.where(t < 3500, 0.1, np.nan)

    it = LockFree(data, "memsgd(topk(count=3))", schedule, threads=threads, order=order)
    with pytest.raises(ConfigError, match="finite, positive size, got nan at step 3500"):
        it.run(10_000)
    assert begun == [(0, 1000), (1000, 2000), (2000, 3000)]
    assert it.step == 3000
    it.schedule = Constant(0.1)
    it.run(2500)
    assert it.step == 5500


@pytest.mark.parametrize("worker", [0, 1])
def test_a_thread_that_fails_leaves_nobody_waiting(worker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LOG", 2)
    walk = engine.walk_sparse

    def failing(rows: Any, targets: Any, weights: Any, shared: Any, private: Any, *rest: Any) -> Any:
        if private.log[0] == worker:
            raise MemoryError("no room")
        return walk(rows, targets, weights, shared, private, *rest)

    monkeypatch.setattr(engine, "walk_sparse", failing)
    it = LockFree(samples(True), "memsgd(topk(count=3))", Constant(0.1), threads=2)
    with pytest.raises(MemoryError, match="no room"):
        it.run(5000)
    with pytest.raises(ConfigError, match="begin with a new engine"):
        it.run(5000)
