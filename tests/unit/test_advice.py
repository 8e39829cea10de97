"""Advice: what a forecast is made of, what it says, what is refused, and what real ranks measure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.dist.world import run_world
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.advice.actors import Posted
from thinwire.advice.candidates import TORCHS, candidates, recommended
from thinwire.advice.held_out import ADVISOR_EXPERIMENT, HeldOut, sections
from thinwire.advice.inquiry import Inquiry, scaled
from thinwire.advice.measure import Mail, bundled
from thinwire.advice.network import line
from thinwire.advice.outlook import PARAMETERS, RATES, WORKERS, Advice, tcp, usual_wire
from thinwire.advice.rehearsal import Burden, Findings, Leg, Rehearsal
from thinwire.cli.main import main
from thinwire.errors import AttachError, ConfigError
from thinwire.exchange import Link
from thinwire.exchange.bundle import FULL
from thinwire.lab.block import Block, Trial
from thinwire.lab.sections import show_ms
from thinwire.lab.setting import Cable, cables
from thinwire.timeline import GATHER, LATER, SHARES, SUM, TELL, Compute

RULE = "memsgd(topk(0.01))"
OUTER = "outer(memsgd(chunktopk(0.015625, values=bins2), decay=0.95), every=30)"
MEGABYTE = 1e6


def rehearsal(**given: Any) -> Rehearsal:
    """A million parameters that take 10 ms to compute, each method's message, and no noise."""
    burdens = {
        "dense": Burden((Leg(1.0, SUM, 4 * MEGABYTE),), 0.0, state=0.0),
        "fp16": Burden((Leg(1.0, SUM, 2 * MEGABYTE),), 0.0, state=0.0),
        RULE: Burden((Leg(1.0, TELL, 5e4, 0.002, 0.001, 0.0005),), 0.0, 0.001, verdicts=1, state=4.0),
        OUTER: Burden((Leg(0.0, TELL, 2e4, 0.01, 0.0, 0.001),), 0.0, verdicts=1, every=30, state=8.0),
    }
    found = Findings(Compute(0.003, 0.007), 0.95, 1.05, 1_000_000, burdens)
    usual = {"model": "text", "batch": 8, "here": 1, "cores": 4, "machine": "a machine", "found": found}
    return Rehearsal(**{**usual, "wire": tcp(usual_wire(4)), **given})


def advice(rate: float | None, workers: int = 4) -> Advice:
    one = rehearsal(wire=tcp(usual_wire(workers)))
    return Advice(one, one.wire.shaped(rate))


# ------------------------------------------------------------------------------------------------------------ forecasts


def test_a_thin_wire_is_worth_compressing_for_and_a_thick_one_is_not() -> None:
    thin, thick = advice(1e7), advice(1e11)
    assert thin.compresses
    assert thin.best.method == RULE
    assert thin.verdict.startswith(f"Compress: {RULE} takes")
    assert not thick.compresses
    assert thick.best.method == "fp16"
    assert thick.verdict.startswith("Do not compress: ")


def test_between_the_two_it_is_not_sure() -> None:
    verdicts = {advice(rate).verdict.split(":")[0] for rate in (1e9 * 1.2**place for place in range(20))}
    assert verdicts == {"Compress", "Do not compress unless a measurement says so", "Do not compress"}


def test_the_dense_step_is_computing_and_the_bytes_of_a_ring() -> None:
    row = advice(1e8).row("dense")
    ring = 8 * 1.5 * 4 * MEGABYTE / (0.88 * 1e8)
    assert row.step.compute == pytest.approx(0.010)
    assert row.seconds == pytest.approx(0.010 + ring + advice(1e8).wire.sum.alpha)
    assert row.step.sent == 6 * MEGABYTE
    assert row.low < row.seconds < row.high


def test_outer_steps_pay_for_one_exchange_in_thirty() -> None:
    one = rehearsal()
    step = one.step(OUTER, one.wire.shaped(1e8))
    often = replace(one.found.burdens[OUTER], every=1, legs=(Leg(1.0, TELL, 2e4, 0.01, 0.0, 0.001),))
    each = replace(one, found=replace(one.found, burdens={OUTER: often})).step(OUTER, one.wire.shaped(1e8))
    assert step.total == pytest.approx(0.010 + (each.total - 0.010) / 30)
    assert step.sent == pytest.approx(each.sent / 30)


