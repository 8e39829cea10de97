"""The kernel benchmark: contenders do the same work, every case has its row, and the table fits its page."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from thinwire import Key, TopK
from thinwire.bench import kernels as module
from thinwire.bench import timing
from thinwire.bench.contests import (
    ADVERSARIAL,
    DISTRIBUTIONS,
    MESSAGES,
    OPERATIONS,
    UNPACKING,
    draw,
    draw_inputs,
    many_pieces,
    one_piece,
    read_in_turn,
    read_together,
)
from thinwire.bench.kernels import ADD, KernelRow, bench_calls, bench_kernels, call_table, floor_line, kernel_table
from thinwire.bench.timing import Timing, side_by_side, wall_clock
from thinwire.cli.main import main

CPU = torch.device("cpu")
NUMEL = 20_000
SMALL = ["--numel", str(NUMEL), "--densities", "0.02,0.01", "--repeats", "1"]
STEPS = [
    *("memory", "difference", "threshold", "strom", "vgc", "hybrid"),
    *("sign decode", "qsgd decode", "natural decode", UNPACKING),
]


@pytest.fixture
def _gpu_played_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way a GPU is measured, with the machine's clock in place of CUDA's events."""
    monkeypatch.setattr(module, "gpu_clock", wall_clock)
    monkeypatch.setattr(module._OnGpu, "device", CPU)


@pytest.mark.parametrize("pieces", [1, 300])
@pytest.mark.parametrize("name", STEPS)
def test_contenders_leave_the_same_numbers(name: str, pieces: int) -> None:
    layout = one_piece(NUMEL) if pieces == 1 else many_pieces(NUMEL)
    given = draw_inputs("normal", layout, 0.01, CPU)
    contest = OPERATIONS[name].contest(given)
    ours, plain, array = (given.first.clone() for _ in range(3))
    contest.ours(ours)
    contest.torch(plain)
    assert not torch.equal(ours, given.first)
    torch.testing.assert_close(plain, ours)
    if contest.numpy is not None and not (name == "sign decode" and pieces > 1):  # numpy's has one scale for all
        contest.numpy(array.numpy())
        torch.testing.assert_close(array, ours)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_memorys_contenders_agree_on_adversarial_numbers(name: str) -> None:
    """Of equal numbers only ours takes the lower ones; what the memory holds afterwards is as many of each."""
    given = draw_inputs(name, one_piece(NUMEL), 0.01, CPU)
    contest = OPERATIONS["memory"].contest(given)
    left = [given.first.clone() for _ in range(3)]
    assert contest.numpy is not None
    contest.ours(left[0])
    contest.torch(left[1])
    contest.numpy(left[2].numpy())
    assert torch.equal(left[0].sort().values, left[1].sort().values)
    assert torch.equal(left[0].sort().values, left[2].sort().values)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_vectors_are_the_same_each_time_and_no_sum_is_nan(name: str) -> None:
    x, y = (draw(name, NUMEL, seed, CPU) for seed in (0, 1))
    assert x.dtype == torch.float32
    assert x.isfinite().all() == (name != "some infinite")
    assert not (x + y).isnan().any()
    assert torch.equal(x, draw(name, NUMEL, 0, CPU))


def test_denormals_are_denormal_and_some_infinite_numbers_of_both_signs() -> None:
    x = draw("denormal", NUMEL, 0, CPU)
    assert (x.abs() < torch.finfo(torch.float32).tiny).all()
    assert (x != 0).float().mean() > 0.99
    x = draw("some infinite", NUMEL, 0, CPU)
    assert 0 < (x == torch.inf).sum() < NUMEL / 500
    assert 0 < (x == -torch.inf).sum() < NUMEL / 500


@pytest.mark.parametrize("density", [0.01, 0.5])
def test_messages_read_together_or_in_turn_give_the_same_sum(density: float) -> None:
    layout = one_piece(NUMEL)
    payloads = [TopK(density)(draw("normal", NUMEL, seed, CPU), layout, Key()) for seed in range(MESSAGES)]
    one, other = torch.zeros(NUMEL), torch.zeros(NUMEL)
    sound = read_together(payloads, layout)(one)
    read_in_turn(payloads, layout)(other)
    assert torch.is_tensor(sound)
    assert sound.tolist() == [True] * MESSAGES
    assert torch.equal(one, other)


