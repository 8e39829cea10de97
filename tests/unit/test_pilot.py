"""`auto`'s pilot over invented wires: what it tries, what it keeps, and how soon it notices."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from thinwire.engines.auto import BucketFacts, Mode, Pilot, Plan, Probe, Report, Tell
from thinwire.engines.auto.modes import Window, show_plan
from thinwire.exchange import allreduce_bytes

COMPRESSED, HALF, DENSE = Mode.COMPRESSED, Mode.HALF, Mode.DENSE
WORKERS = 4


class World:
    """Ranks that compute for some milliseconds a bucket, and a wire: seconds by a formula, with noise of each rank's
    own on top."""

    def __init__(
        self,
        rate: float,
        numels: Sequence[int] = (400_000,),
        *,
        noise: float = 0.0,
        bare: bool = True,
        computing: float = 0.04,
    ) -> None:
        self.rate, self.noise, self.alpha, self.random = rate, noise, 2e-3, random.Random(0)
        self.computing, self.codec = computing, {COMPRESSED: 10e-9, HALF: 1e-9, DENSE: 0.0}
        self.buckets = tuple(BucketFacts((f"p{place}",), numel, 4, True, bare) for place, numel in enumerate(numels))
        self.pilots = [Pilot(WORKERS) for _ in range(WORKERS)]
        self.plans: list[Plan] = []
        self.probed = self.spent = 0.0

    def _carry(self, nbytes: float) -> float:
        return self.alpha + 8 * nbytes / self.rate

    def _exchange(self, place: int, mode: Mode) -> float:
        numel = self.buckets[place].numel
        if mode is COMPRESSED:
            return self._carry((WORKERS - 1) * numel * 0.015)
        return self._carry(allreduce_bytes((2 if mode is HALF else 4) * numel, WORKERS))

    def seconds(self, plan: Plan) -> float:
        """Of a step; compression takes the cores 10 ns a number, 16 bits 1 and no forecast knows it."""
        hosts = sum(self.codec[mode] * facts.numel for facts, mode in zip(self.buckets, plan, strict=True))
        verdict = 1.5e-3 if COMPRESSED in plan else 0.0
        return self.computing + hosts + verdict + sum(self._exchange(place, mode) for place, mode in enumerate(plan))

    def best(self) -> float:
        """The least that one mode for all buckets takes."""
        return min(self.seconds((mode,) * len(self.buckets)) for mode in Mode)

    def _shaken(self, seconds: float) -> float:
        return seconds * self.random.lognormvariate(0, self.noise) if self.noise else seconds

    def step(self) -> float:
        """All ranks take a step; what it took without noise."""
        plans = {tuple(pilot.mode(facts.names) for facts in self.buckets) for pilot in self.pilots}
        assert len(plans) == 1, "ranks have decided differently"
        plan = plans.pop()
        self.plans.append(plan)
        took = self._shaken(self.seconds(plan))
        talks = [pilot.after(self._report(plan, self._shaken(took))) for pilot in self.pilots]
        asked = [next(talk, None) for talk in talks]
        while asked[0] is not None:
            rows = [self._answer(request) for request in asked]
            asked = [_send(talk, rows) for talk in talks]
        assert asked == [None] * WORKERS
        self.spent += took
        return self.seconds(plan)

    def _answer(self, request: Tell | Probe | None) -> list[int]:
        assert request is not None
        if isinstance(request, Tell):
            return list(request.numbers)
        seconds = self._shaken(self._carry(allreduce_bytes(request.nbytes, WORKERS)))
        self.probed += seconds / WORKERS
        return [round(1e6 * seconds)]

    def _report(self, plan: Plan, period: float) -> Report:
        compute = tuple(self.computing / len(plan) for _ in plan)
        host = tuple(5e-9 * facts.numel * (mode is COMPRESSED) for facts, mode in zip(self.buckets, plan, strict=True))
        message = tuple(
            0.015 * facts.numel * (mode is COMPRESSED) for facts, mode in zip(self.buckets, plan, strict=True)
        )
        return Report(self.buckets, plan, period, 1.5e-3 * (COMPRESSED in plan), compute, host, host, message)

    def run(self, steps: int) -> float:
        """So many steps; seconds of the last one."""
        return [self.step() for _ in range(steps)][-1]


def _send(talk, rows):  # type: ignore[no-untyped-def]
    try:
        return talk.send(rows)
    except StopIteration:
        return None


RATES = (1e6, 1e7, 1e8, 1e9, 1e10, 1e11)


@pytest.mark.parametrize("numels", [(400_000,), (50_000,), (3_000_000, 300_000), (200_000,) * 5])
@pytest.mark.parametrize("rate", RATES)
def test_it_finds_the_fastest_way(rate: float, numels: tuple[int, ...]) -> None:
    world = World(rate, numels)
    assert world.run(60) <= 1.03 * world.best()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", RATES)
def test_noise_does_not_mislead_it_by_much(rate: float, seed: int) -> None:
    world = World(rate, noise=0.04)
    world.random.seed(seed)
    world.run(100)
    taken = [world.step() for _ in range(200)]
    assert sum(taken) / len(taken) <= 1.05 * world.best()


@pytest.mark.parametrize("after", RATES)
@pytest.mark.parametrize("before", RATES)
def test_a_rate_that_changes_is_followed_within_50_steps(before: float, after: float) -> None:
    world = World(before, noise=0.03)
    world.run(93)
    world.rate = after
    world.run(50)
    settled = [world.step() for _ in range(20)]
    assert sum(settled) / len(settled) <= 1.05 * world.best()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", RATES)
def test_short_steps_vary_by_more_and_mislead_it_by_little(rate: float, seed: int) -> None:
    world = World(rate, (55_000,), noise=0.12, computing=0.004)
    world.random.seed(seed)
    world.run(100)
    taken = [world.step() for _ in range(300)]
    assert sum(taken) / len(taken) <= 1.1 * world.best()


def test_what_a_forecast_overlooked_is_tried_after_all() -> None:
    """16 bits are forecast far below dense, and turn out to be slower."""
    world = World(1e9, (400_000,), computing=0.004)
    world.codec = {COMPRESSED: 80e-9, HALF: 40e-9, DENSE: 0.0}
    world.run(60)
    assert world.seconds(world.plans[-1]) == world.best()
    assert world.plans[-1] == (DENSE,)


@pytest.mark.parametrize(
    ("plan", "listens"),
    [((COMPRESSED, HALF), True), ((HALF, HALF), True), ((DENSE, HALF), True), ((DENSE, DENSE), False)],
)
def test_it_listens_to_the_wire_while_anything_is_not_dense(plan: Plan, listens: bool) -> None:
    pilot = Pilot(WORKERS)
    pilot.plan, pilot.step = plan, 100
    assert pilot._is_time_to_listen() is listens


def test_a_cold_start_is_looked_at_again() -> None:
    """What a run begins with takes twice as long in its first steps, and is the fastest after them."""
    world = World(1e8, (55_000,), computing=0.004)
    assert world.best() == world.seconds((COMPRESSED,))
    cold = 2.6 * world.best() / 55_000
    world.codec[COMPRESSED] += cold
    world.run(9)
    assert world.best() != world.seconds((COMPRESSED,))
    world.codec[COMPRESSED] -= cold
    world.run(60)
    assert world.plans[-1] == (COMPRESSED,)


def test_one_step_that_was_held_up_rules_nothing_out() -> None:
    """The first that counts of the fastest plan takes 20 times as long."""
    world, computing, taken = World(1e11, (400_000,)), 0.04, 0
    for _ in range(60):
        is_dense = world.pilots[0].mode(world.buckets[0].names) is DENSE
        taken += is_dense
        world.computing = computing + 0.8 * (is_dense and taken == 2)
        world.step()
    assert world.best() == world.seconds((DENSE,))
    assert world.plans[-1] == (DENSE,)


def test_a_slow_wire_is_never_asked_to_carry_what_cannot_pay() -> None:
    world = World(1e6)
    world.run(200)
    assert set(world.plans) == {(COMPRESSED,)}


def test_probes_are_a_hundredth_of_the_time() -> None:
    world = World(1e7)
    world.run(100)
    before, spent = world.probed, world.spent
    world.run(500)
    assert world.probed - before <= 0.015 * (world.spent - spent)


def test_a_mixture_is_taken_where_it_pays() -> None:
    """A large bucket that compression would keep a core busy with, and one that is cheap either way."""
    world = World(2e9, (3_000_000, 300_000))
    world.run(100)
    assert world.seconds(world.plans[-1]) <= world.best()


def test_buckets_that_are_cut_anew_begin_anew_with_what_was_chosen() -> None:
    world = World(1e11, (200_000, 200_000))
    world.run(100)
    assert world.plans[-1] == (DENSE, DENSE)
    one = BucketFacts(("p0", "p1"), 400_000, 4, True, True)
    world.buckets = (one,)
    world.run(1)
    assert world.plans[-1] == (DENSE,)


def test_what_was_chosen_and_why_is_said() -> None:
    world = World(1e8)
    world.run(80)
    world.rate = 1e11
    world.run(80)
    words = [pilot.words() for pilot in world.pilots]
    assert words == words[:1] * WORKERS
    text = "\n".join(words[0])
    assert text.startswith("chosen dense: ")
    assert "Mbit/s" in text
    assert "dense → " in text or "→ dense" in text
    for switch in world.pilots[0].switches:
        assert str(switch) in text


def test_a_resumed_run_goes_on_with_its_choices() -> None:
    world = World(1e11)
    for pilot in world.pilots:
        pilot.resume({"p0": HALF})
    world.run(2)
    assert world.plans == [(HALF,), (HALF,)]
    assert world.pilots[0].modes() == {"p0": HALF}


def test_a_window_is_read_from_what_was_told() -> None:
    report = Report((), (), 0.1, 0.002, (0.01, 0.02), (0.03, 0.04), (0.05, 0.06), (7.0, 8.0))
    assert Window.of(report.numbers()) == Window(0.1, 0.002, (0.01, 0.02), (0.03, 0.04), (0.05, 0.06), (7.0, 8.0))


def test_plans_are_shown_by_runs() -> None:
    assert show_plan((DENSE, HALF, HALF, COMPRESSED)) == "dense 0, fp16 1-2, compressed 3"
