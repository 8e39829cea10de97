"""Experiments: a configuration decides a run, the record tells it, and both engines give the same numbers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from thinwire.errors import ConfigError, DataError, RecordError, SpecError, ThinwireError
from thinwire.training import RunConfig, RunRecord, read_records, train
from thinwire.training.config import OPTIMIZERS, SCHEDULES, comparison, demo_configs, set_learning_rate_
from thinwire.training.formatting import show_metric
from thinwire.training.recorder import Totals
from thinwire.training.sections import verdict
from thinwire.training.summary import summarise
from thinwire.training.tasks import TASKS

RULE = "memsgd(topk(0.01))"


def simulated(method: str = RULE, **settings: Any) -> RunConfig:
    given = {"engine": "sim", "workers": 2, "steps": 6, "evaluations": 2, **settings}
    return RunConfig.of("digits", method, **given)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of three methods and two seeds on the smallest task."""
    path = tmp_path_factory.mktemp("record") / "r.jsonl"
    settings = {"engine": "sim", "workers": 2, "steps": 12, "evaluations": 3}
    train(comparison("logistic", ["dense", "fp16", "memsgd(topk(0.1))"], [0, 1], **settings), path, ["thinwire", "x"])
    return path


# -------------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"workers": 0}, "workers must be a whole number from 1 to 256, got 0"),
        ({"workers": 257}, "got 257"),
        ({"steps": 0}, "steps must be a whole number from 1"),
        ({"batch": -1}, "batch must be a whole number from 1"),
        ({"evaluations": 0}, "evaluations must be"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"lr": 0.0}, "lr must be a finite number above 0, got 0.0; try 0.5"),
        ({"lr": float("nan")}, "lr must be a finite number above 0, got nan"),
        ({"engine": "mpi"}, "engine must be one of ddp, sim, got 'mpi'"),
        ({"optimizer": "lion"}, "optimizer must be one of sgd, momentum, adam, adamw, got 'lion'"),
        ({"schedule": "up"}, "schedule must be one of constant, cosine, halving, decay, got 'up'"),
        ({"device": "tpu"}, "device must be one of cpu, cuda, got 'tpu'"),
        ({"device": "cuda", "engine": "ddp"}, "real processes train on the CPU here, got device cuda"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number of at least 0, got -0.1"),
        ({"method": "powersgd"}, "cannot be simulated; use --engine ddp"),
        ({"task": "digit"}, "unknown task 'digit'"),
        ({"data": "rows.txt"}, "brings its own data"),
        ({"every": 30}, "(every=30) are trained by real processes; use --engine ddp"),
        (
            {"rate": 1e8},
            "joins real processes; simulated workers share one, which no wire slows down: use --engine ddp",
        ),
        ({"rate": -1.0, "engine": "ddp"}, "must be above 0 bits a second, got -1.0; try 1e8"),
        ({"rate": float("nan"), "engine": "ddp"}, "must be above 0 bits a second"),
        ({"every": -1}, "every must be a whole number from 0"),
        ({"every": 30, "engine": "ddp", "method": "dense"}, "take a rule, not torch's 'dense'"),
    ],
)
def test_a_value_out_of_bounds_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(simulated(), **change)
    assert problem in str(caught.value)


@pytest.mark.parametrize("method", ["marina(qsgd(15), probability=0.1)", "ef21p(ef21(topk(0.1)), topk(0.1))"])
def test_a_method_that_needs_more_than_one_backward_pass_is_refused(method: str, tmp_path: Path) -> None:
    with pytest.raises(ThinwireError, match=r"thinwire\.simulate"):
        train([simulated(method)], tmp_path / "r.jsonl", ["thinwire", "x"])


def test_a_method_gets_its_canonical_text_and_mistakes_their_caret() -> None:
    assert simulated(" memsgd( topk( 0.010 ))").method == RULE
    with pytest.raises(SpecError) as caught:
        simulated("memsgd(topk(2))")
    assert str(caught.value).splitlines()[-2:] == ["  memsgd(topk(2))", "         ^"]
    with pytest.raises(SpecError, match="torch's own are dense, fp16, powersgd"):
        simulated("dens")


def test_a_configuration_survives_json() -> None:
    config = simulated(lr=0.25)
    assert RunConfig(**json.loads(json.dumps(config.asdict()))) == config


def test_in_a_comparison_a_rule_with_its_own_momentum_takes_sgd() -> None:
    configs = comparison("digits", ["dense", "dgc(topk(0.01))", "memadam(topk(0.01))"], [0], optimizer="momentum")
    assert [config.optimizer for config in configs] == ["momentum", "sgd", "sgd"]


