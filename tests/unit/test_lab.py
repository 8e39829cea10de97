"""The laboratory: what it refuses, its figures' arithmetic, its record and page, and whose namespaces it may delete."""

from __future__ import annotations

import html
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from thinwire.cli.main import main
from thinwire.errors import BackendError, ConfigError, RecordError, ThinwireError
from thinwire.exchange import Loopback
from thinwire.exchange.loopback import LoopbackEnd
from thinwire.lab import laboratory, namespaces, requirements
from thinwire.lab.block import Block, Trial
from thinwire.lab.contender import Replayed
from thinwire.lab.echo import Echo, message_of
from thinwire.lab.laboratory import Hosts, turns
from thinwire.lab.namespaces import Namespaces, orphans
from thinwire.lab.race import Race, races
from thinwire.lab.requirements import check_fit, check_machine, memory_of
from thinwire.lab.sections import LAB_EXPERIMENT, fastest, sections, verdict
from thinwire.lab.setting import BASELINES, Cable, LabSetting, cables, lab_method, lab_methods
from thinwire.training.tasks import load_task

RULE = "memsgd(topk(0.01))"


def setting(**given: Any) -> LabSetting:
    usual = {"hosts": 2, "cables": cables("100mbit"), "task": "digits", "methods": lab_methods(RULE, "digits")}
    return LabSetting(**{**usual, **given})


def trial(method: str, *ms: float, sent: float = 100.0, parts: float | None = None) -> Trial:
    return Trial(method, 3 * ms, parts, parts, sent, 1.05 * sent)  # six rounds


def block(ours: tuple[float, ...], dense: tuple[float, ...] = (40.0, 42.0), **given: Any) -> Block:
    trials = (
        trial("alone", 9.0, 11.0, sent=0.0),
        trial("dense", *dense),
        trial("fp16", 30.0, 32.0),
        trial("powersgd1", 25.0, 24.0),
        trial(RULE, *ours, sent=10.0, parts=2.0),
    )
    usual = {"hosts": 4, "task": "text", "parameters": 1000, "batch": 8, "steps": 5, "replay": None}
    return Block(**{**usual, "cable": Cable(1e8, 1e8), "trials": trials, **given})


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which a laboratory could be made, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a laboratory was made")

    monkeypatch.setattr(laboratory, "network", refuse)
    monkeypatch.setattr(laboratory, "sweep", refuse)


@pytest.mark.usefixtures("ready", "nothing_starts")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--hosts", "1"], "--hosts must be a whole number from 2 to 254, got 1"),
        (["--hosts", "255"], "the addresses of a /24 are 254"),
        (["--rate", "100"], "a rate is a number above 0 and one of kbit, mbit, gbit, such as 100mbit; got '100'"),
        (["--rate", "0mbit"], "a rate is a number above 0"),
        (["--rate", "100mbit,nan"], "got 'nan'"),
        (["--rate", "900gbit"], "900gbit is faster than any wire of this laboratory (100 Gbit/s); 'none' leaves it"),
        (["--rate", "none,none"], "the rates must differ from each other"),
        (["--rate", "1gbit,none", "--up", "1mbit,2mbit,3mbit"], "--up takes 1 rate or one for each of the 2 of --rate"),
        (["--rate", "1kbit"], "at 1 kbit/s one dense step of digits (220 kB from each host) takes 29 min 20 s, longer"),
        (["--rate", "1kbit"], "take at least 5.86859 kbit/s, or a longer --timeout"),
        (["--up", "1kbit"], "take at least"),
        (["--steps", "0"], "--steps must be a whole number from 1 to 1,000,000, got 0"),
        (["--rounds", "0"], "--rounds must be"),
        (["--batch", "0"], "--batch must be"),
        (["--replay", "-1"], "--replay takes milliseconds from 0 to 1,000,000, got -1"),
        (["--timeout", "nan"], "--timeout takes seconds from 1 to 86,400, got nan"),
        (["--task", "digit"], "unknown task 'digit'"),
        (["--methods", "powersgd0"], "torch's own are dense, fp16, powersgd"),
        (["--methods", "ef21(topk(2))"], "\n  ef21(topk(2))\n       ^"),
        (["--methods", "vgc(1.0)", "--replay", "5"], "vgc(1.0) needs second moments, which --replay does not compute"),
        (["--methods", "vgc(1.0)", "--batch", "1"], "batch"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "--hosts", "2", "--task", "digits", *words]) == 2
    said = capsys.readouterr()
    assert problem in said.err
    assert "Traceback" not in said.err
    assert not list(Path().glob("runs/*"))