def test_workers_that_share_cores_take_longer_and_lose_what_collectives_take() -> None:
    crowded = rehearsal(here=8, cores=2)
    assert crowded.slower == crowded.crowding == 4
    assert crowded.compute.total == pytest.approx(0.040)
    assert crowded.step(RULE, crowded.wire).encode == pytest.approx(4 * 0.002)
    assert rehearsal(here=2, cores=4).crowding == 0
    assert rehearsal(here=8, cores=2, slept=0.002).compute.total == pytest.approx(0.002 + 4 * 0.008)


def test_decoding_grows_with_the_workers() -> None:
    assert advice(1e8, workers=16).row(RULE).step.decode == pytest.approx(0.001 + 16 * 0.0005)


def test_a_question_beyond_what_was_checked_is_called_so() -> None:
    inside = rehearsal(found=replace(rehearsal().found, parameters=PARAMETERS[0]))
    assert Advice(inside, inside.wire.shaped(1e8)).outside == []
    outside = Advice(inside, inside.wire.at(64).shaped(1e10)).outside
    assert [words.split(":")[0] for words in outside] == ["64 workers", "10,000,000,000 bits a second"]


def test_advice_can_be_read_and_written_as_json() -> None:
    shown = str(advice(1e7))
    assert RULE in shown
    assert "Time is not loss" in shown
    assert "docs/choosing.md" in shown
    plain = json.loads(json.dumps(advice(1e7).plain()))
    assert plain["best"] == RULE
    assert {row["method"] for row in plain["rows"]} == {"alone", "dense", "fp16", RULE, OUTER}


def test_computing_that_was_given_takes_the_place_of_what_was_measured() -> None:
    question = Inquiry(model="100m", compute=300.0, workers=4, cables=cables("1gbit"))
    made = scaled(question, rehearsal())
    assert made.found.parameters == 100_000_000
    assert made.compute.total == pytest.approx(0.3)
    assert made.step("dense", made.wire).sent == pytest.approx(600 * MEGABYTE)
    assert made.found.burdens[RULE].legs[0].encode == pytest.approx(0.2)


# ---------------------------------------------------------------------------------------------------- methods and legs


def test_each_optimizer_has_its_methods() -> None:
    assert candidates(None, "AdamW") == (
        *TORCHS,
        *recommended("adam"),
        "memsgd(topk(0.01))",
        "memsgd(topk(0.001))",
        OUTER,
    )
    assert candidates("dense; memsgd( topk(0.010) )", "sgd") == (*TORCHS, RULE)


@pytest.mark.parametrize("text", ["vgc()", "marina(qsgd(15), 0.1)", 'route({"*": vgc()})'])
def test_rules_that_gradients_do_not_suffice_for_are_refused(text: str) -> None:
    with pytest.raises(AttachError, match="needs more of a backward pass"):
        candidates(text, "sgd")


def test_short_messages_travel_with_later_ones() -> None:
    legs = [Leg(share, LATER, 1000.0, encode=0.001, decode=0.001) for share in (0.2, 0.5, 1.0)]
    assert [(leg.kind, leg.nbytes) for leg in bundled(legs, [None] * 3)] == [(LATER, 0), (LATER, 0), (TELL, 3000)]
    long = [replace(legs[0], nbytes=float(FULL)), legs[1], replace(legs[2], nbytes=1e6)]
    kinds = [(leg.kind, leg.nbytes) for leg in bundled(long, [None, None, GATHER])]
    assert kinds == [(TELL, FULL), (LATER, 0), (GATHER, 1e6), (TELL, 1000)]
    assert bundled([legs[0]], [SHARES])[0].kind == SHARES
    assert sum(leg.encode for leg in bundled(long, [None, None, GATHER])) == pytest.approx(0.003)


def test_decoding_more_messages_than_were_made_is_a_line() -> None:
    few, many = (Posted(100, True, 0, seconds) for seconds in (0.5, 0.75))
    line_of = Mail.of(few, many, [2, 4])
    assert (line_of.decode, line_of.each) == (0.25, 0.125)
    assert Mail.of(few, few, [2]).each == 0.25


def test_an_outlier_does_not_bend_the_line() -> None:
    sizes = [0.0, 1e4, 1e5, 1e6, 4e6]
    seconds = [0.001 + 1e-8 * n for n in sizes]
    a, b = line(sizes, [*seconds[:2], 50 * seconds[2], *seconds[3:]])
    assert a == pytest.approx(0.001, rel=0.1)
    assert b == pytest.approx(1e-8, rel=0.1)
    assert line([0, 1, 2], [3.0, 2.0, 1.0])[1] == 0