def test_a_comparison_takes_one_rate_or_one_for_each() -> None:
    both = comparison("digits", ["dense", RULE], [0, 1], rates=[0.1, 0.2])
    assert [(c.method, c.seed, c.lr) for c in both] == [
        ("dense", 0, 0.1),
        ("dense", 1, 0.1),
        (RULE, 0, 0.2),
        (RULE, 1, 0.2),
    ]
    assert {c.lr for c in comparison("digits", ["dense", RULE], [0], rates=[0.3])} == {0.3}
    with pytest.raises(ConfigError, match="one for each of the 2 methods, got 3"):
        comparison("digits", ["dense", RULE], [0], rates=[1, 2, 3])
    with pytest.raises(ConfigError, match="seeds must differ"):
        comparison("digits", ["dense"], [0, 0])
    with pytest.raises(ConfigError, match="methods must differ"):
        comparison("digits", [RULE, " memsgd(topk(0.01))"], [0])


def test_the_demo_gives_all_methods_the_same_budget() -> None:
    ours = "memadam(topk(0.01, values=power4))"
    configs = demo_configs(4, "ddp", 300, [0], 1e8)
    assert [(config.method, config.rate) for config in configs] == [
        *((method, 1e8) for method in ("dense", "fp16", "powersgd", ours)),
        *((method, None) for method in ("dense", "fp16", ours)),
    ]
    assert {config.optimizer for config in configs if config.method != ours} == {"adamw"}
    same = {"method": "dense", "optimizer": "sgd", "rate": None}
    assert len({dataclasses.replace(config, **same) for config in configs[:4]}) == 1
    assert {(config.steps, config.evaluations) for config in configs[4:]} == {(40, 1)}
    assert {config.steps for config in demo_configs(4, "ddp", 20, [0], 1e8)} == {20}
    assert [config.method for config in demo_configs(4, "sim", 300, [0])] == ["dense", "fp16", ours]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rate_starts_full_and_never_reaches_zero(schedule: str) -> None:
    optimizer = OPTIMIZERS["sgd"]([torch.nn.Parameter(torch.zeros(1))], 1.0, 0.0)
    rates = []
    for step in range(20):
        set_learning_rate_(optimizer, schedule, 0.5, step, 20)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == 0.5
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


# ------------------------------------------------------------------------------------------------------------- training


def test_a_run_leaves_its_whole_story(record: Path) -> None:
    runs = read_records([record])
    assert [(run.config.method, run.config.seed) for run in runs] == [
        (method, seed) for method in ("dense", "fp16", "memsgd(topk(0.1))") for seed in (0, 1)
    ]
    for run in runs:
        assert run.provenance["command"] == "thinwire x"
        assert set(run.provenance["versions"]) == {"python", "thinwire", "torch", "numpy", "scikit-learn"}
        assert set(run.provenance["machine"]) == {"platform", "cpus", "cpu", "gpu"}
        assert [point.step for point in run.losses] == list(range(1, 13))
        assert [point.step for point in run.metrics] == [4, 8, 12]
        assert run.end["status"] == "done"
        assert run.metric == run.metrics[-1].value


def test_bytes_are_those_of_the_collective(record: Path) -> None:
    by_method = {run.config.method: run.end for run in read_records([record])}
    # 31 float32 of two workers: a ring all-reduce sends 2 (n-1)/n of them, in each of 12 steps
    assert by_method["dense"]["sent_bytes"] == 12 * 31 * 4
    assert by_method["fp16"]["sent_bytes"] == 12 * 31 * 2
    assert (by_method["dense"]["ratio_fp32"], by_method["dense"]["ratio_fp16"]) == (1.0, 0.5)
    assert by_method["memsgd(topk(0.1))"]["ratio_fp32"] > 1


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (
        train([simulated(seed=seed)], tmp_path / f"{name}.jsonl")[0] for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert losses(first) == losses(again)
    assert losses(first) != losses(other)


def losses(run: RunRecord) -> list[float | None]:
    return [point.value for point in run.losses]


def test_a_listener_hears_every_line(tmp_path: Path) -> None:
    heard: list[Mapping[str, Any]] = []
    train([simulated()], tmp_path / "r.jsonl", listener=heard.append)
    written = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert heard == written


@pytest.mark.parametrize("method", ["dense", RULE])
def test_a_run_that_diverges_says_so_and_the_next_goes_on(tmp_path: Path, method: str) -> None:
    runs = train([simulated(method, lr=1e30, steps=8), simulated("fp16")], tmp_path / "r.jsonl")
    assert [run.end["status"] for run in runs] == ["diverged", "done"]
    assert runs[0].metric is None
    assert show_metric(summarise(runs)[0]) == "diverged"


def test_one_worker_sends_nothing(tmp_path: Path) -> None:
    run = train([simulated(workers=1)], tmp_path / "r.jsonl")[0]
    assert (run.end["sent_bytes"], run.end["ratio_fp32"]) == (0, None)


def test_an_existing_record_is_kept_and_a_failed_start_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="exists already"):
        train([simulated()], path)
    assert path.read_text() == "precious"
    missing = RunConfig.of("logistic", RULE, engine="sim", data=str(tmp_path / "no.txt"))
    with pytest.raises(DataError, match="does not exist"):
        train([missing], tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()


def test_runs_of_one_command_share_task_and_workers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="share their workers"):
        train([simulated(), simulated(workers=3)], tmp_path / "r.jsonl")
    with pytest.raises(ConfigError, match="no runs"):
        train([], tmp_path / "r.jsonl")


