"""A step that all ranks take or none: ranks that differ, damage on one link, and states asked for in its middle."""

from __future__ import annotations

import copy
import io
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.training import Run, batch, differences, network
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import thinwire
from thinwire.errors import AttachError, NonFiniteGradient, OptimizerWarning, StateError, ThinwireError, WireError
from thinwire.exchange import Group, Pending

pytestmark = pytest.mark.dist

SMALL_BUCKETS = {"bucket_cap_mb": 0.001}


def attached(
    rule: str, *, lr: float = 0.1, model: nn.Module | None = None, **options: Any
) -> tuple[nn.Module, thinwire.Handle, torch.optim.Optimizer]:
    ddp = DistributedDataParallel(model or network(), **SMALL_BUCKETS, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    return ddp, thinwire.attach(ddp, rule, optimizer), optimizer


def step(ddp: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int, scale: float = 1.0) -> None:
    x, y = batch(number, rank)
    optimizer.zero_grad()
    (nn.functional.cross_entropy(ddp(x), y) * scale).backward()
    optimizer.step()


def told(act: Callable[[], object], kind: type[ThinwireError]) -> str:
    with pytest.raises(kind) as caught:
        act()
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- states in the middle


def saved_in_the_middle(rank: int, size: int, rule: str) -> list[str]:
    """A signal handler and another thread save all the time; the run is the undisturbed one, and so is every state."""
    run = Run(rule, steps=12)
    states: dict[int, dict[str, Any]] = {}
    quiet = _trained(rank, run, lambda handle: states.setdefault(handle.channel.step, handle.state_dict()))
    seen: list[dict[str, Any]] = []
    with _interrupted(seen) as watch:
        disturbed = _trained(rank, run, watch)
    problems = [f"parameter {name}" for name in differences(quiet, disturbed)]
    for state in seen:
        expected = states[state["step"]]["slots"]
        torn = [key for key, tensor in state["slots"].items() if not torch.equal(tensor, expected[key])]
        problems += [f"{key} at {state['step']}" for key in torn]
    return problems + ([] if len(seen) > 20 else [f"only {len(seen)} states were seen"])


def _trained(rank: int, run: Run, watch: Callable[[thinwire.Handle], object]) -> dict[str, Tensor]:
    model = run.network()
    ddp = DistributedDataParallel(model, **run.ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = thinwire.attach(ddp, run.rule, optimizer)
    for number in range(run.steps):
        watch(handle)
        step(ddp, optimizer, rank, number)
    watch(handle)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@contextmanager
def _interrupted(seen: list[dict[str, Any]]) -> Iterator[Callable[[thinwire.Handle], None]]:
    """Save on a timer's signal and in a thread, as fast as both can."""
    handles: list[thinwire.Handle] = []
    over = threading.Event()

    def save(*_: object) -> None:
        if handles:
            seen.append(handles[-1].state_dict())

    def keep_saving() -> None:
        while not over.wait(0.002):
            save()

    thread = threading.Thread(target=keep_saving)
    old = signal.signal(signal.SIGALRM, save)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    thread.start()
    try:
        yield handles.append
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        over.set()
        thread.join()


@pytest.mark.parametrize("rule", ["memsgd(topk(0.1))", "ef21sgdm(topk(0.1))"])
def test_a_state_may_be_saved_at_any_moment_and_is_that_of_the_last_finished_step(rule: str, tmp_path: Path) -> None:
    assert run_world(2, saved_in_the_middle, rule, folder=tmp_path) == [[], []]


# ---------------------------------------------------------------------------------------------------- one after another


def loaded_in_the_middle(rank: int, size: int) -> str:
    ddp, handle, optimizer = attached("ef21(topk(0.1))")
    state, found = handle.state_dict(), []
    send = handle.channel.send

    def interrupted(*args: Any, **options: Any) -> Any:
        sent = send(*args, **options)
        found.append(told(lambda: handle.load_state_dict(state), StateError))
        return sent

    handle.channel.send = interrupted  # type: ignore[method-assign]
    step(ddp, optimizer, rank, 0)
    return found[0]


def rates_differ(rank: int, size: int) -> tuple[str, str, bool]:
    """By one digit on one rank, from the second step on; then by nothing again."""
    ddp, handle, optimizer = attached("ef21(topk(0.1))")
    step(ddp, optimizer, rank, 0)
    before = handle.state_dict()["slots"]
    optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * rank
    first = told(lambda: step(ddp, optimizer, rank, 1), WireError)
    optimizer.param_groups[0]["lr"] = 0.0 if rank else 0.1
    second = told(lambda: step(ddp, optimizer, rank, 1), WireError)
    same = all(torch.equal(tensor, before[key]) for key, tensor in handle.state_dict()["slots"].items())
    optimizer.param_groups[0]["lr"] = 0.1
    step(ddp, optimizer, rank, 2)
    return first, second, same and handle.channel.step == 2


def a_rate_of_zero_on_one_rank(rank: int, size: int) -> str:
    """Messages would differ in size, and gloo would abort the process."""
    ddp, _, optimizer = attached("memsgd(topk(0.1))")
    step(ddp, optimizer, rank, 0)
    optimizer.param_groups[0]["lr"] = 0.1 * rank
    return told(lambda: step(ddp, optimizer, rank, 1), WireError)


def settings_differ(rank: int, size: int) -> list[str]:
    ddp = DistributedDataParallel(network())
    by_rank = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9 if rank else 0.8)
    parts = list(ddp.parameters())
    groups = torch.optim.SGD([{"params": parts[: 2 + rank]}, {"params": parts[2 + rank :]}], lr=0.1)
    narrow = DistributedDataParallel(network())
    narrow.module.to(torch.bfloat16 if rank else torch.float32)
    return [
        told(lambda: thinwire.attach(ddp, "ef21(topk(0.1))", by_rank), AttachError),
        told(lambda: thinwire.attach(ddp, "ef21(topk(0.1))", groups), AttachError),
        told(lambda: thinwire.attach(narrow, "ef21(topk(0.1))"), AttachError),
    ]


def another_mean(rank: int, size: int) -> str:
    """One rank loads the common mean of another run."""
    ddp, handle, optimizer = attached("ef21(topk(0.1))")
    step(ddp, optimizer, rank, 0)
    state = handle.state_dict()
    if rank:
        state["slots"]["mean/2.weight"] = state["slots"]["mean/2.weight"] + 1
    return told(lambda: handle.load_state_dict(state), StateError)


def another_run(rank: int, size: int) -> str:
    states = []
    for _ in range(2):
        ddp, handle, optimizer = attached("memsgd(topk(0.1))")
        step(ddp, optimizer, rank, 0)
        states.append(handle.state_dict())
    return told(lambda: handle.load_state_dict(states[rank]), StateError)


def a_drifting_mean(rank: int, size: int) -> str:
    """What only one rank's memory chips did is found at the next look, after at most a hundred steps."""
    ddp, handle, optimizer = attached("ef21(topk(0.1))")
    handle.channel.step = 98
    step(ddp, optimizer, rank, 0)
    handle.channel.server.view("2.weight", "mean")[0] += 0.5 * rank
    step(ddp, optimizer, rank, 1)
    return told(lambda: step(ddp, optimizer, rank, 2), WireError)


def a_bit_flipped_on_one_link(rank: int, size: int) -> tuple[list[str], bool]:
    """Only one rank sees the damage; both refuse, and both go on."""
    ddp, handle, optimizer = attached("memsgd(topk(0.1))")
    twin, _, twins = attached("memsgd(topk(0.1))")
    wait, found = Pending.wait, []
    for number in range(6):
        if number in (2, 4):
            if rank == 0:
                Pending.wait = _damaged(wait, swap=number == 4)  # type: ignore[method-assign]
            found.append(told(lambda number=number: step(ddp, optimizer, rank, number), WireError))
            Pending.wait = wait  # type: ignore[method-assign]
        else:
            step(ddp, optimizer, rank, number)
            step(twin, twins, rank, number)
    assert handle.channel.step == 4
    return found, all(torch.equal(a, b) for a, b in zip(ddp.parameters(), twin.parameters(), strict=True))


def _damaged(wait: Callable[..., Any], *, swap: bool) -> Callable[..., Any]:
    def damaged(self: Pending) -> Any:
        messages = [message.clone() for message in wait(self)]
        if swap:  # another rank's message in this one's place: its own checksum is right
            messages[1] = messages[0]
        elif "bucket 1" in self.what:
            messages[1][20] ^= 4
        return messages

    return damaged


def announced(rank: int, size: int) -> str:
    """A rank that announces 600 MB for a small model costs nobody memory."""
    ddp, _, optimizer = attached("memsgd(threshold(0.01))")
    everyone = Group.everyone
    if rank:
        forged = lambda self, numbers, *rest: everyone(self, [600_000_000] if len(numbers) == 1 else numbers, *rest)  # noqa: E731
        Group.everyone = forged  # type: ignore[method-assign]
    words = told(lambda: step(ddp, optimizer, rank, 0), WireError)
    Group.everyone = everyone  # type: ignore[method-assign]
    return words


def overflowing(rank: int, size: int) -> list[tuple[str, bool]]:
    """Huge but finite gradients, again and again: no memory becomes infinite, and the run goes on."""
    found = []
    for rule in ("memsgd(topk(0.1))", "memsgd(randk(0.1))", "ef21(topk(0.1))", "econtrol(topk(0.1))", "memsgd(sign())"):
        ddp, handle, optimizer = attached(rule, lr=1e-30)
        words = ""
        for number in range(12):
            try:
                step(ddp, optimizer, rank, number, scale=1e38 if rank else 1.0)
            except NonFiniteGradient as error:
                words = str(error)
        state = handle.state_dict()["slots"]
        found.append((words, all(bool(tensor.isfinite().all()) for tensor in state.values())))
    return found


def copied(rank: int, size: int) -> list[bool]:
    """Copies are plain DDP models: they train densely, can be saved, averaged and attached anew."""
    ddp, handle, optimizer = attached("memsgd(topk(0.1))")
    step(ddp, optimizer, rank, 0)
    twin, average = copy.deepcopy(ddp), AveragedModel(ddp)
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    answers = []
    for other in (twin, loaded):
        sgd = torch.optim.SGD(other.parameters(), lr=0.1)
        step(other, sgd, rank, 1)
        answers.append(_alike(other, size))
        again = thinwire.attach(other, "ef21(topk(0.1))", sgd)
        step(other, sgd, rank, 2)
        answers.append(again.ledger.steps == 1)
    average.update_parameters(ddp)
    step(ddp, optimizer, rank, 1)
    return [*answers, handle.ledger.steps == 2]


def _alike(ddp: nn.Module, size: int) -> bool:
    import torch.distributed as dist

    flat = torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])
    every = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(every, flat)
    return all(torch.equal(flat, other) for other in every)


