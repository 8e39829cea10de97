"""`thinwire scale`: what it counts, what it trains, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from thinwire import Simulation
from thinwire.cli.main import main
from thinwire.cli.scale import counts
from thinwire.errors import ConfigError
from thinwire.exchange import allgather_bytes, allreduce_bytes
from thinwire.owners import Owners
from thinwire.papers import read_sections
from thinwire.scale import noisy_quadratic as problem
from thinwire.scale.estimate import EVERYONE, RING, SERVER, SUMS, ScaleSetting, costs
from thinwire.scale.noisy_quadratic import courses

RULE = "memsgd(topk(0.01))"


def setting(rule: str = RULE, **given: object) -> ScaleSetting:
    return ScaleSetting(**{"rule": rule, "workers": (4,), "parameters": 100_000, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [2, 16, 64])
def test_entries_and_bytes_are_those_of_each_exchange(workers: int) -> None:
    found = {cost.exchange: cost for cost in costs(setting(), workers)}
    assert found[RING].sent == allreduce_bytes(400_000, workers)
    assert found[EVERYONE].entries == (workers - 1) * 1_000
    server = found[SERVER]
    assert server.entries is not None
    assert server.entries <= 2.1 * 1_000
    assert server.sent <= server.most <= 1.2 * server.sent
    assert [found[name].messages for name in (RING, EVERYONE, SERVER)] == [
        2 * (workers - 1),
        workers - 1,
        2 * (workers - 1),
    ]
    assert found[EVERYONE].sent == allgather_bytes(round(found[EVERYONE].sent / (workers - 1)), workers)


def test_a_ledger_books_what_is_estimated() -> None:
    simulation = Simulation({"x": torch.zeros(100_000)}, RULE, 4, exchange="server")
    simulation.exchange([{"x": torch.randn(100_000)} for _ in range(4)], step_sizes={"x": 0.1})
    server = next(cost for cost in costs(setting(), 4) if cost.exchange == SERVER)
    assert simulation.ledger.last_step()["sent_bytes"] == int(server.sent)


def test_what_can_be_added_up_is_and_what_has_one_hop_has_no_server() -> None:
    assert [cost.exchange for cost in costs(setting("memsgd(randk(0.5, shared=True))"), 4)] == [RING, SUMS, SERVER]
    assert [cost.exchange for cost in costs(setting("ef21(topk(0.01))"), 4)] == [RING, EVERYONE]


def test_a_slower_link_takes_longer_and_more_workers_too() -> None:
    for slow, fast in [
        (setting(rate=1e7), setting()),
        (setting(latency=0.01), setting()),
        (setting(), setting(message=0)),
    ]:
        for one, other in zip(costs(slow, 16), costs(fast, 16), strict=True):
            assert one.seconds > other.seconds
    for one, other in zip(costs(setting(), 32), costs(setting(), 8), strict=True):
        assert one.seconds > other.seconds


@pytest.mark.parametrize("rule", ["memsgd(topk(0.1))", "ef21bc(topk(0.1), topk(0.1))", "plain(randk(0.2))"])
def test_training_by_a_server_is_the_simulation_s(rule: str) -> None:
    """The same gradients by letters, hop by hop, give the same course bit for bit."""
    asked = setting(rule, numbers=300, least=20, steps=10)
    served = next(course for course in courses(asked, 4) if course.exchange == SERVER)
    h, distance = problem._problem(300)
    simulation = Simulation({"x": torch.zeros(300)}, rule, 4, exchange=Owners(4, least=20))
    gaps = [problem._gap(h, distance)]
    for step in range(10):
        noise = [torch.randn(300, generator=torch.Generator().manual_seed(10_000 * step + rank)) for rank in range(4)]
        given = [{"x": one.mul_(problem.NOISE).add_(h * distance)} for one in noise]
        distance -= asked.step_size * simulation.exchange(given, step_sizes={"x": 1.0})["x"]
        gaps.append(problem._gap(h, distance))
    assert served.gap == tuple(gaps)


def test_training_conserves_what_was_given() -> None:
    for course in courses(setting("memsgd(topk(0.05))", numbers=2_000, least=20, steps=20), 8):
        assert course.exchange == RING or (course.mass_error is not None and course.mass_error <= 1e-6)
        assert course.gap[-1] < course.gap[0]
        assert len(course.gap) == 11


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--workers", "1"], "one alone exchanges nothing"),
        (["--workers", "8..2"], "all powers of two"),
        (["--workers", "two"], "--workers takes numbers"),
        (["--workers", "5000"], "nobody has tried more"),
        (["--rate", "fast"], "fast"),
        (["--parameters", "0"], "--parameters takes a number"),
        (["--latency", "-1"], "--latency takes milliseconds"),
        (["--step-size", "3"], "--step-size must lie in"),
        (["--convex", "-1"], "--convex takes a number"),
    ],
)
def test_bad_input_is_refused(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", RULE, *words]) == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_a_rule_that_needs_more_than_gradients_is_refused() -> None:
    with pytest.raises(ConfigError, match="second moments"):
        costs(setting("vgc()"), 4)
    with pytest.raises(ConfigError, match="one rule that needs gradients alone"):
        courses(setting(f"route({{'*': {RULE}}})", numbers=100), 4)


def test_the_command_writes_a_record_that_report_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "scale.jsonl"
    words = ["--workers", "2..4", "--parameters", "20000", "--convex", "400", "--least", "50", "--steps", "10"]
    assert main(["scale", RULE, *words, "--out", str(record)]) == 0
    shown = capsys.readouterr().out
    assert "dense float32 ring" in shown
    assert "a convex problem" in shown
    (costs_, trained), count = read_sections([record])
    assert count == 2
    assert "Bytes that a worker sends" in costs_.charts[0].title
    assert len(trained.table) == 1 + 3 * 2


def test_numbers_of_workers_are_read() -> None:
    assert counts("3, 7") == (3, 7)
    assert counts("4..40") == (4, 8, 16, 32)
