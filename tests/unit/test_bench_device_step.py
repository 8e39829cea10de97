"""The DDP step on one GPU: its networks, its methods, what is counted, and its tables; the CPU plays the GPU."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tests.builds import CUDA_WITHOUT_GPU
from torch import nn
from torch.nn import functional as F

from thinwire.bench import device_step as module
from thinwire.bench.ddp_step import DENSE, HOOKS, POWERSGD, REST, alone_in_group, bench_step, is_ours
from thinwire.bench.device_step import (
    DENSE_SGD,
    DEVICE_METHODS,
    LOOKED_AT,
    MIB,
    Costs,
    DeviceRow,
    Memory,
    Trace,
    bench_device_step,
    beyond_dense,
    brings_momentum,
    check_methods,
    cost_table,
    default_methods,
    entrant,
    function_name,
    function_table,
    kernel_table,
    rounds_of,
    tables,
    time_table,
    together_with_dense,
)
from thinwire.bench.models import PIXELS, TIMED_MODELS, Batch, Decoder, TimedModel, resnet50
from thinwire.bench.timing import wall_clock
from thinwire.cli.main import main
from thinwire.errors import ConfigError, SpecError

CPU, META = torch.device("cpu"), torch.device("meta")
METHODS = ["bf16", "memsgd(topk(0.01))", "memadam(topk(0.01))"]


def _draw(count: int, generator: torch.Generator) -> Batch:
    return Batch(torch.randn(count, 20, generator=generator), torch.randint(10, (count,), generator=generator))


TINY = TimedModel(
    "tiny", lambda: nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10)), _draw, F.cross_entropy, 4
)


# ------------------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("name", "tensors", "numel"), [("gpt2", 148, 124_475_904), ("resnet50", 161, 25_557_032), ("mlp", 6, 10_005_500)]
)
def test_the_networks_have_their_sizes(name: str, tensors: int, numel: int) -> None:
    """As many as transformers' and torchvision's have, but for the tokens that round GPT-2's up."""
    parameters = [*TIMED_MODELS[name].built(META).parameters()]
    assert (len(parameters), sum(each.numel() for each in parameters)) == (tensors, numel)


