"""Benchmarks on ranks and on networks: what is wrapped exists, answers come back, tables show every row."""

from __future__ import annotations

import json

import pytest
import torch

from thinwire import Key, Layout, TopK
from thinwire.bench import ddp_step as module
from thinwire.bench.ddp_step import (
    DENSE,
    OTHERS,
    OURS,
    REST,
    STEP_METHODS,
    MemoryRow,
    StepRow,
    TrafficRow,
    bench_memory,
    memory_table,
    on_ranks,
    part_table,
    state_bytes,
    step_table,
    together,
    traffic_table,
)
from thinwire.bench.ddp_step import _taken_apart as taken_apart
from thinwire.bench.moments import CONTENDERS, bench_moments, moments_table
from thinwire.cli.main import main
from thinwire.errors import ConfigError
from thinwire.payload import add_all_to


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


def test_a_step_is_taken_apart_by_functions_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "together", lambda: None)
    x, layout = torch.randn(10_000), Layout.of([("x", 0, (10_000,))])

    def step() -> None:
        add_all_to(torch.zeros_like(x), [TopK(0.01)(x, layout, Key())])

    step()  # imports and compiles the kernels
    parts = taken_apart(step, 3)
    assert {OTHERS, REST} < set(parts)
    assert any(label.startswith("ops/") for label in parts)
    assert all(ms >= 0 for ms in parts.values())


def test_the_tables_show_every_row() -> None:
    parts = {OTHERS: 2.0, "channel: send": 1.0}
    steps = [StepRow(method, [2.0, 4.0, 3.0], parts if method in OURS else None) for method in STEP_METHODS]
    assert steps[0].plain()["median_ms"] == 3.0
    assert step_table(steps).row_count == len(STEP_METHODS)
    assert part_table(steps[-1]).row_count == 3  # ours, what is not, and the whole
    assert traffic_table([TrafficRow("dense", 100.0, 101.0)]).row_count == 1
    assert (
        memory_table([MemoryRow(DENSE, 10, None, 4.0, 4.0), MemoryRow("memsgd(sign())", 10, 4, 4.0, 4.0)]).row_count
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