def test_traffic_of_a_ring() -> None:
    traffic = Totals.of_allreduce(bytes_per_step=400, numel=100, workers=4, steps=10)
    assert (traffic.sent, traffic.ratio_fp32, traffic.ratio_fp16) == (6000, 1.0, 0.5)


# ---------------------------------------------------------------------------------------------------- real processes


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    "methods",
    [
        ["fp16", "memsgd(randk(0.05, shared=True))"],
        pytest.param(["dense", RULE, "ef21sgdm(topk(0.01))"], marks=pytest.mark.exhaustive),
    ],
    ids=len,
)
def test_real_processes_and_the_simulation_give_equal_losses_and_bytes(methods: list[str], tmp_path: Path) -> None:
    heard: list[Mapping[str, Any]] = []
    settings = {"workers": 2, "steps": 8, "evaluations": 2}
    real = train(comparison("digits", methods, [3], engine="ddp", **settings), tmp_path / "r", listener=heard.append)
    same = train(comparison("digits", methods, [3], engine="sim", **settings), tmp_path / "s")
    assert [course(run) for run in real] == [course(run) for run in same]
    assert [line["kind"] for line in heard].count("end") == len(methods)


def course(run: RunRecord) -> list[tuple[int, float | None, int]]:
    return [(point.step, point.value, point.sent_bytes) for point in (*run.losses, *run.metrics)]


