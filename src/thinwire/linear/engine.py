"""Mem-SGD on all cores: W threads, one vector, private memories, only k coordinates written in a step."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError
from thinwire.feedback import Rule
from thinwire.linear.checks import check_intercept, check_steps, check_units, checked_start, checked_workers
from thinwire.linear.order import MASKS, Order, shuffled, stream_key
from thinwire.linear.regularisers import Decoupled, InMemory, Regulariser
from thinwire.linear.rules import ABOVE, RANDOM, TOP, step_rule
from thinwire.linear.samples import Samples
from thinwire.linear.schedules import Average, Final, Schedule
from thinwire.linear.steps.plan import Stretch, planned
from thinwire.linear.steps.state import BROKEN, LEFT, LOG, NEXT, STOP, Private, Settings, private_state, shared_state
from thinwire.linear.steps.walk import walk_dense, walk_sparse

Array = NDArray[Any]
SHORT = 1 << 22
"""Numbers touched up to which a run is done on the caller's thread, in some 20 ms at most: a thread takes half a
millisecond to begin and to end, as long as 2,000 steps along rows of 30 numbers."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment; its loss is that of the estimate, and was found with the clock stopped."""

    step: int
    seconds: float
    """Spent in steps, from the engine's first on."""
    written: int
    """Coordinates of x written so far (of sparsifiers, only numbers other than zero)."""
    loss: float


@dataclass
class Run:
    """What a call of `run` did."""

    snapshots: list[Snapshot] = field(default_factory=list)
    stopped: str = "steps"
    """Why it ended: steps (all were done), target (the loss was reached), watch, or interrupted (Ctrl-C)."""

    @property
    def losses(self) -> list[float]:
        return [snapshot.loss for snapshot in self.snapshots]


def _begin_all(pool: ThreadPoolExecutor, threads: int) -> None:
    """All threads of the pool, which by itself begins one when it seems to need it: each may wait for all others."""
    barrier = threading.Barrier(threads)
    for each in [pool.submit(barrier.wait, 60) for _ in range(threads)]:
        each.result()


