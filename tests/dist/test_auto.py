"""`auto` with real ranks: forced choices leave nothing out, and real ones never differ between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.dist.training import batch, differences, network
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.engines.auto import Mode, Report
from thinwire.engines.auto.modes import Talk
from thinwire.errors import AttachError, NonFiniteGradient, StateError, WireError
from thinwire.exchange import Group, Link, allreduce_bytes, emulated
from thinwire.lab.block import Block
from thinwire.lab.laboratory import measure
from thinwire.lab.sections import verdict
from thinwire.lab.setting import LabSetting, cables
from thinwire.training import train as launch
from thinwire.training.config import RunConfig

pytestmark = pytest.mark.dist

COMPRESSED, HALF, DENSE = Mode.COMPRESSED, Mode.HALF, Mode.DENSE
MEMORY = "memsgd(topk(0.1))"
BUCKETS: dict[str, Any] = {"bucket_cap_mb": 0.001}


@dataclass
class Forced:
    """A decider that follows a schedule: (step, first parameter of the bucket) -> mode."""

    schedule: Any
    step: int = 0
    chosen: dict[str, Mode] = field(default_factory=dict)

    def mode(self, names: Iterable[str]) -> Mode:
        names = list(names)
        mode = self.schedule if isinstance(self.schedule, Mode) else self.schedule(self.step, names[0])
        self.chosen |= dict.fromkeys(names, mode)
        return mode

    def modes(self) -> Mapping[str, Mode]:
        return self.chosen

    def resume(self, modes: Mapping[str, Mode]) -> None:
        self.chosen = dict(modes)

    def after(self, report: Report) -> Talk:
        self.step += 1
        yield from ()

    def words(self) -> list[str]:
        return ["forced"]


def at_random(step: int, name: str) -> Mode:
    """The same on every rank."""
    return list(Mode)[
        torch.randint(3, (), generator=torch.Generator().manual_seed(97 * step + len(name) * ord(name[0]))).item()
    ]


def by_turns(step: int, name: str) -> Mode:
    """Every way from one to another, all buckets alike."""
    return (COMPRESSED, COMPRESSED, DENSE, HALF, COMPRESSED, HALF, DENSE)[step % 7]


def attached(
    ddp: DistributedDataParallel, optimizer: Any, schedule: Any, rule: str = MEMORY, **options: Any
) -> thinwire.Handle:
    handle = thinwire.attach(ddp, f"auto({rule})", optimizer, **options)
    assert handle.auto is not None
    handle.auto.decider = Forced(schedule)
    return handle


def train(
    rank: int, schedule: Any, *, rule: str = MEMORY, steps: int = 10, hook: Any = None, **ddp_options: Any
) -> dict[str, Tensor]:
    """By forced choices; `schedule` None: by torch alone, with a hook of its own or none."""
    model = network()
    ddp = DistributedDataParallel(model, **(ddp_options or BUCKETS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    elif schedule is not None and isinstance(schedule, str):
        thinwire.attach(ddp, schedule, optimizer)
    elif schedule is not None:
        attached(ddp, optimizer, schedule, rule)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(step, rank)
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# ---------------------------------------------------------------------------------------------- what equals what


def forced(rank: int, size: int) -> dict[str, bool]:
    adam = "memadam(topk(0.1))"
    pairs = {
        "dense is DDP": (train(rank, DENSE), train(rank, None)),
        "fp16 is torch's hook": (train(rank, HALF), train(rank, None, hook=default_hooks.fp16_compress_hook)),
        "compressed is the rule": (train(rank, COMPRESSED), train(rank, MEMORY)),
        "dense memadam": (train(rank, DENSE, rule=adam), train(rank, "memadam(identity())")),
        "compressed memadam": (train(rank, COMPRESSED, rule=adam), train(rank, adam)),
        "dense with unused parameters": (
            train(rank, DENSE, find_unused_parameters=True), train(rank, None, find_unused_parameters=True)
        ),
        "a quantiser": (train(rank, COMPRESSED, rule="plain(qsgd(15))"), train(rank, "plain(qsgd(15))")),
    }  # fmt: skip
    return {name: not list(differences(*pair)) for name, pair in pairs.items()}


def test_forced_choices_are_what_they_are_named_for_bit_for_bit(tmp_path: Path) -> None:
    for answers in run_world(2, forced, folder=tmp_path):
        assert answers == dict.fromkeys(answers, True)


class Given(nn.Module):
    """A model whose gradients are given."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(size)) for name, size in (("a", 90), ("b", 300), ("c", 41))}
        )

    def forward(self, gradients: dict[str, Tensor]) -> Tensor:
        return sum((gradients[name] * part).sum() for name, part in self.parts.items() if name in gradients)  # type: ignore[return-value]