@pytest.mark.dist
@pytest.mark.slow
def test_a_failing_worker_gives_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers, not this process, find that scikit-learn is missing."""
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='sklearn')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ThinwireError, match=r"pip install 'thinwire\[tasks\]'") as caught:
        train([RunConfig.of("digits", RULE, workers=2, steps=2)], tmp_path / "r.jsonl")
    assert type(caught.value).__name__ == "BackendError"
    assert "Traceback" in caught.value.__notes__[0]


# -------------------------------------------------------------------------------------------------------------- records


def lines(record: Path) -> list[dict[str, Any]]:
    """The lines behind the head: records of training had none at first, and are still read."""
    head, *rest = [json.loads(line) for line in record.read_text().splitlines()]
    assert (head["kind"], head["format"]) == ("training", 1)
    return rest


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        read_records([path])
    assert "broken.jsonl" in str(caught.value)
    return str(caught.value)


def test_a_missing_or_empty_record_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        read_records([tmp_path / "no.jsonl"])
    with pytest.raises(RecordError, match="cannot be read: Is a directory"):
        read_records([tmp_path])
    assert "line 1: the file is empty" in refused(tmp_path, "\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="not UTF-8"):
        read_records([tmp_path / "binary.jsonl"])


@pytest.mark.parametrize(
    ("place", "change", "problem"),
    [
        (0, {"format": 99}, "line 1: format 99, but this thinwire reads format 1"),
        (0, {"task": {}}, "line 1: malformed: the field 'metric' is missing"),
        (0, {"config": {"task": "digits"}}, "line 1: malformed: its config"),
        (1, {"kind": "stop"}, "line 2: malformed: an object with"),
        (1, {"loss": "low"}, "line 2: malformed: the field 'loss' must be int or float or null, got \"low\""),
        (1, {"step": True}, "line 2: malformed: the field 'step' must be int, got true"),
        (-1, {"seconds": None}, "malformed: the field 'seconds' must be int or float, got null"),
    ],
)
def test_a_malformed_line_is_told_with_its_number(
    record: Path, tmp_path: Path, place: int, change: dict[str, Any], problem: str
) -> None:
    parsed = lines(record)
    parsed[place] = {**parsed[place], **change}
    assert problem in refused(tmp_path, "\n".join(map(json.dumps, parsed)) + "\n")


def test_a_missing_field_lines_out_of_order_and_junk_are_told(record: Path, tmp_path: Path) -> None:
    parsed = lines(record)
    del parsed[2]["sent_bytes"]
    assert "line 3: malformed: the field 'sent_bytes' is missing" in refused(
        tmp_path, "\n".join(map(json.dumps, parsed))
    )
    outside = "\n".join(map(json.dumps, lines(record)[1:]))
    assert "line 1: a 'step' line outside of any run" in refused(tmp_path, outside)
    assert "line 1: malformed: not a JSON object" in refused(tmp_path, "hello\nworld\n")


# ---------------------------------------------------------------------------------------------------- table and verdict


def test_rows_take_seeds_together_and_labels_tell_twins_apart(record: Path) -> None:
    rows = summarise(read_records([record]))
    assert [(row.label, row.seeds) for row in rows] == [
        ("dense", [0, 1]),
        ("fp16", [0, 1]),
        ("memsgd(topk(0.1))", [0, 1]),
    ]
    assert rows[0].metric is not None
    assert rows[0].metric.deviation is not None
    runs = read_records([record])[:2]
    twin = [dataclasses.replace(run, config=dataclasses.replace(run.config, lr=0.125)) for run in runs]
    assert [row.label for row in summarise([*runs, *twin])] == ["dense · lr 0.5", "dense · lr 0.125"]


def test_the_verdict_says_what_was_saved_and_whether_it_paid(record: Path) -> None:
    runs = [
        told(run, metric, seconds) for run, metric, seconds in zip(read_records([record])[::2], *FIGURES, strict=True)
    ]
    saved, paid, apart = verdict(summarise(runs))
    assert saved.startswith("memsgd(topk(0.1)) sent ")
    assert "reached 89.5 %, dense 90.0 %" in saved
    assert paid.startswith("Compression did not pay in wall time here: memsgd(topk(0.1)) 3.00 s, dense 1.00 s.")
    assert apart.startswith("Times are of training steps alone; compiling and warming up took ")
    assert verdict(summarise(runs[1:]))[0].startswith("Times are of training steps alone")
    more = [dataclasses.replace(run, end={**run.end, "ratio_fp32": 0.86, "ratio_fp16": 0.43}) for run in runs]
    saved = verdict(summarise(more))[0]
    assert "sent 1.16 times more bytes than float32 all-reduce (2.33 times more than float16)" in saved
    far = [runs[0], told(runs[2], 0.5, 0.5)]
    assert verdict(summarise(far))[0].startswith("No compressed method came within 1% of dense (90.0 %)")
    assert verdict(summarise(far))[1].startswith("Whether compression pays in wall time is not settled")
    twice = [dataclasses.replace(run, config=dataclasses.replace(run.config, seed=7)) for run in far]
    assert verdict(summarise([*far, *twice]))[1].startswith("Compression paid in wall time here")


FIGURES = ([0.9, 0.9, 0.895], [1.0, 2.0, 3.0])


def told(run: RunRecord, metric: float, seconds: float) -> RunRecord:
    """The run with other figures at its end, as if real processes had made it."""
    end = {**run.end, "seconds": seconds, "values": {"accuracy": metric}}
    return dataclasses.replace(run, end=end, config=dataclasses.replace(run.config, engine="ddp"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_moves_parameters_without_a_gradient_of_their_own(name: str) -> None:
    """It is the optimizer's, so that it neither travels nor waits in a memory. Adam scales it to a whole step."""
    x = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = OPTIMIZERS[name]([x], 0.125, 0.5)
    x.grad = torch.zeros(1)
    optimizer.step()
    assert float(x.detach()) == pytest.approx(2 - (0.125 if name == "adam" else 0.125 * 0.5 * 2))


@pytest.mark.parametrize(
    ("task", "method", "optimizer"),
    [
        ("digits", "memsgd(topk(0.01))", "sgd"),
        ("text", "memadam(topk(0.01, values=power4))", "sgd"),
        ("cifar10", "vgc(1.0)", "adam"),
    ],
)
def test_a_task_brings_a_method_that_suits_its_optimizer(task: str, method: str, optimizer: str) -> None:
    config = RunConfig.of(task)
    assert (config.method, config.optimizer) == (method, optimizer)
    assert RunConfig.of(task, "dense").optimizer == TASKS[task].defaults.optimizer
    assert RunConfig.of(task, " memadam(topk(0.1))", optimizer="momentum").optimizer == "momentum"