class LockFree:
    """PARALLEL-MEM-SGD (Stich, Cordonnier and Jaggi 2018, algorithm 2) for linear models.

        each of W threads:  draw i;  p = m_w + η_t ∇f_i(x);  g = C(p);  x ← x − g;  m_w ← p − g

    There are no locks, and no g is lost, so x − Σ_w m_w takes exactly SGD's steps. Threads that write few coordinates
    have a copy of x each and tell the others what they wrote (see `logs`); those that write all of them (identity,
    qsgd) share one vector by atomic additions.
    With `threads=1` it is the sequential algorithm 1, deterministic. `rule` is any of memsgd or plain with identity,
    topk, randk or threshold, and plain(qsgd(levels, bucket=d)).

    `memories` (default: one a thread) is for one thread only: step t then uses memory t mod `memories`, which shows
    what W workers would do, without chance. `intercept` is the share of the step size by which an unregularised
    intercept moves (0: there is none). `atomic=False` has neither copies nor atomic additions: threads write to one
    vector as Hogwild does, and some of what they write may be lost.

    >>> from thinwire.linear import Constant, LockFree, Samples
    >>> samples = Samples.of(np.array([[1.0, 0.5], [0.0, 2.0]]), [1.0, 2.0], loss="squared")
    >>> engine = LockFree(samples, "memsgd(topk(count=1))", Constant(0.25))
    >>> run = engine.run(steps=200, every=100)
    >>> engine.x.round(3).tolist(), run.snapshots[-1].written
    ([0.5, 1.0], 200)
    """

    def __init__(
        self,
        samples: Samples,
        rule: Rule | str,
        schedule: Schedule,
        *,
        regulariser: Regulariser | None = None,
        average: Average | None = None,
        order: Order = shuffled,
        threads: int = 1,
        memories: int | None = None,
        seed: int = 0,
        start: Any = None,
        intercept: float = 0.0,
        start_intercept: float = 0.0,
        atomic: bool = True,
    ) -> None:
        self.samples, self.schedule, self.order, self.seed = samples, schedule, order, seed
        self.regulariser: Regulariser = regulariser or Decoupled()
        self.average: Average = average or Final()
        self.code = step_rule(rule, samples.d)
        """The rule, as the compiled steps read it."""
        self.threads, self.memories = checked_workers(threads, memories)
        check_steps(schedule, self.regulariser)
        check_intercept(intercept)
        inside = self.regulariser.strength if isinstance(self.regulariser, InMemory) else 0.0
        self._settings = Settings(int(samples.loss), inside, float(intercept), stream_key(seed, MASKS))
        copies = atomic and threads > 1 and self.code.writes in (TOP, RANDOM, ABOVE)
        check_units(samples.units, self.code.writes in (TOP, ABOVE), self.regulariser)
        v, squares = checked_start(start, samples), np.empty(0, samples.dtype)
        if samples.units is not None:
            v, squares = samples.units.inside(v), np.square(samples.units.blocks)
        self._shared = shared_state(v, squares, threads, atomic=atomic, copies=copies)
        self._shared.intercept[0] = start_intercept
        self._private = [self._private_state(worker) for worker in range(threads)]
        self._sum = np.zeros(samples.d + 1)
        self._weight = 0.0
        self.step, self.seconds, self.written = 0, 0.0, 0
        self.last: Stretch | None = None
        """The stretch of steps done last."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shared": self._shared.with_logs(0)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared = self._shared.with_logs(LOG)
        self._private = [each.joined(self._shared) for each in self._private]

    def _private_state(self, worker: int) -> Private:
        code = self.code
        inside = self._settings.strength > 0 and not self.samples.dense
        return private_state(
            self._shared,
            worker,
            self.memories // self.threads,
            code.kept,
            tree=code.writes == TOP,
            heap=code.writes == ABOVE and not self.samples.dense and not inside,
            marks=code.writes == RANDOM,
            row=inside,
            mean=self.average.is_mean,
        )

    # ------------------------------------------------------------------------------------------------------- the model

    @property
    def x(self) -> Array:
        """The vector: without units a view, which the next steps change."""
        return self._outside(self._shared.v)

    def _outside(self, v: Array) -> Array:
        return v if self.samples.units is None else self.samples.units.outside(v)

    @property
    def intercept(self) -> float:
        """The last iterate's."""
        return float(self._shared.intercept[0])

    @property
    def memory(self) -> Array:
        """m_w of every worker, one in a row, in units of x."""
        memory = np.concatenate([private.memory[:, : self.samples.d] for private in self._private])
        return memory if self.samples.units is None else self.samples.units.remembered(memory)

    @property
    def estimate(self) -> Array:
        """The mean of iterates that `average` asks for, else x."""
        return self._outside(self._sum[:-1] / self._weight) if self._weight else self.x

    @property
    def estimated_intercept(self) -> float:
        """The intercept that belongs to `estimate`."""
        return float(self._sum[-1] / self._weight) if self._weight else self.intercept

    def loss(self) -> float:
        """f at the estimate."""
        return self.samples.objective(self.estimate, self.regulariser.strength, self.estimated_intercept)

    def flush_(self) -> None:
        """x ← x − Σ_w m_w and m_w ← 0: the virtual iterate, at which SGD itself would be."""
        x = self.x - self.memory.sum(axis=0)
        self._shared.v[:] = x if self.samples.units is None else self.samples.units.inside(x)
        for private in self._private:
            private.memory[:] = 0
            private.maxima[:] = 0

    def feed_(self, samples: Samples) -> None:
        """Go on with other samples of the same features, type and loss; x, the memories and the units stay."""
        old, new = ((each.d, each.dtype, each.loss, each.dense) for each in (self.samples, samples))
        if old != new:
            raise ConfigError(f"samples of d, type, loss and density {old} cannot be followed by {new}")
        self.samples = samples if samples.units is self.samples.units else samples.in_units(self.samples.units)

    # --------------------------------------------------------------------------------------------------------- running

    def run(
        self,
        steps: int,
        *,
        every: int | None = None,
        target: float | None = None,
        watch: Callable[[Snapshot], bool | None] | None = None,
    ) -> Run:
        """So many steps more, with a snapshot before the first, after every `every`-th and after the last.

        `every=None` takes none. The run ends early where a snapshot's loss is at most `target` or `watch` returns True;
        both need `every`.
        At Ctrl-C the threads stop after the chunk they are at, and the run ends with what was learned so far.
        """
        if steps < 0 or (every is not None and every < 1):
            raise ConfigError(f"run needs steps >= 0 and every >= 1, got {steps} and {every}")
        if every is None and (target is not None or watch is not None):
            raise ConfigError("target and watch look at snapshots: say every how many steps one is taken, every=...")
        run, end, begin = Run(), self.step + steps, self.step
        if self._shared.counter[BROKEN]:
            raise ConfigError("a thread of an earlier run failed, and what it did is lost: begin with a new engine")
        self._shared.counter[STOP] = 0
        try:
            with self._crew(steps) as advance:
                while not (every is not None and self._look(run, target, watch)) and self.step < end:
                    advance(end if every is None else min(end, self.step + every - (self.step - begin) % every))
        except KeyboardInterrupt:
            run.stopped = "interrupted"
            if every is not None:
                run.snapshots.append(self._snapshot())
        return run

    @contextmanager
    def _crew(self, steps: int) -> Iterator[Callable[[int], None]]:
        """Who takes the steps up to a given one: the caller itself where one thread is soon done, else a pool."""
        if self.threads == 1 and steps * self._touched <= SHORT:
            yield self._advance_here
            return
        workers = self.threads + (self.threads > 1)  # one of them plans
        with ThreadPoolExecutor(workers, thread_name_prefix="lockfree") as pool, self._stopping():
            _begin_all(pool, workers)
            yield partial(self._advance_there, pool)

    @property
    def _touched(self) -> float:
        """Numbers that a step touches, about: of sparse rows their entries, unless λx goes through the memory."""
        of_all = self.samples.dense or self._settings.strength > 0
        return self.samples.d if of_all else self.samples.rows.nnz / len(self.samples)

    def planned(self, begin: int, until: int) -> Stretch:
        """The steps from `begin` on, up to `until` at most."""
        return planned(
            begin,
            until,
            schedule=self.schedule,
            decay=self.regulariser.strength if isinstance(self.regulariser, Decoupled) else 0.0,
            tau=self.code.tau,
            average=self.average,
            order=self.order,
            seed=self.seed,
            samples=len(self.samples),
            dtype=self.samples.dtype,
        )

    def _advance_here(self, until: int) -> None:
        """On the caller's thread; Ctrl-C waits, which is why only short runs are done here."""
        with _held_back():
            while self.step < until:
                start = time.perf_counter()
                self._take_(self.planned(self.step, until), lambda plan: self._walk(self._private[0], plan))
                self.seconds += time.perf_counter() - start

    def _advance_there(self, pool: ThreadPoolExecutor, until: int) -> None:
        """In a pool, which does not hear of Ctrl-C; the caller does, and has it stop."""
        stretch = pool.submit(self._advance, pool, until)
        with self._stopping(stretch):
            stretch.result()

    @contextmanager
    def _stopping(self, *stretches: Future[None]) -> Iterator[None]:
        """Where Ctrl-C, of which only the main thread hears, or an error ends the block, threads take no more steps;
        what they are at is waited for: a pool that is shut down takes no more work."""
        try:
            yield
        except BaseException:
            self._shared.counter[STOP] = 1
            wait(stretches)
            raise

    def _look(self, run: Run, target: float | None, watch: Callable[[Snapshot], bool | None] | None) -> bool:
        """Take a snapshot; whether the run ends here."""
        now = self._snapshot()
        run.snapshots.append(now)
        if watch is not None and watch(now):
            run.stopped = "watch"
        elif target is not None and now.loss <= target:
            run.stopped = "target"
        return run.stopped != "steps"

    def _snapshot(self) -> Snapshot:
        return Snapshot(self.step, self.seconds, self.written, self.loss())

    def _advance(self, pool: ThreadPoolExecutor, until: int) -> None:
        """Steps up to `until`, on the clock, or up to the chunks that were begun before all are to stop.

        Where there are several threads, another plans the next stretch meanwhile."""
        ahead: Future[Stretch] | None = None
        while self.step < until and not self._shared.counter[STOP]:
            start = time.perf_counter()
            plan = self.planned(self.step, until) if ahead is None else ahead.result()
            end = plan.begin + len(plan.samples)
            ahead = pool.submit(self.planned, end, until) if self.threads > 1 and end < until else None
            self._take_(plan, partial(self._walk_all, pool))
            self.seconds += time.perf_counter() - start

    def _take_(self, plan: Stretch, walk: Callable[[Stretch], int]) -> None:
        """The steps of a stretch, by those who walk it. What ends between its steps and its books is broken."""
        self._shared.counter[NEXT] = self._shared.counter[LEFT] = 0
        self._shared.ends[:] = self._shared.seen[:] = 0
        with self._breaking():
            self.written += walk(plan)
            self._close_(plan, min(int(self._shared.counter[NEXT]), len(plan.samples)))

    def _walk_all(self, pool: ThreadPoolExecutor, plan: Stretch) -> int:
        """All threads' parts of a stretch; how many coordinates they wrote."""
        with self._breaking():
            others = [pool.submit(self._walk, private, plan) for private in self._private[1:]]
        return self._walk(self._private[0], plan) + sum(other.result() for other in others)

    def _walk(self, private: Private, plan: Stretch) -> int:
        """One thread's part of a stretch; how many coordinates it wrote."""
        walk, samples = walk_dense if self.samples.dense else walk_sparse, self.samples
        with self._breaking():
            written: int = walk(
                samples.compiled, samples.targets, samples.weights, self._shared, private, plan,
                self.code, self._settings,
            )  # fmt: skip
        return written

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Where a thread fails, none waits for it, and the engine is of no more use."""
        try:
            yield
        except BaseException:
            self._shared.counter[STOP] = self._shared.counter[BROKEN] = 1
            raise

    def _close_(self, plan: Stretch, done: int) -> None:
        """After `done` steps of a stretch: v ← x, and the stretch's part of the mean to the sum.

        Σ_t w_t x_t = Σ_t w_t s_t v_t = P_T v_T + Σ_u (v_u − v_{u+1}) P_{u+1} with P_t = Σ_{u<t} w_u s_u.
        """
        v, scale = self._shared.v, plan.scale[done]
        if self.average.is_mean:
            self._sum[:-1] += plan.weight[done] * v
            self._sum[-1] += plan.plain_weight[done] * self._shared.intercept[0]
            self._weight += plan.plain_weight[done]
            for private in self._private:
                self._sum += private.credit
                private.credit[:] = 0
        if scale != 1:
            v *= v.dtype.type(scale)
        self.step += done
        self.last = plan


@contextmanager
def _held_back() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and finds nothing half done; it comes to the main thread alone."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *signals: held.append(signals))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)