def eighths(step: int, rank: int, unused: bool) -> dict[str, Tensor]:
    """Small multiples of 1/8: of some dozens of them every sum is exact, in 16 bits too."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    sizes = {"a": 90, "b": 300, "c": 41}
    if unused and step % 3 == 1:
        del sizes["b"]
    return {name: torch.randint(-8, 9, (size,), generator=generator) / 8 for name, size in sizes.items()}


def sums(rank: int, size: int, schedule_name: str) -> dict[str, Any]:
    """What was handed over, in units of updates; what is kept; and what this rank gave."""
    schedule = {"at random": at_random, "by turns": by_turns}[schedule_name]
    answers = {}
    for unused in (False, True):
        model = Given()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0004, find_unused_parameters=unused)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        handle = attached(ddp, optimizer, schedule)
        given = {name: torch.zeros_like(p) for name, p in model.parts.items()}
        for step in range(24):
            rate = optimizer.param_groups[0]["lr"] = (1.0, 0.5, 2.0)[step // 8]
            optimizer.zero_grad()
            gradients = eighths(step, rank, unused)
            ddp(gradients).backward()
            optimizer.step()
            for name, gradient in gradients.items():
                given[name] += rate * gradient
        slots, rate = handle.state_dict()["slots"], dict(handle.channel.step_sizes)
        kept = {name: rate.get(f"parts.{name}", 1.0) * slots[f"error/rank{rank}/parts.{name}"] for name in given}
        moved = {name: -p.detach() for name, p in model.parts.items()}
        state = handle.auto.state()  # type: ignore[union-attr]
        empty = all(laden or not kept[name.removeprefix("parts.")].any() for name, _, laden in state)
        answers[str(unused)] = (given, kept, moved, empty)
    return answers


@pytest.mark.parametrize("schedule", ["at random", "by turns"])
def test_nothing_is_lost_on_the_way_from_one_choice_to_another(schedule: str, tmp_path: Path) -> None:
    """Sum of what was given = sum of what was handed over + what is kept, on average over ranks and to the last bit."""
    ranks = run_world(2, sums, schedule, folder=tmp_path)
    for unused in ("False", "True"):
        assert all(rank[unused][3] for rank in ranks)
        for name in ("a", "b", "c"):
            given = (ranks[0][unused][0][name] + ranks[1][unused][0][name]) / 2
            kept = (ranks[0][unused][1][name] + ranks[1][unused][1][name]) / 2
            for rank in ranks:
                assert torch.equal(given, rank[unused][2][name] + kept), (name, unused)


# ------------------------------------------------------------------------------------------------------- what is odd


def poisoned(rank: int, size: int) -> list[tuple[bool, bool, float]]:
    """A NaN on one rank in each mode; the run goes on as if the step had never been."""
    answers = []
    for rule in (MEMORY, "memadam(topk(0.1))"):
        for mode in Mode:
            ends, raised, skipped = [], False, 0.0
            for poison in (True, False):
                model = network()
                ddp = DistributedDataParallel(model, **BUCKETS)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                handle = attached(ddp, optimizer, lambda step, name, mode=mode: mode if step > 1 else COMPRESSED, rule)
                for step in range(7):
                    if step == 4 and not poison:
                        continue
                    optimizer.zero_grad()
                    inputs, targets = batch(step, rank)
                    loss = nn.functional.cross_entropy(ddp(inputs), targets)
                    if step == 4 and rank == 1:
                        loss = loss + model[2].bias[0] * float("nan")  # type: ignore[index, union-attr, operator]
                    try:
                        loss.backward()
                    except NonFiniteGradient as error:
                        raised, skipped = error.parameter == "2.bias", handle.ledger.summary()["skipped_steps"]
                        continue
                    optimizer.step()
                ends.append({name: p.detach() for name, p in model.named_parameters()})
            answers.append((raised, not list(differences(*ends)), skipped))
    return answers


def test_a_nan_is_refused_on_every_rank_in_every_mode(tmp_path: Path) -> None:
    for answers in run_world(2, poisoned, folder=tmp_path):
        assert answers == [(True, True, 1)] * 6


def overflowing(rank: int, size: int) -> list[tuple[str, bool]]:
    """A memory of one rank's that holds infinity, as if it had outgrown its type: in every mode it is found by all."""
    found = []
    for mode in Mode:
        model = network()
        ddp = DistributedDataParallel(model, **BUCKETS)
        handle = attached(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mode, "memadam(topk(0.1))")
        if rank == 1:
            handle.channel.worker.write("2.weight", "momentum", torch.tensor(float("inf")))
        with pytest.raises(NonFiniteGradient) as caught:
            ddp(batch(0, rank)[0]).sum().backward()
        found.append((caught.value.parameter, handle.channel.step == 0))
    return found


