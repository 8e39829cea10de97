"""The text of `auto`, what it may choose, and where it is refused before anything starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire
from thinwire import Auto, MemAdam, MemSGD, Plain, Route, TopK
from thinwire.engines.auto import recommended
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError, ConfigError, SpecError
from thinwire.exchange import Group, Link, Loopback, Reduces, emulated
from thinwire.lab.setting import LabSetting, cables, chooses, lab_method
from thinwire.ledger import Ledger, Switch
from thinwire.spec import method_from
from thinwire.training.config import RunConfig, rule_in
from thinwire.updates import NewtonSchulz, UpdateOptimizer

AUTOS = [
    Auto(),
    Auto(MemSGD(TopK(0.01))),
    Auto(MemAdam(TopK(0.01, values="exponent4"))),
    Auto(Plain(thinwire.QSGD(15))),
    Auto(Route({"embed*": Plain(thinwire.QSGD(15)), "*": MemSGD(TopK(0.01))})),
]


@pytest.mark.parametrize("auto", AUTOS, ids=str)
def test_its_text_is_read_back(auto: Auto) -> None:
    assert method_from(str(auto)) == auto
    assert method_from(str(auto).replace("auto", "thinwire.Auto") if auto.rule else "Auto()") == auto
    assert RunConfig.of("digits", str(auto)).method == lab_method(f" {auto} ") == str(auto)
    assert rule_in(str(auto)) == auto.rule
    assert chooses(str(auto))


def test_it_takes_the_place_of_a_rule_nowhere_else() -> None:
    for text in ("auto", "auto(memsgd(topk(0.01)))"):
        with pytest.raises(SpecError, match="only attach, thinwire train and thinwire lab"):
            thinwire.parse(text)
        with pytest.raises(ConfigError, match="--engine ddp"):
            RunConfig.of("digits", text, engine="sim")
        with pytest.raises(ConfigError, match="at every step"):
            RunConfig.of("digits", text, every=10)
    with pytest.raises(SpecError, match="auto"):
        thinwire.parse("memsgd(auto)")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Plain(thinwire.Identity()), "considers dense in any case"),
        (thinwire.EF21(TopK(0.1)), "its dense form is another algorithm"),
        (thinwire.DGC(TopK(0.1)), "its dense form is another algorithm"),
        (Route({"*": thinwire.VGC()}), "its dense form is another algorithm"),
        (Auto(), "not another auto"),
        (7, "expected a rule"),
    ],
    ids=str,
)
def test_what_it_cannot_choose_from_is_refused(rule: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Auto(rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "options", "rule", "words"),
    [
        (torch.optim.SGD, {}, "memsgd(topk(0.01, values=power4))", "without momentum"),
        (torch.optim.SGD, {"momentum": 0.9}, "memsgd(topk(0.01))", "with momentum"),
        (torch.optim.AdamW, {}, "plain(qsgd(15))", "60 times fewer"),
        (torch.optim.Adagrad, {}, "plain(qsgd(15))", "memadam"),
        (torch.optim.ASGD, {}, "plain(qsgd(15))", "ASGD is not known"),
        (UpdateOptimizer, {"update": NewtonSchulz()}, "plain(qsgd(15))", "UpdateOptimizer is not known"),
    ],
)
def test_the_optimizer_as_it_is_names_the_rule(kind: type, options: dict[str, object], rule: str, words: str) -> None:
    model = nn.Linear(3, 3)
    optimizer, named = kind(model.parameters(), lr=0.1, **options), dict(model.named_parameters())
    chosen = recommended(optimizer, StepSizes(named, optimizer), named)
    assert str(chosen.rule) == rule
    assert words in chosen.why


def test_without_an_optimizer_there_is_nothing_to_go_by() -> None:
    with pytest.raises(AttachError, match="name the rule"):
        recommended(None, None, [])


def test_exchanges_say_whether_they_sum() -> None:
    one = Loopback(2).ends[0]
    assert not isinstance(one, Reduces)
    assert not isinstance(emulated(one, Link(1e6)), Reduces)
    assert callable(Group.reduce_)


def test_the_laboratory_lets_it_choose_first() -> None:
    asked = {"hosts": 2, "cables": cables("none"), "task": "digits", "methods": ("alone", "dense", "auto")}
    assert LabSetting(**asked).settle == 80  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--settle"):
        LabSetting(**asked, settle=-1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="auto chooses"):
        LabSetting(**asked, replay=1.0, codec=1.0)  # type: ignore[arg-type]


def test_a_ledger_tells_of_switches_where_there_were_any() -> None:
    ledger = Ledger(2)
    assert "switches" not in ledger.summary()
    ledger.switches.append(Switch(7, "compressed", "dense", "3 ms a step, beside compressed 5"))
    assert ledger.summary()["switches"] == 1
    assert str(ledger.switches[0]) == "step 7: compressed → dense: 3 ms a step, beside compressed 5"