def test_every_operation_has_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", *SMALL, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["op"] for row in rows} == set(OPERATIONS)
    memory = [row for row in rows if row["op"] == "memory"]
    assert {row["distribution"] for row in memory} == set(DISTRIBUTIONS)
    assert {row["density"] for row in memory if row["distribution"] in ADVERSARIAL} == {0.02}
    many = {row["op"] for row in rows if row["pieces"] == 300}
    assert many == {"memory", "difference", "vgc", "memory + packing"}
    assert all(row["over_floor"] > 0 and row["torch_over_ours"] > 0 for row in rows)
    assert all(row["stream_ms"] is None and row["floor_ms"] == row["add_ms"] for row in rows)
    assert {row["op"] for row in rows if row["density"] is None} >= {"sign", "qsgd decode", "natural"}


@pytest.mark.usefixtures("_gpu_played_by_the_cpu")
def test_a_gpu_is_measured_idle_and_busy() -> None:
    rows = list(bench_kernels(NUMEL, [0.01], 1, ["memory + packing", UNPACKING], "cuda"))
    assert [(row.op, row.pieces) for row in rows] == [
        ("memory + packing", 1),
        ("memory + packing", 300),
        (UNPACKING, 1),
    ]
    for row in rows:
        plain = row.plain()
        assert row.copy_gb_s is not None
        assert plain["floor_ms"] == pytest.approx(12 * row.numel / row.copy_gb_s / 1e6)
        assert plain["stream_over_floor"] == plain["stream_ms"] / plain["floor_ms"] > 0
        assert plain["numpy_ms"] is None
    assert "GB/s" in floor_line(rows)


@pytest.mark.gpu
def test_the_command_runs_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", *SMALL, "--device", "cuda", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["op"] for row in rows} == set(OPERATIONS)
    assert all(row["stream_ms"] > 0 and row["device"] == "cuda" for row in rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_table_fits_120_columns(device: str) -> None:
    slow, gpu = Timing(1234.5, 1234.5, 1234.5), device == "cuda"
    numpy, stream, speed = (None, slow, 0.1) if gpu else (slow, None, None)
    row = KernelRow(UNPACKING, device, 10**8, 300, "some infinite", 0.0001, slow, slow, numpy, slow, stream, speed)
    out = Console(file=io.StringIO(), width=300)
    out.print(kernel_table([row, replace(row, density=None)]))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(len(line.rstrip()) for line in lines) <= 120
    assert ("stream" in lines[1]) == gpu
    assert ("numpy" in lines[1]) == (not gpu)


def test_whoever_is_slow_has_one_measured_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ENOUGH_MS", 50.0)
    taken = {"slow": 60.0, "fast": 1.0}
    turns: list[str] = []
    side_by_side(
        {name: lambda name=name: name for name in taken},  # type: ignore[misc]
        lambda: None,
        4,
        lambda run: taken[turns.append(str(run())) or turns[-1]],  # type: ignore[func-returns-value]
    )
    assert turns.count("slow") == 2
    assert turns.count("fast") == 5


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--op", "memory,fly"], "unknown operation 'fly'; known: topk, memory"),
        (["--device", "tpu"], "device must be one of cpu, cuda, got 'tpu'"),
        (["--numel", "0"], "must be at least 1"),
    ],
)
def test_a_mistake_is_explained(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", *words]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--device", "cuda"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_calls_on_few_numbers_have_a_row_each() -> None:
    rows = list(bench_calls(50, list(OPERATIONS), 1))
    assert [row.op for row in rows] == [ADD, *OPERATIONS]
    assert all(row.ours.median > 0 and row.torch.median > 0 for row in rows)
    assert call_table(rows).row_count == len(rows)