def test_a_network_is_built_alike_each_time_and_steps() -> None:
    first, second = (TINY.built(CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(TINY.batch(4, CPU).inputs, TINY.batch(4, CPU).inputs)


def test_gpt2_sees_only_what_came_before() -> None:
    torch.manual_seed(0)
    decoder, tokens = Decoder(layers=2, width=16, heads=4, tokens=11, context=8), torch.randint(11, (2, 8))
    other = tokens.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 11
    scores, others = decoder(tokens), decoder(other)
    assert scores.shape == (2, 8, 11)
    torch.testing.assert_close(scores[:, :5], others[:, :5])
    assert not torch.allclose(scores[:, 5:], others[:, 5:])


@pytest.mark.parametrize("name", TIMED_MODELS)
def test_outputs_and_targets_of_each_model_have_a_loss(name: str) -> None:
    work = TIMED_MODELS[name]
    batch = work.batch(2, META)
    assert work.loss(work.built(META)(batch.inputs), batch.targets).shape == ()
    assert batch.inputs.shape[0] == 2


def test_a_resnet_halves_the_picture_five_times() -> None:
    with META:
        stages = [*resnet50()][:-3]
    x = torch.empty(1, 3, PIXELS, PIXELS, device=META)
    assert nn.Sequential(*stages)(x).shape == (1, 2048, PIXELS // 32, PIXELS // 32)


# -------------------------------------------------------------------------------------------------------------- methods


def test_methods_are_read_before_anything_is_built() -> None:
    check_methods([DENSE, DENSE_SGD, POWERSGD, *HOOKS, "ef21(topk(0.01))"])
    with pytest.raises(SpecError):
        bench_device_step(TINY, 4, ["memsgd(topp(0.01))"], 1)
    assert set(default_methods()) <= set(DEVICE_METHODS)
    assert {DENSE, *HOOKS, POWERSGD, "memsgd(sign())"} <= set(default_methods())


def test_rules_with_their_own_momentum_have_dense_sgd_beside_them() -> None:
    assert [brings_momentum(name) for name in (DENSE, "memadam(topk(0.01))", "ef21sgdm(topk(0.01))")] == [0, 1, 0]
    assert together_with_dense(["bf16", "bf16"]) == [DENSE, "bf16"]
    assert together_with_dense(METHODS) == [DENSE, DENSE_SGD, *METHODS]


def test_every_method_of_the_table_trains() -> None:
    with alone_in_group(CPU):
        batch = TINY.batch(4, CPU)
        for method in (DENSE_SGD, *filter(_runs_on_gloo, default_methods())):
            made = entrant(TINY, method, batch)
            for _ in range(3):
                made.step()
            assert (made.handle is None) == (method == DENSE_SGD or not is_ours(method))


def _runs_on_gloo(method: str) -> bool:
    return method not in ("bf16", POWERSGD)  # one is refused; one hangs where several buckets are in flight


# ------------------------------------------------------------------------------------------------------------ the whole


TRACE = Trace(
    {"cudaLaunchKernel": 100.0, "cudaStreamSynchronize": 1.0}, {"gemm": 2.0, "fill": 0.5}, {"gemm": 9.0, "fill": 1.0}
)
MORE = Trace(
    {"cudaLaunchKernel": 103.0, "cuLaunchKernelEx": 4.0, "cudaGraphLaunch": 2.0, "cudaStreamSynchronize": 1.5}
    | {"cudaEventSynchronize": 0.5, "cudaMemcpyAsync": 3.0, "cudaEventRecord": 7.0},
    {"gemm": 2.1, "topk": 0.4},
    {"gemm": 9.0, "topk": 2.0},
)


@pytest.fixture
def _gpu_played_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is the machine's, and what only CUDA can tell is made up."""
    monkeypatch.setattr(module, "GPU", CPU)
    monkeypatch.setattr(module, "gpu_clock", wall_clock)
    monkeypatch.setattr(module, "_settled", lambda: (0, 0))
    monkeypatch.setattr(module, "_memory", lambda step, before: Memory(MIB, 0, 0))
    monkeypatch.setattr(module, "traced", lambda step: TRACE)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.usefixtures("_gpu_played_by_the_cpu")
def test_all_methods_race_and_one_is_taken_apart() -> None:
    rows = bench_device_step(TINY, 4, ["fp16", "vgc(1.5)"], 2, profiled="memsgd(topk(0.5))")
    found = {row.method: row for row in rows}
    assert list(found) == [DENSE, "fp16", "vgc(1.5)", "memsgd(topk(0.5))"]
    assert found[DENSE].ratios == [1.0, 1.0]
    assert [row.optimizer for row in rows] == ["AdamW", "AdamW", "", "AdamW"]
    assert "AttachError" in (found["vgc(1.5)"].absent or "")  # nobody watches its second moments
    ours = found["memsgd(topk(0.5))"]
    assert ours.costs is not None
    assert ours.costs.hook_ms is not None
    assert 0 < ours.costs.hook_ms < ours.costs.host_ms
    assert ours.parameters == 20 * 30 + 30 + 30 * 10 + 10
    assert ours.functions_ms is not None
    assert any(re.match(r"(engines|exchange|ops)/", name) for name in ours.functions_ms)
    assert found["fp16"].costs is not None
    assert found["fp16"].costs.hook_ms is None
    for row in rows:
        assert json.loads(json.dumps(row.plain()))["method"] == row.method
    assert len(tables(rows)) == 4


@pytest.mark.usefixtures("_gpu_played_by_the_cpu")
def test_a_hook_of_torchs_has_no_functions_of_ours() -> None:
    rows = bench_device_step(TINY, 4, [], 1, profiled="fp16")
    assert rows[-1].functions_ms == {}
    assert len(tables(rows)) == 3


@pytest.mark.usefixtures("_gpu_played_by_the_cpu")
def test_without_dense_there_is_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def _memory(step: object, before: object) -> Memory:
        raise torch.OutOfMemoryError("no room for 3 GiB")

    monkeypatch.setattr(module, "_memory", _memory)
    with pytest.raises(ConfigError, match=r"tiny does not run: OutOfMemoryError: no room .* smaller --batch"):
        bench_device_step(TINY, 4, ["fp16"], 1)


def test_each_round_begins_with_another_method(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(module, "gpu_clock", wall_clock)
    times = rounds_of({name: lambda name=name: order.append(name) for name in "abc"}, 2)
    assert {name: len(each) for name, each in times.items()} == {"a": 2, "b": 2, "c": 2}
    assert order[:: module.TURN] == [*"abc", *"bca", *"cab"]


def test_a_profile_is_read_by_calls_and_kernels() -> None:
    def line(name: str, device: str, count: int, us: float = 0.0, *, annotation: bool = False) -> SimpleNamespace:
        kind = SimpleNamespace(name=device)
        fields = {"key": name, "device_type": kind, "count": count, "self_device_time_total": us}
        return SimpleNamespace(**fields, is_user_annotation=annotation)

    lines = [
        line("cudaLaunchKernel", "CPU", 5 * LOOKED_AT),
        line("gemm", "CUDA", 5 * LOOKED_AT, 2_000.0 * LOOKED_AT),
        line("nccl:all_gather", "CUDA", 1, 9e9, annotation=True),
    ]
    assert module._trace_of(lines) == Trace({"cudaLaunchKernel": 5.0}, {"gemm": 2.0}, {"gemm": 5.0})
    assert MORE.figures() == {
        "launches": 107.0,
        "graph_launches": 2.0,
        "synchronisations": 2.0,
        "copies": 3.0,
        "kernels": 11.0,
        "busy_ms": 2.5,
    }


# --------------------------------------------------------------------------------------------------------------- tables


def _row(method: str, trace: Trace | None, peak: int = 8 * MIB) -> DeviceRow:
    costs = None if trace is None else Costs(Memory(peak, 0, 0), 4.0, None if method == DENSE else 1.25, trace)
    row = DeviceRow("a chip", "tiny", 4, MIB, method, "AdamW", [5.0, 7.0, 6.0], [1.0, 1.2, 1.1], costs)
    return row if costs else replace(row, step_ms=[], ratios=[], optimizer="", absent="AttachError: no")


ROWS = [
    _row(DENSE, TRACE),
    replace(_row("memsgd(topk(0.01))", MORE, 12 * MIB), functions_ms={"channel: send": 3.0, REST: 1.0}),
    _row("vgc(1.5)", None),
]


def _printed(*parts: object) -> list[list[str]]:
    out = Console(file=io.StringIO(), width=160, record=True)
    out.print(*parts)
    return [line.split() for line in out.export_text().splitlines()]


def test_times_stand_beside_dense_ones() -> None:
    lines = _printed(time_table(ROWS))
    expected = "memsgd(topk(0.01)) AdamW 6.00 5.00 - 7.00 1.100 1.00 - 1.20 4.00 1.25"
    assert expected.split() in lines
    assert time_table(ROWS).row_count == 3


def test_costs_are_above_dense_which_shows_its_own() -> None:
    lines = _printed(cost_table(ROWS, ROWS[0]))
    assert ["dense", "100.0", "0.0", "1.0", "0.0", "10.0", "2.500", "8", "2.00"] in lines
    assert ["memsgd(topk(0.01))", "+7.0", "+2.0", "+1.0", "+3.0", "+1.0", "+0.000", "+4", "+1.00"] in lines


def test_kernels_are_those_beyond_dense() -> None:
    beyond = dict(beyond_dense(ROWS[1], ROWS[0]))
    assert list(beyond) == ["fill", "topk", "gemm"]
    assert beyond["fill"] == (-0.5, -1.0)
    lines = _printed(kernel_table(ROWS[1], ROWS[0]))
    assert ["topk", "+0.4000", "+2.0"] in lines
    assert ["beyond", "a", "dense", "step", "+0.0000", "+1.0"] in lines
    assert beyond_dense(ROWS[2], ROWS[0]) == []


def test_functions_are_ours_by_name_and_others_by_package() -> None:
    assert (
        function_name(str(module.PACKAGE / "engines" / "ddp" / "handle.py"), "exchange")
        == "engines/ddp/handle: exchange"
    )
    assert function_name("/x/lib/python3.12/site-packages/triton/runtime/jit.py", "run") == "in triton"
    assert function_name("/usr/lib/python3.12/dataclasses.py", "replace") == "in dataclasses"
    assert function_name("<string>", "__init__") == "in Python itself"
    assert ["channel:", "send", "3.000", "75.0%"] in _printed(function_table(ROWS[1]))


def test_a_row_of_json_has_its_figures_by_name() -> None:
    plain = ROWS[1].plain()
    assert plain | {"median_ms": 6.0, "ratio": 1.1, "launches": 107.0, "peak_mib": 12.0, "vectors": 3.0} == plain
    assert ROWS[2].plain()["ratio"] is None


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "gpt2"], "add --device cuda, or use --model mlp"),
        (["--model", "vgg"], "--model must be gpt2, resnet50 or mlp, got 'vgg'"),
        (["--profile", "ef21(topk(0.01))"], "--profile needs --device cuda"),
        (["--batch", "0"], "rounds and batch must be at least 1, got 15 and 0"),
        (["--methods", "dense; memsgd(topp(0.1))"], "topp"),
        (["--methods", "bf16"], "take fp16, or --device cuda"),
        (["--device", "tpu"], "device must be one of cpu, cuda"),
    ],
)
def test_what_cannot_be_timed_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "step", *words]) == 2
    assert told in capsys.readouterr().err