def flushed_and_detached(rank: int, size: int) -> list[bool]:
    """x_T - x_0 = - sum of mean updates, once the memories are handed over; then the model is dense and free again."""
    ddp, handle, optimizer = attached("memsgd(topk(0.1))", find_unused_parameters=True)
    hooks = lambda: sum(len(p._post_accumulate_grad_hooks or {}) for p in ddp.parameters())  # noqa: E731
    watched = hooks()
    for number in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        step(ddp, optimizer, rank, number)
    norm = handle.flush()
    empty = all(not tensor.any() for tensor in handle.state_dict()["slots"].values())
    state = handle.detach()
    answers = [norm > 0, empty, handle.flush() == 0.0, watched > 0, hooks() == 0, state["step"] == 5, _alike(ddp, size)]
    step(ddp, optimizer, rank, 9)
    answers += [handle.ledger.steps == 5, _alike(ddp, size)]
    again = thinwire.attach(ddp, "ef21(topk(0.5))", optimizer)
    step(ddp, optimizer, rank, 10)
    return [*answers, again.ledger.steps == 1, _alike(ddp, size)]


def adaptive(rank: int, size: int) -> list[str]:
    ddp = DistributedDataParallel(network())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thinwire.attach(ddp, "memsgd(topk(0.1))", torch.optim.AdamW(ddp.parameters()))
    other = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(other.parameters(), lr=1.0, momentum=0.9)
    handle = thinwire.attach(other, "memsgd(topk(0.1))", optimizer)
    with warnings.catch_warnings(record=True) as later:
        warnings.simplefilter("always")
        for number in range(4):
            optimizer.param_groups[0]["lr"] = 10.0**-number
            step(other, optimizer, rank, number)
    falls = handle.ledger.summary()["rate_fall"]
    kinds = [*caught, *later]
    return [str(w.message) for w in kinds if issubclass(w.category, OptimizerWarning)] + [f"{falls:g}"]