@pytest.mark.usefixtures("ready")
def test_without_root_or_programs_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check_machine(setting())
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else name)
    with pytest.raises(BackendError, match=r"the program tc, of iproute2; run\n  apt install iproute2"):
        check_machine(setting())
    check_machine(setting(cables=cables("none")))  # nothing to shape
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BackendError, match="the program ip and tc"):
        check_machine(setting())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"root alone may; this is user 1000\. Run it as root: sudo") as caught:
        check_machine(setting())
    assert "without root, --emulated joins plain processes" in str(caught.value)
    check_machine(setting(emulated=True))


def test_more_hosts_than_memory_allows_are_refused_with_the_number_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("digits")
    numel = sum(parameter.numel() for parameter in task.model(0).parameters())
    asked = setting(hosts=8)
    monkeypatch.setattr(requirements, "memory_available", lambda: memory_of(5, len(asked.methods), numel))
    with pytest.raises(ConfigError, match="take at most 5 hosts, or name fewer methods"):
        check_fit(asked, task)
    assert check_fit(setting(hosts=5), task) == numel
    assert memory_of(2, 3, 0) == 2 * memory_of(1, 9, 0)


# ---------------------------------------------------------------------------------------------- what is asked, in words


def test_methods_have_one_spelling_and_baselines_come_first() -> None:
    assert lab_methods("memsgd( topk(0.010) ); powersgd; dense; powersgd2", "text") == (*BASELINES, RULE, "powersgd2")
    assert lab_methods(None, "text")[4] == "memadam(topk(0.01, values=power4))"
    assert [lab_method(text) for text in (" alone ", "powersgd", "fp16")] == ["alone", "powersgd1", "fp16"]
    assert lab_method(f" {RULE}@ server") == f"{RULE} @ server"
    assert lab_method(f"{RULE} @ gather") == RULE
    for text, problem in (("fp16 @ server", "torch's own"), (f"{RULE} @ moon", "there is no exchange 'moon'")):
        with pytest.raises(ThinwireError, match=problem):
            lab_method(text)


def test_a_rule_that_cannot_travel_so_is_refused_before_any_host_starts() -> None:
    asked = setting(methods=lab_methods("ef21(topk(0.01)) @ server", "digits"))
    with pytest.raises(ThinwireError, match="not defined for two hops"):
        check_fit(asked, load_task("digits"))


def test_rates_up_and_down_may_differ() -> None:
    assert cables("1gbit, none", down="10mbit") == (Cable(1e9, 1e7), Cable(None, 1e7))
    assert cables("none", up="1mbit")[0].slowest == 1e6
    assert cables("none")[0].slowest is None
    assert turns(setting(cables=cables("1gbit,none"), rounds=3)) == 5 * (1 + 2 * 3)


def test_a_setting_reaches_the_hosts_as_it_is() -> None:
    asked = setting(cables=cables("1gbit,none", up="2mbit"), replay=2.5)
    assert LabSetting.of_plain(json.loads(json.dumps(asked.plain()))) == asked
    assert asked.config("powersgd4").method == "dense"
    assert asked.config(RULE).batch == 32