def test_without_a_gpu_the_remedy_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "step", "--device", "cuda"]) == 2
    assert "use --device cpu, or a machine with a GPU" in capsys.readouterr().err


@pytest.mark.skipif(CUDA_WITHOUT_GPU, reason="a build with CUDA that is told it has a GPU looks for a driver")
@pytest.mark.usefixtures("_gpu_played_by_the_cpu")
def test_the_command_prints_both_tables_and_who_is_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(TIMED_MODELS, "gpt2", TINY)
    words = ["bench", "step", "--device", "cuda", "--rounds", "1", "--methods", "vgc(1.5); fp16"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "tiny, 0.0 M parameters, batch 4, bfloat16 autocast; one process on NCCL" in out
    assert "vgc(1.5) is not measured: AttachError" in out
    assert len(re.findall(r"^ ?fp16 ", out, re.M)) == 2
    assert main([*words, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["method"] for row in rows] == [DENSE, "vgc(1.5)", "fp16"]


@pytest.mark.dist
def test_on_the_cpu_the_named_methods_run_beside_the_floor_and_dense() -> None:
    rows = bench_step(1, ["memsgd(sign())"], batch=2)
    assert [row.method for row in rows] == ["alone", "dense", "memsgd(sign())"]
    assert [row.parts_ms is not None for row in rows] == [False, False, True]


@pytest.mark.gpu
def test_a_small_network_is_timed_counted_and_taken_apart() -> None:
    rows = bench_device_step(TINY, 4, METHODS, 2, profiled="memsgd(topk(0.01))")
    assert [row.absent for row in rows] == [None] * len(rows)
    for row in rows:
        assert row.costs is not None
        assert row.costs.trace.figures()["launches"] > 0
        assert row.costs.trace.figures()["busy_ms"] > 0
        assert row.costs.memory.peak > 0
        assert (row.costs.hook_ms is None) == (row.method in (DENSE, DENSE_SGD, "bf16"))
    assert rows[-1].functions_ms or rows[-2].functions_ms
    assert len(tables(rows)) == 4