CASES = [
    loaded_in_the_middle,
    rates_differ,
    a_rate_of_zero_on_one_rank,
    settings_differ,
    another_mean,
    another_run,
    a_drifting_mean,
    a_bit_flipped_on_one_link,
    announced,
    overflowing,
    copied,
    flushed_and_detached,
    adaptive,
]


def all_cases(rank: int, size: int) -> dict[str, Any]:
    return {case.__name__: case(rank, size) for case in CASES}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_world(2, all_cases, folder=tmp_path_factory.mktemp("world"))


def test_loading_in_the_middle_of_a_step_is_refused(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert "load_state_dict was called in the middle of step 0" in answer["loaded_in_the_middle"]


def test_ranks_with_different_rates_are_told_the_group_and_both_values(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        first, second, as_before = answer["rates_differ"]
        assert "learning rate of the optimizer's parameter group 0: rank 0 has 0.1, rank 1 has 0.11" in first
        assert "rank 0 has 0.1, rank 1 has 0.0" in second
        assert as_before
        assert "rank 0 has 0.0, rank 1 has 0.1" in answer["a_rate_of_zero_on_one_rank"]


def test_ranks_with_different_settings_cannot_attach(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        momentum, groups, types = answer["settings_differ"]
        assert "momentum of the optimizer's parameter group 0: rank 0 has 0.8, rank 1 has 0.9" in momentum
        assert "parameter group of '2.weight': rank 0 has 1, rank 1 has 0" in groups
        assert "torch.float32" in types
        assert "torch.bfloat16" in types


def test_a_common_state_that_differs_is_found_when_loaded_and_every_so_often(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert "slot 'mean' of parameter '2.weight': rank 0 has checksum" in answer["another_mean"]
        assert "differ in run" in answer["another_run"]
        assert "drifted apart in slot 'mean' of parameter '2.weight'" in answer["a_drifting_mean"]


def test_damage_that_one_rank_sees_is_refused_by_all(answers: list[dict[str, Any]]) -> None:
    (flipped, swapped), same = answers[0]["a_bit_flipped_on_one_link"]
    assert "rank 1: message was damaged on its way" in flipped
    assert "another rank's" in swapped
    (heard, _), theirs = answers[1]["a_bit_flipped_on_one_link"]
    assert "rank 0 could not take the step, so no rank has: rank 1: message was damaged" in heard
    assert same
    assert theirs


def test_an_announced_length_is_bounded_by_the_layout(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert "rank 1 announces a message of 600000000 bytes for bucket 0" in answer["announced"]


def test_no_memory_overflows(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        for words, finite in answer["overflowing"]:
            assert finite
            assert "step" in words


def test_an_attached_model_can_be_copied_saved_and_averaged(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["copied"] == [True] * 5


def test_what_is_left_can_be_flushed_and_the_model_detached(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["flushed_and_detached"] == [True] * 11


def test_optimizers_that_a_memory_does_not_suit_are_warned_of(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        at_attach, at_decay, fall = answer["adaptive"]
        assert "adaptive" in at_attach
        assert "memadam(topk(0.01))" in at_attach
        assert "momentum" in at_decay
        assert fall == "1000"