def test_a_replayed_model_gives_the_gradients_of_its_first_batch() -> None:
    task = load_task("digits")
    replayed = Replayed(task, batch=4, rank=1, hosts=2, milliseconds=0.0)
    model = task.model(0)
    task.loss(model, task.batch(0, 0, 1, 2, 4)).backward()  # type: ignore[no-untyped-call]
    for _ in range(2):
        replayed.model.zero_grad()
        replayed.loss(replayed.model, 0).backward()  # type: ignore[no-untyped-call]
        given = dict(replayed.model.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(given[name].grad, parameter.grad, rtol=0, atol=0)
    assert isinstance(replayed.model, nn.Module)


# ----------------------------------------------------------------------------------------------------------- arithmetic


def test_the_parts_of_a_step_add_up_to_it() -> None:
    one = block((20.0, 22.0))
    ours, dense = one.trial(RULE), one.trial("dense")
    assert one.compute == 10.0
    assert one.rest(ours) == 21.0 - 10.0 - 2.0 - 2.0
    assert one.rest(dense) == 31.0
    assert one.speed(ours) == 41.0 / 21.0
    assert one.rest(one.trial("alone")) == 0.0


def test_a_trial_takes_the_last_host_and_the_mean_of_bytes() -> None:
    def host(seconds: float, sent: int, **parts: float) -> dict[str, float]:
        return {"seconds": seconds, "sent": sent, "carried": sent + 40, **parts}

    rounds = [[host(0.2, 100, encode=0.02, decode=0.0), host(0.4, 300, encode=0.04, decode=0.0)]] * 3
    found = Trial.of(RULE, rounds, steps=2)
    assert found == Trial(RULE, (200.0, 200.0, 200.0), 15.0, 0.0, 100.0, 120.0)
    assert Trial.of("dense", [[host(0.2, 100)]], steps=1).encode_ms is None


def test_it_says_what_pays_and_what_does_not() -> None:
    assert fastest(block((20.0, 22.0))) == (
        f"100 Mbit/s: {RULE} takes 21.0 ms a step, dense fp32 41.0: 1.95 times the speed, and faster in every round. "
        "Beside torch's best hook, powersgd1: 1.17 times the speed, in every round."
    )
    assert "1.04 times the speed, but not in every round" in fastest(block((20.0, 27.0)))
    slow = block((50.0, 52.0), dense=(12.0, 12.5))
    assert fastest(slow) == "100 Mbit/s: dense fp32 is the fastest here (12.2 ms a step); nothing pays."
    listed = f"fp16 (0.40×), powersgd1 (0.50×), {RULE} (0.24×)"
    assert f"Slower than dense fp32 in every round: {listed}." in verdict(slow)
    mixed = fastest(block((20.0, 26.0), dense=(24.0, 25.0)))
    assert mixed.startswith("100 Mbit/s: nothing was faster than dense fp32 in every round: ")
    second = fastest(block((20.0, 26.0), dense=(25.5, 25.0)))
    assert second.startswith("100 Mbit/s: powersgd1 takes 24.5 ms a step, dense fp32 25.2"), "the surer one"


def test_few_rounds_settle_nothing() -> None:
    few = block((5.0, 5.0))
    few = replace(few, trials=tuple(replace(one, ms=one.ms[:3]) for one in few.trials))
    assert fastest(few).endswith("dense fp32 40.0, but 3 rounds cannot settle it (--rounds 5 can).")
    assert len(verdict(few)) == 1


def test_a_replay_is_called_one() -> None:
    section, parts = sections([block((20.0, 22.0), replay=30.0)])
    assert section.facts[1] == parts.facts[1]
    assert "computing REPLAYED: every host sleeps 30 ms" in section.facts
    assert section.sentences[0].startswith("Computing was replayed")


def test_emulated_links_are_called_so_and_carry_nothing_that_is_counted(tmp_path: Path) -> None:
    real = block((20.0, 22.0))
    trials = tuple(replace(one, carried=None) for one in real.trials)
    emulated = replace(real, trials=trials, emulated=True)
    assert LAB_EXPERIMENT.runs(write(tmp_path / "r.jsonl", real, emulated)) == [real, emulated]
    *_, section, parts = sections([real, emulated])
    for one in (section, parts):
        assert "links EMULATED: no packets, no protocol headers; bytes carried unknown" in one.facts
    assert [row[-2:] for row in parts.table[1:]] == [["–", "–"]] * 5
    assert any(sentence.startswith("Links were emulated: no interface") for sentence in parts.sentences)
    assert "EMULATED" not in " ".join(sections([real])[0].facts)
    answers = [[{"seconds": 0.2, "sent": 100, "carried": None}]]
    assert Trial.of("dense", answers, steps=1) == Trial("dense", (200.0,), None, None, 100.0, None)


# --------------------------------------------------------------------------------------------------- record and page


def write(path: Path, *blocks: Block) -> Path:
    head = {"kind": "lab", "format": 1, "provenance": {"experiment": "lab", "time": "then"}}
    path.write_text("\n".join(json.dumps(line) for line in (head, *({"kind": "run", **b.plain()} for b in blocks))))
    return path


def test_a_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    blocks = [block((20.0, 22.0)), block((30.0, 31.0), cable=Cable(None, 1e7), replay=5.0)]
    assert LAB_EXPERIMENT.runs(write(tmp_path / "r.jsonl", *blocks)) == blocks
    alone, *others = blocks[0].trials
    for damaged in (others, [replace(alone, ms=alone.ms[1:]), *others], [replace(alone, ms=())]):
        bad = replace(blocks[0], trials=tuple(damaged))
        with pytest.raises(RecordError, match="not a run of the experiment 'lab'"):
            LAB_EXPERIMENT.runs(write(tmp_path / "bad.jsonl", bad))


def test_report_draws_time_against_rate(tmp_path: Path) -> None:
    rates = (Cable(1e8, 1e8), Cable(1e9, 2e9), Cable(None, None))
    record = write(tmp_path / "r.jsonl", *(block((20.0, 22.0), cable=cable) for cable in rates))
    assert main(["report", str(record), "--out", str(tmp_path / "p.html")]) == 0
    text = html.unescape((tmp_path / "p.html").read_text())
    for title in ("4 hosts · text", "4 hosts · text · 1 Gbit/s up, 2 Gbit/s down", "4 hosts · text · unshaped"):
        assert f"<h1>{title}</h1>" in text or title in text
    overview = sections([block((20.0, 22.0), cable=cable) for cable in rates])[0]
    (chart,) = overview.charts
    assert [list(series.x) for series in chart.series] == [[1e8, 1e9]] * 5
    assert overview.table[-1] == [RULE, "21.0", "21.0", "21.0"]


# ------------------------------------------------------------------------------------------------- whose namespaces


def test_only_a_laboratory_whose_process_is_gone_is_swept() -> None:
    table, mine, gone = os.stat("/proc/self/ns/pid").st_ino, os.getpid(), 2**22 + 1
    left = [f"twlab-{table}-{gone}-0-{end}" for end in ("hub", "0", "17", "probe")]
    kept = [
        f"twlab-{table}-{mine}-0-hub",
        f"twlab-{table + 1}-{gone}-0-hub",
        f"twlab-{table}-{gone}-0-mine",
        f"my-twlab-{table}-{gone}-0-hub",
        f"tw{gone}-hub",
        "blue",
    ]
    assert orphans([*left, *kept]) == left


def test_a_name_in_use_is_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deleted: list[str] = []
    monkeypatch.setattr(namespaces, "FOLDER", tmp_path)
    monkeypatch.setattr(namespaces, "_own_name", lambda: "twlab-1-2-3")
    monkeypatch.setattr(namespaces, "_delete", deleted.extend)
    (tmp_path / "twlab-1-2-3-1").touch()
    with pytest.raises(ConfigError, match="twlab-1-2-3-1 exists already, and this process did not make it"):
        namespaces.network(2).__enter__()
    assert not deleted


# ---------------------------------------------------------------------------------------------------- what went wrong


def test_the_cause_is_told_and_not_what_followed() -> None:
    hosts = Hosts(setting(hosts=3), Namespaces("n", 3))

    def told(kind: str, when: float) -> dict[str, Any]:
        return {"error": {"type": kind, "message": "why", "traceback": "where"}, "time": when}

    error = hosts._trouble({0: told("PeerLost", 1.0), 1: told("SpecError", 2.0), 2: told("RuntimeError", 0.0)})
    assert type(error).__name__ == "SpecError"
    assert str(error) == "host 1: why"
    silent = hosts._trouble({0: told("RuntimeError", 1.0), 1: told("PeerLost", 0.5)})
    assert isinstance(silent, ThinwireError)
    assert "No word came from host 2: stopped, or cut off?" in str(silent)


# ----------------------------------------------------------------------------------------------- races and echoes


def race(**curves: list[tuple[int, float]]) -> Race:
    usual = {"dense": [(10, 3.0), (20, 2.0)], "fp16": [(10, 3.0), (20, 2.01)], "powersgd1": [(10, 3.0), (20, 2.5)]}
    ours = {RULE: [(10, 2.02), (20, 1.9)]}
    every = {method: tuple(curve) for method, curve in {**usual, **ours, **curves}.items()}
    return Race(20, "loss", higher_is_better=False, curves=every)


def test_a_race_is_to_within_a_hundredth_of_where_dense_ends() -> None:
    run = race()
    assert run.goal == pytest.approx(2.02)
    reached = {method: run.steps_to_goal(method) for method in run.curves}
    assert reached == {"dense": 20, "fp16": 20, "powersgd1": None, RULE: 10}
    assert run.steps_to_goal("alone") is None
    upwards = Race(2, "accuracy", higher_is_better=True, curves={"dense": [(1, 0.2), (2, 0.8)], RULE: [(1, 0.793)]})
    assert upwards.steps_to_goal(RULE) == 1


def test_a_race_is_steps_times_what_a_step_takes() -> None:
    raced = replace(block((4.0, 4.0)), race=race())
    assert raced.seconds_to_goal(raced.trial(RULE)) == pytest.approx(10 * 4e-3)
    assert raced.seconds_to_goal(raced.trial("powersgd1")) is None
    told = next(section for section in sections([raced]) if "dense's figure" in section.title)
    assert [row[-1] for row in told.table[1:]] == ["1.00×", "1.32×", "–", "20.5×"]
    assert RULE in told.sentences[0]
    assert Block.of_plain(json.loads(json.dumps(raced.plain()))) == raced


def test_every_method_that_exchanges_is_looked_at_on_the_way() -> None:
    assert [
        method
        for method in ("alone", "dense", "fp16", "powersgd1", "powersgd4", RULE, f"{RULE} @ server")
        if races(method)
    ] == [
        "dense",
        "fp16",
        "powersgd1",
        RULE,
    ]


def test_an_echo_sends_the_message_that_was_made_once() -> None:
    made = setting(methods=lab_methods(RULE, "digits", powersgd=False), replay=0.0, codec=0.0)
    echoes: dict[int, Echo] = {}

    def host(end: LoopbackEnd) -> None:
        echoes[end.rank] = Echo(RULE, made, load_task("digits"), end)
        echoes[end.rank].step()

    threads = [threading.Thread(target=host, args=(end,)) for end in Loopback(2).ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [echo.done for echo in echoes.values()] == [1, 1]
    assert echoes[0].sent() == echoes[1].sent() > 4 * 0.01 * echoes[0].numel


def test_a_message_that_is_sent_again_is_one_of_a_settled_rule() -> None:
    parameters = {"x": torch.zeros(64, 64)}
    few = message_of("memadam(topk(0.01), refresh=16)", parameters)
    assert message_of("memsgd(topk(0.01))", parameters).numel() == few.numel()  # no second moments beside


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"codec": 1.0}, "needs --replay"),
        ({"codec": -1.0, "replay": 1.0}, "--codec takes milliseconds"),
        ({"every": 4}, "--every goes with --codec"),
        ({"every": 0}, "--every must be a whole number"),
        ({"train": -1}, "--train must be a whole number"),
        ({"codec": 1.0, "replay": 1.0, "methods": lab_methods(None, "digits")}, "PowerSGD"),
    ],
)
def test_what_cannot_be_raced_or_replayed_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        setting(**given)


def test_utilisation_is_computing_over_the_step() -> None:
    replayed = block((40.0, 40.0), replay=30.0, codec=1.0, every=2)
    assert replayed.utilisation(replayed.trial(RULE)) == pytest.approx(1.5)  # 60 of 40 ms: a made-up figure
    (told,) = sections([replayed])
    assert any("REPLAYED" in fact for fact in told.facts)
    assert any("every 2 steps" in fact for fact in told.facts)