@pytest.mark.parametrize("spread", [(0.5, 2.0), (0.99, 1.01)])
def test_the_interval_is_as_wide_as_computing_was_unsteady(spread: tuple[float, float]) -> None:
    one = rehearsal()
    unsteady = replace(one, found=replace(one.found, low=spread[0], high=spread[1]))
    row = Advice(unsteady, unsteady.wire.shaped(1e10)).row(RULE)
    busy = row.seconds - row.step.exposed - row.step.verdict
    assert row.low == pytest.approx(min(0.85 * row.seconds, row.seconds - (1 - spread[0]) * busy))
    assert row.high == pytest.approx(max(1.25 * row.seconds, row.seconds + (spread[1] - 1) * busy))


def test_the_command_shows_a_table_or_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Inquiry] = []
    monkeypatch.setattr("thinwire.cli.advise.rehearsed", lambda inquiry: asked.append(inquiry) or rehearsal())
    assert main(["advise", "--model", "text", "--rate", "10mbit,100gbit"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "text · 4 workers · 10 Mbit/s" in out
    assert f"Compress: {RULE}" in out
    assert "Do not compress: " in out
    assert main(["advise", "--model", "2m", "--compute", "30", "--optimizer", "sgd", "--rate", "1gbit", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["up"] == 1e9
    assert [inquiry.optimizer for inquiry in asked] == [None, "sgd"]
    assert asked[1].candidates[3] == recommended("sgd")[0]


# ------------------------------------------------------------------------------------------------------------- held out


def held_out(ms: dict[str, float]) -> HeldOut:
    trials = tuple(Trial(method, (each,) * 3, None, None, 0.0, None) for method, each in {"alone": 10.0, **ms}.items())
    block = Block(4, "text", 1_000_000, 8, 5, None, Cable(1e7, 1e7), trials)
    return HeldOut(rehearsal(), (block,))


def test_forecasts_are_made_anew_from_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = held_out({"dense": 6000.0, "fp16": 2000.0, RULE: 300.0})
    again = HeldOut.of_plain(json.loads(json.dumps(one.plain())))
    assert again == one
    (dense, fp16, rule) = again.trials
    assert dense.error == pytest.approx(dense.forecast.seconds / 6 - 1)
    assert dense.within
    assert not fp16.within
    assert (dense.compresses, rule.compresses, rule.paid) == (None, True, True)
    head = {"kind": "advisor", "format": 1, "provenance": {}}
    record = tmp_path / "advisor.jsonl"
    record.write_text("\n".join(json.dumps(each) for each in (head, {"kind": "run", **one.plain()})))
    assert main(["advise", "--check", str(record)]) == 0
    assert "Forecasts beside measurements · 3 combinations" in capsys.readouterr().out
    assert ADVISOR_EXPERIMENT.runs(record) == [one]


def test_a_wrong_yes_is_counted() -> None:
    (section,) = sections([held_out({"dense": 200.0, "fp16": 100.0, RULE: 300.0})])
    assert "1 were answered by yes, 1 of them wrongly" in section.sentences[-1]


def test_the_page_says_what_the_records_hold_and_no_question_beyond_them_is_inside() -> None:
    docs = Path(__file__).parents[2] / "docs"
    checks = [
        run for path in sorted((docs / "records").glob("advisor-*.jsonl")) for run in ADVISOR_EXPERIMENT.runs(path)
    ]
    trials = [trial for check in checks for trial in check.trials]
    page = " ".join((docs / "advisor.md").read_text().split())
    for sentence in sections(checks)[0].sentences:
        assert sentence in page
    for trial in trials:
        assert f"{show_ms(1e3 * trial.forecast.seconds)} / {show_ms(1e3 * trial.measured)}" in page
    first = ADVISOR_EXPERIMENT.runs(docs / "records" / "advisor-text-2.jsonl")[0].rehearsal
    shown = (str(Advice(first, first.wire.shaped(rate))).splitlines() for rate in (1e8, 1e9))
    assert all(" ".join(line.split()) in page for lines in shown for line in lines)
    blocks = [block for check in checks for block in check.blocks]
    assert WORKERS == (min(b.hosts for b in blocks), max(b.hosts for b in blocks))
    assert RATES == (min(r for b in blocks if (r := b.cable.up)), max(r for b in blocks if (r := b.cable.up)))
    assert PARAMETERS == (min(b.parameters for b in blocks), max(b.parameters for b in blocks))


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--workers", "1"], "--workers must be a whole number from 2 to 256, got 1"),
        (["--rate", "0mbit"], "a rate is a number above 0"),
        (["--rate", "100"], "a rate is a number above 0"),
        (["--model", "digit"], "or a number of parameters such as 124m, got 'digit'"),
        (["--model", "124m"], "give --compute MS"),
        (["--model", "12", "--compute", "3"], "at least 1,000 parameters"),
        (["--model", "124m", "--compute", "-3"], "--compute takes milliseconds above 0"),
        (["--model", "124m", "--compute", "3", "--optimizer", "lion"], "--optimizer must be one of sgd"),
        (["--model", "124m", "--compute", "3", "--batch", "3"], "--batch belongs to a task"),
        (["--optimizer", "sgd"], "brings its optimizer"),
        (["--methods", "memsgd(topk(2))"], "topk(2)"),
        (["--methods", "alone"], "'alone' exchanges nothing"),
        (["--methods", "vgc()"], "needs more of a backward pass"),
        (["--here", "5"], "--here must be a whole number from 1 to 4, got 5"),
        (["--every", "0"], "--every must be a whole number from 1"),
        (["--rounds", "0"], "--rounds must be a whole number from 1"),
        (["--measure"], "torchrun started no other"),
        (["--check", "no.jsonl"], "record no.jsonl cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("thinwire.cli.advise.rehearsed", lambda *_: pytest.fail("it started"))
    assert main(["advise", *words]) == 2
    assert problem in capsys.readouterr().err


def test_missing_packages_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    assert main(["advise", "--model", "digits"]) == 2
    assert "pip install 'thinwire[tasks]'" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- real ranks


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 8))


def ask(rank: int, size: int) -> tuple[str, dict[str, Any], bool]:
    """Advice on two ranks over their own network; and whether the model is as it was."""
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(16, 64)
    found = thinwire.advise(
        ddp, lambda model: model(x).square().mean(), optimizer=optimizer, methods=[RULE, OUTER], rounds=1, steps=1
    )
    before = network().state_dict()
    same = all(torch.equal(mine, before[name]) for name, mine in ddp.module.state_dict().items())
    untouched = same and not ddp._comm_hooks and not optimizer.state and all(p.grad is None for p in ddp.parameters())
    thinwire.attach(ddp, RULE, torch.optim.SGD(ddp.parameters(), lr=0.1))
    return str(found), found.plain(), untouched


class Partly(nn.Module):
    """One layer is not used, one not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(32, 32), nn.Linear(32, 32)
        self.fixed = nn.Linear(32, 32).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fixed(self.used(x))
        return out


def test_copies_have_ddps_options_and_links_two_rates() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(Partly(), find_unused_parameters=True, bucket_cap_mb=0.005)
        asked: dict[str, Any] = {"workers": 20, "methods": RULE, "rounds": 1, "steps": 1}
        found = thinwire.advise(ddp, lambda model: model(torch.ones(4, 32)).sum(), Link(1e8, 5e8), **asked)
    finally:
        dist.destroy_process_group()
    assert found.rehearsal.found.parameters == 2 * (32 * 32 + 32)
    assert len(found.rehearsal.found.burdens["dense"].legs) > 1
    assert (found.wire.up, found.wire.down, found.wire.workers) == (1e8, 5e8, 20)
    assert found.outside


@pytest.mark.dist
def test_ranks_measure_their_own_network_and_agree(tmp_path: Path) -> None:
    (words, plain, untouched), other = run_world(2, ask, folder=tmp_path)
    assert (words, plain, untouched) == other
    assert untouched
    assert "the network as measured" in words
    rows = {row["method"]: row for row in plain["rows"]}
    assert set(rows) == {"alone", *TORCHS, RULE, OUTER}
    numel = sum(p.numel() for p in network().parameters())
    assert rows["dense"]["sent"] == 4 * numel
    assert rows["fp16"]["sent"] == 2 * numel
    assert 0 < rows[RULE]["sent"] < rows["fp16"]["sent"]
    assert rows[RULE]["encode"] > 0
    assert rows[RULE]["state"] == 4


def test_one_rank_alone_has_no_network() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(nn.Linear(4, 1))
        with pytest.raises(ConfigError, match="at least 2 workers, and here is 1"):
            thinwire.advise(ddp, lambda model: model(torch.ones(1, 4)).sum(), "1gbit")
        with pytest.raises(ConfigError, match="no network to measure"):
            thinwire.advise(ddp, lambda model: model(torch.ones(1, 4)).sum(), workers=4)
        with pytest.raises(AttachError, match="DistributedDataParallel"):
            thinwire.advise(nn.Linear(4, 1), lambda model: model(torch.ones(1, 4)).sum(), "1gbit")
    finally:
        dist.destroy_process_group()
