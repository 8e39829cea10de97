"""Benchmarks on ranks and on networks: what is wrapped exists, answers come back, tables show every row."""

from __future__ import annotations

import json

import pytest
import torch

from thinwire.bench.memory import DENSE as NO_RULE
from thinwire.bench.memory import MemoryRow, bench_memory, memory_table, state_bytes
from thinwire.bench.moments import CONTENDERS, bench_moments, moments_table
from thinwire.bench.processes import on_ranks, together
from thinwire.bench.step_time import METHODS, OURS, PARTS, WHOLE, StepRow, Stopwatch, owner_of, part_table, step_table
from thinwire.bench.traffic import TrafficRow, traffic_table
from thinwire.cli.main import main
from thinwire.errors import ConfigError


def _doubled(rank: int, number: int) -> tuple[int, int]:
    together()
    return rank, 2 * number


def _failing(rank: int) -> None:
    raise ConfigError(f"rank {rank} has no step")


@pytest.mark.dist
def test_ranks_answer_in_their_order_and_their_errors_are_raised_here() -> None:
    assert on_ranks(2, _doubled, 21) == [(0, 42), (1, 42)]
    with pytest.raises(ConfigError, match="has no step"):
        on_ranks(1, _failing)


@pytest.mark.parametrize(("where", "name"), [(where, name) for where, name, _ in PARTS])
def test_every_part_of_a_step_is_where_the_stopwatch_looks_for_it(where: str, name: str) -> None:
    assert callable(getattr(owner_of(where), name))


def test_the_stopwatch_books_each_function_its_own_time_and_leaves_no_trace() -> None:
    before = [getattr(owner_of(where), name) for where, name, _ in PARTS]
    watch = Stopwatch()
    inner = watch.wrap(lambda: sum(range(1000)), "inner")
    outer = watch.wrap(inner, "send: outer")
    with watch.installed():
        outer()
    assert set(watch.step) == {"inner", "send: outer"}
    assert before == [getattr(owner_of(where), name) for where, name, _ in PARTS]


def test_the_tables_show_every_row() -> None:
    steps = [
        StepRow(method, [2.0, 4.0, 3.0], {WHOLE: 3.0, "pack": 1.0} if method in OURS else None) for method in METHODS
    ]
    assert steps[0].plain()["median_ms"] == 3.0
    assert step_table(steps).row_count == len(METHODS)
    assert part_table(steps[-1]).row_count == 3  # what is packed, what is not ours, and the whole
    assert traffic_table([TrafficRow("dense", 100.0, 101.0)]).row_count == 1
    assert (
        memory_table([MemoryRow(NO_RULE, 10, None, 4.0, 4.0), MemoryRow("memsgd(sign())", 10, 4, 4.0, 4.0)]).row_count
        == 2
    )


def test_a_rules_state_is_counted_and_a_route_is_refused() -> None:
    assert [state_bytes(rule) for rule in ("memsgd(topk(0.01))", "ef21(topk(0.01))", "vgc(1.5)")] == [4, 8, 8]
    with pytest.raises(ConfigError, match="name its rules one by one"):
        next(bench_memory(1, ['route({"*": memsgd(sign())})']))


def test_second_moments_are_compared_and_raced(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(bench_moments(True, torch.device("cpu"), 1, only=0))
    assert [row.method for row in rows] == list(CONTENDERS)
    assert all((row.ms is None) == (row.absent is not None) for row in rows)
    assert moments_table(rows).row_count == len(CONTENDERS)
    assert main(["bench", "moments", "--small", "--only", "7"]) == 2
    assert "0 to 2, got 7" in capsys.readouterr().err


def test_a_crowd_has_a_row_for_each_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "crowd",
        "--workers",
        "2,5",
        "--rounds",
        "2",
        "--methods",
        "ef21(topk(count=1));plain(identity())",
    ]
    assert main([*words, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["workers"] for row in rows] == [2, 5]
    assert list(rows[0]["methods_ms"]) == ["ef21(topk(count=1))", "plain(identity())"]
    assert main(["bench", "crowd", "--workers", "0"]) == 2
    assert "rounds and workers must be at least 1, got 60 and 0" in capsys.readouterr().err