def test_a_memory_that_overflows_on_one_rank_is_found_by_all_in_every_mode(tmp_path: Path) -> None:
    for found in run_world(2, overflowing, folder=tmp_path):
        assert found == [("2.weight", True)] * 3


def oddities(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    model = Given()
    ddp = DistributedDataParallel(model)
    handle = attached(ddp, torch.optim.SGD(model.parameters(), lr=1.0), HALF)
    huge = {name: torch.full((size,), 3e5) for name, size in (("a", 90), ("b", 300), ("c", 41))}
    ddp(huge).backward()
    found["beyond float16"] = all(bool((part.grad == 3e5).all()) for part in model.parts.values())
    numel = 431
    sent = allreduce_bytes(2 * numel, size) + allreduce_bytes(4 * numel, size)
    found["both are booked"] = abs(handle.ledger.last_step()["sent_bytes"] - sent) <= 4

    for dtype in (torch.bfloat16, torch.float64):
        model = network().to(dtype)
        ddp = DistributedDataParallel(model, **BUCKETS)
        plain = DistributedDataParallel(network().to(dtype), **BUCKETS)
        attached(ddp, torch.optim.SGD(model.parameters(), lr=0.1), HALF)
        inputs = batch(0, rank)[0].to(dtype)
        for each in (ddp, plain):
            each(inputs).float().square().sum().backward()
        pairs = zip(ddp.parameters(), plain.parameters(), strict=True)
        found[f"{dtype} has no smaller form"] = all(torch.equal(a.grad, b.grad) for a, b in pairs)

    model = network()
    ddp = DistributedDataParallel(model, **BUCKETS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = attached(ddp, optimizer, by_turns)
    with ddp.join():
        for step in range(6 + 2 * rank):
            optimizer.zero_grad()
            inputs, targets = batch(step, rank)
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
    found["join"] = handle.channel.step
    found["flushed"] = handle.flush() >= 0 and not any(row[2] for row in handle.auto.state())  # type: ignore[union-attr]
    return found


def test_what_is_odd_is_served(tmp_path: Path) -> None:
    for found in run_world(2, oddities, folder=tmp_path):
        assert found.pop("join") == 8
        assert found == dict.fromkeys(found, True)


# ------------------------------------------------------------------------------------------------------- checkpoints


def saving(rank: int, size: int) -> list[bool]:
    """Stop after each of some steps, go on in a fresh process's place with other buckets, and compare."""
    same = []
    whole = _run(rank, None, 0, 16, BUCKETS)[0]
    for at in (2, 3, 4, 5, 6):
        _, saved = _run(rank, None, 0, at, BUCKETS)
        same.append(not list(differences(whole, _run(rank, saved, at, 16, {"bucket_cap_mb": 0.003})[0])))
    return same


def _run(
    rank: int, saved: Any, start: int, end: int, ddp_options: dict[str, Any], method: str = ""
) -> tuple[dict[str, Tensor], Any]:
    model = network()
    ddp = DistributedDataParallel(model, **ddp_options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = (
        thinwire.attach(ddp, method, optimizer)
        if method
        else attached(ddp, optimizer, lambda step, name: by_turns(step + start, name))
    )
    if saved is not None:
        model.load_state_dict(saved["model"])
        handle.load_state_dict(saved["thinwire"])
    for step in range(start, end):
        optimizer.zero_grad()
        inputs, targets = batch(step, rank)
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return parameters, {"model": parameters, "thinwire": handle.state_dict()}


def test_a_run_resumes_bit_for_bit_in_every_mode(tmp_path: Path) -> None:
    for same in run_world(2, saving, folder=tmp_path):
        assert same == [True] * 5


def exchanged_states(rank: int, size: int) -> list[str]:
    """From a run under the rule itself into one under auto, and back; and a damaged choice."""
    _, saved = _run(rank, None, 0, 3, BUCKETS, MEMORY)
    _run(rank, saved, 3, 6, BUCKETS)
    _, auto = _run(rank, None, 0, 3, BUCKETS)
    _run(rank, auto, 3, 6, BUCKETS, MEMORY)
    refused = []
    for damage in ([["0.weight", "dense", True]], 7, [[name, "fast", True] for name, *_ in auto["thinwire"]["auto"]]):
        broken = {**auto, "thinwire": {**auto["thinwire"], "auto": damage if rank else auto["thinwire"]["auto"]}}
        with pytest.raises(StateError) as caught:
            _run(rank, broken, 3, 6, BUCKETS)
        refused.append(str(caught.value))
    return refused


def test_states_are_those_of_the_rule_and_damaged_choices_are_refused(tmp_path: Path) -> None:
    for refused in run_world(2, exchanged_states, folder=tmp_path):
        assert all("auto" in words for words in refused)


# -------------------------------------------------------------------------------------------------------- real choices


def clocks(rank: int, size: int) -> tuple[list[str], str]:
    """Ranks whose clocks run apart, over a link whose rate changes: what each chose, step by step."""
    model = network()
    ddp = DistributedDataParallel(model, **BUCKETS)
    link = Link(1e6)
    handle = thinwire.attach(
        ddp, f"auto({MEMORY})", torch.optim.SGD(model.parameters(), lr=0.1), exchange=emulated(Group(), link)
    )
    auto = handle.auto
    assert auto is not None
    true = auto.laps.clock
    auto.laps.clock = lambda: true() * (1 + 2 * rank) + 1e6 * rank
    auto.laps.restart(auto.laps.clock())
    chosen = []
    for step in range(60):
        if step == 30:
            link.shape(None, None)
        inputs, targets = batch(step, rank)
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        modes = auto.decider.modes()
        chosen.append(" ".join(mode.value for mode in modes.values()))
    return chosen, handle.explain()


def test_ranks_with_different_clocks_never_decide_differently(tmp_path: Path) -> None:
    answers = run_world(3, clocks, folder=tmp_path)
    assert answers == answers[:1] * 3
    assert answers[0][1].startswith(f"auto({MEMORY}): ")


def drifting(rank: int, size: int) -> str:
    """A learning rate that one rank alone changes, while everything travels bare."""
    model = network()
    ddp = DistributedDataParallel(model, **BUCKETS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = thinwire.attach(ddp, f"auto({MEMORY})", optimizer)
    handle.auto.decider.resume(dict.fromkeys(dict(model.named_parameters()), DENSE))  # type: ignore[union-attr]
    for step in range(20):
        if step == 4 and rank == 1:
            optimizer.param_groups[0]["lr"] = 0.2
        try:
            ddp(batch(step, rank)[0]).sum().backward()
        except WireError as error:
            return f"{step} {error}"
    return "never"


def test_ranks_that_drift_apart_are_found_without_a_message(tmp_path: Path) -> None:
    found = run_world(2, drifting, folder=tmp_path)
    assert found == found[:1] * 2
    assert "drifted apart under auto" in found[0]


def refusals(rank: int, size: int) -> dict[str, str]:
    found = {}
    ddp = DistributedDataParallel(network())
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1)

    class Bare:
        """An exchange without sums."""

        def __init__(self) -> None:
            self.inner = Group()
            self.rank, self.size = self.inner.rank, self.inner.size
            self.begin, self.gather, self.everyone = self.inner.begin, self.inner.gather, self.inner.everyone

    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "no optimizer": ("auto", None, {}),
        "another rule": ("auto" if rank else f"auto({MEMORY})", sgd, {}),
        "an exchange without sums": (f"auto({MEMORY})", sgd, {"exchange": Bare()}),
    }
    for name, (method, optimizer, options) in cases.items():
        with pytest.raises(AttachError) as caught:
            thinwire.attach(ddp, method, optimizer, **options)
        found[name] = str(caught.value)
    handle = thinwire.attach(ddp, "auto", sgd)
    found["rule"] = str(handle.rule)
    return found


def test_what_cannot_be_is_refused_on_every_rank(tmp_path: Path) -> None:
    for found in run_world(2, refusals, folder=tmp_path):
        assert "pass it, attach(ddp, 'auto', optimizer)" in found["no optimizer"]
        assert "auto(memsgd(topk(0.01, values=power4)))" in found["another rule"]
        assert "Reduces" in found["an exchange without sums"]
        assert found["rule"] == "memsgd(topk(0.01, values=power4))"


def alone(rank: int, size: int) -> str:
    ddp = DistributedDataParallel(network())
    handle = thinwire.attach(ddp, "auto", torch.optim.SGD(ddp.parameters(), lr=0.1))
    ddp(batch(0, 0)[0]).sum().backward()
    assert dist.get_world_size() == 1
    return handle.explain()


def test_one_rank_has_nothing_to_choose(tmp_path: Path) -> None:
    assert "one rank exchanges nothing" in run_world(1, alone, folder=tmp_path)[0]


@pytest.mark.usefixtures("forked_workers")
def test_a_launch_and_a_laboratory_take_it_and_keep_what_it_explains(tmp_path: Path) -> None:
    config = RunConfig.of("digits", "auto", engine="ddp", workers=2, steps=4, evaluations=1, rate=5e6)
    (run,) = launch([config], tmp_path / "r.jsonl")
    assert run.end["explained"].startswith("auto(memsgd(topk(0.01, values=power4))): SGD without momentum")
    methods, blocks = ("alone", "dense", "auto"), list[Block]()
    asked = LabSetting(
        hosts=2, cables=cables("5mbit"), task="digits", methods=methods, steps=2, rounds=1, batch=4, replay=1.0,
        settle=12, emulated=True,
    )  # fmt: skip
    measure(asked, blocks.append, lambda _: None)
    (block,) = blocks
    assert Block.of_plain(block.plain()) == block
    assert block.trial("dense").explained is None
    assert "compressed" in (block.trial("auto").explained or "")
    assert any(sentence.startswith("auto, at the end: ") for sentence in verdict(block))
