"""A sharded server in a simulation: nothing is lost over two hops, nothing moves where nothing can, states go on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import thinwire
from thinwire import Channel, Simulation, parse
from thinwire.errors import AttachError, ConfigError, NonFiniteGradient, StateError
from thinwire.exchange import Loopback, Sharded
from thinwire.hub import TO_ALL, TO_OWNER, _digest
from thinwire.ops import Key
from thinwire.outgoing import Given
from thinwire.owners import Owners
from thinwire.payload.letter import Expected

NAMES = {"a": (3, 50), "b": (7,), "c": (333,)}
OWNERS = Owners(4, least=16)
KEEPING = [
    "memsgd(topk(0.1))",
    "memsgd(randk(0.1, shared=True))",
    "memsgd(threshold(0.5))",
    "memsgd(chunktopk(0.1, chunk=20, values=bins2))",
    "memsgd(identity())",
]
SERVED = [
    *KEEPING,
    "dgc(topk(0.1))",
    "memadam(topk(0.1), refresh=2)",
    "plain(randk(0.2))",
    "ef21bc(topk(0.1), topk(0.2))",
]


def model(dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=dtype) for name, shape in NAMES.items()}


def gradients(step: int, workers: int, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    return [
        {
            name: torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(100 * step + rank))
            for name, shape in NAMES.items()
        }
        for rank in range(workers)
    ]


def flat(vectors: dict[str, Tensor], sizes: dict[str, float]) -> Tensor:
    return torch.cat([vectors[name].reshape(-1).double() * sizes[name] for name in NAMES])


def held(simulation: Simulation, sizes: dict[str, float]) -> Tensor:
    """The mean of all memories and what all owners keep, in units of updates."""
    total = {}
    for name, shape in NAMES.items():
        rows = [channel.worker.view(name, "error").double() for channel in simulation.channels]
        total[name] = torch.stack(rows).mean(0)
        for channel in simulation.channels:
            own = None if channel.hub is None else channel.hub.share(name, channel.parameters[name])
            if channel.hub is not None and own is not None:
                total[name][own] += channel.hub.store.view(name, "kept").double()
        assert total[name].numel() == torch.Size(shape).numel()
    return flat(total, sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", KEEPING)
def test_what_was_sent_and_is_kept_is_what_was_given(rule: str, dtype: torch.dtype) -> None:
    """Over both hops, while step sizes move and one of them is zero for a while."""
    simulation = Simulation(model(dtype), rule, 4, exchange=OWNERS)
    given, sent = torch.zeros(490, dtype=torch.float64), torch.zeros(490, dtype=torch.float64)
    sizes = {"a": 0.1, "b": 0.1, "c": 0.2}
    for step in range(24):
        now = {"a": 0.1 / (1 + step // 5), "b": 0.0 if 8 <= step < 12 else 0.3, "c": 0.2}
        theirs = gradients(step, 4, dtype)
        out = simulation.exchange(theirs, step_sizes=now)
        given += torch.stack([flat(own, now) for own in theirs]).mean(0)
        sent += flat(out, now)
        assert bool(out["b"].any()) or now["b"] == 0 or rule != "memsgd(identity())"
        assert now["b"] or not out["b"].any()  # an owner keeps what it owes, too
        sizes = {name: size or sizes[name] for name, size in now.items()}
    error = (sent + held(simulation, sizes) - given).norm() / given.norm()
    assert error <= (1e-6 if dtype == torch.float32 else 1e-12)


def test_ef21_bc_finds_the_mean_of_gradients_that_stand_still() -> None:
    """A tenth of a share is told in a round, and a fifth of it told on: after 40 rounds nothing is left to tell."""
    simulation = Simulation(model(torch.float64), "ef21bc(topk(0.1), topk(0.2))", 4, exchange=OWNERS)
    theirs = gradients(0, 4, torch.float64)
    for _ in range(40):
        out = simulation.exchange(theirs, step_sizes=dict.fromkeys(NAMES, 0.1))
    for name in NAMES:
        mean = torch.stack([own[name] for own in theirs]).mean(0)
        assert (out[name] - mean).abs().max() <= 40 * torch.finfo(torch.float64).eps * mean.abs().max()


def test_letters_to_two_owners_and_of_two_hops_are_told_apart() -> None:
    expected = Expected(1, "", 1, (), Key(0, 0, 0))
    digests = {_digest(expected, hop, owner) for hop in (TO_OWNER, TO_ALL) for owner in range(4)}
    assert len(digests) == 8


@pytest.mark.parametrize("rule", SERVED)
def test_nothing_moves_where_a_gradient_is_not_finite(rule: str) -> None:
    simulation, other = (Simulation(model(torch.float32), rule, 4, exchange=OWNERS) for _ in range(2))
    sizes = dict.fromkeys(NAMES, 0.1)
    for step in range(6):
        theirs = gradients(step, 4, torch.float32)
        if step % 2:
            bad = [dict(own) for own in theirs]
            bad[3]["c"] = bad[3]["c"] * torch.inf
            with pytest.raises(NonFiniteGradient, match="rank 3"):
                simulation.exchange(bad, step_sizes=sizes)
        results = [each.exchange(theirs, step_sizes=sizes) for each in (simulation, other)]
        assert all(torch.equal(results[0][name], results[1][name]) for name in NAMES)


@pytest.mark.parametrize("rule", ["memsgd(topk(0.1))", "memadam(topk(0.1))", "ef21bc(topk(0.1), topk(0.2))"])
def test_a_state_goes_on_bitwise_and_is_cut_anew(rule: str) -> None:
    simulation = Simulation(model(torch.float32), rule, 4, exchange=OWNERS)
    sizes = dict.fromkeys(NAMES, 0.1)
    for step in range(4):
        simulation.exchange(gradients(step, 4, torch.float32), step_sizes=sizes)
    state = simulation.state_dict()
    again = Simulation(model(torch.float32), rule, 4, exchange=OWNERS)
    again.load_state_dict(state)
    later = gradients(9, 4, torch.float32)
    results = [each.exchange(later, step_sizes=sizes) for each in (simulation, again)]
    assert all(torch.equal(results[0][name], results[1][name]) for name in NAMES)
    for workers in (2, 3, 7):
        more = Simulation(model(torch.float32), rule, workers, exchange=OWNERS)
        more.load_state_dict(state, on_resize="redistribute")
        back = Simulation(model(torch.float32), rule, 4, exchange=OWNERS)
        back.load_state_dict(more.state_dict(), on_resize="redistribute")
        for key, saved in back.state_dict()["slots"].items():
            if key.split("/")[0] in ("kept", "mean", "told", "broadcast", "shared"):
                assert torch.equal(saved, state["slots"][key]), key


def test_a_state_of_other_owners_is_refused() -> None:
    state = Simulation(model(torch.float32), "memsgd(topk(0.1))", 4, exchange=OWNERS).state_dict()
    for exchange, words in (("gather", "uses a gather"), ("server", "uses a server, in shares of 1024")):
        other = Simulation(model(torch.float32), "memsgd(topk(0.1))", 4, exchange=exchange)
        with pytest.raises(StateError, match=words):
            other.load_state_dict(state)
    with pytest.raises(StateError, match="owners cannot be -1"):
        Simulation(model(torch.float32), "memsgd(topk(0.1))", 4).load_state_dict({**state, "owners": -1})


def test_flushing_leaves_nothing_and_applies_all() -> None:
    parameters = {name: torch.nn.Parameter(value) for name, value in model(torch.float64).items()}
    optimizer = torch.optim.SGD(list(parameters.values()), lr=0.1)
    simulation = Simulation(parameters, "memsgd(topk(0.1))", 4, optimizer=optimizer, exchange=OWNERS)
    given = torch.zeros(490, dtype=torch.float64)
    for step in range(5):
        theirs = gradients(step, 4, torch.float64)
        simulation.step(theirs)
        given += torch.stack([flat(own, dict.fromkeys(NAMES, 0.1)) for own in theirs]).mean(0)
    simulation.flush()
    moved = flat({name: value.detach() for name, value in parameters.items()}, dict.fromkeys(NAMES, -1.0))
    assert (moved - given).norm() <= 1e-12 * given.norm()
    assert not held(simulation, dict.fromkeys(NAMES, 1.0)).any()


def test_few_numbers_travel_whatever_the_number_of_workers() -> None:
    sent = []
    for workers in (4, 12):
        simulation = Simulation({"x": torch.zeros(12_000)}, "memsgd(topk(0.05))", workers, exchange="server")
        theirs = [{"x": torch.randn(12_000, generator=torch.Generator().manual_seed(r))} for r in range(workers)]
        simulation.exchange(theirs, step_sizes={"x": 0.1})
        sent.append(simulation.ledger.last_step()["sent_bytes"])
    assert sent[1] < 1.5 * sent[0]  # a gather: 11 / 3


@pytest.mark.parametrize(
    ("rule", "workers", "exchange", "words"),
    [
        ("memsgd(topk(0.1))", 4, "serve", "there is no exchange 'serve': take one of gather, server"),
        ("memsgd(topk(0.1))", 1, "server", "needs 2 workers or more"),
        ("ef21(topk(0.1))", 4, "server", r"not defined for two hops.*ef21bc\(topk\(0.01\), topk\(0.01\)\)"),
        ("memsgd(topk(0.1, per=bucket))", 4, "server", "cannot be told apart"),
        ("plain(qsgd(4))", 4, "server", "Take topk or randk"),
        ("ef21bc(topk(0.1), sign())", 4, "server", "sign"),
        ("route({'a': ef21(topk(0.1)), '*': memsgd(topk(0.1))}, min_numel=0)", 4, "server", "not defined for two hops"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_remedy(rule: str, workers: int, exchange: str, words: str) -> None:
    with pytest.raises(AttachError, match=words):
        Simulation(model(torch.float32), rule, workers, exchange=exchange)


def test_an_exchange_that_cannot_trade_is_no_server() -> None:
    with pytest.raises(AttachError, match=r"LoopbackEnd\s+has none"):
        Sharded(Loopback(2).ends[0])
    with pytest.raises(ConfigError, match="at least 1 number"):
        Simulation(model(torch.float32), "memsgd(topk(0.1))", 4, exchange=Owners(4, least=0))


def test_a_rule_s_text_does_not_tell_how_it_travels() -> None:
    simulation = Simulation(model(torch.float32), "memsgd(topk(0.1))", 4, exchange=OWNERS)
    assert str(simulation.channels[0].rule) == str(simulation.channels[0].rules["a"]) == "memsgd(topk(0.1))"
    assert thinwire.parse(str(simulation.channels[0].rule)) == simulation.channels[0].rule


@pytest.mark.parametrize(
    ("rule", "shows"),
    [("memsgd(topk(0.1))", True), ("memsgd(randk(0.1))", False), ("ef21bc(topk(0.1), topk(0.2))", True)],
)
def test_an_owner_s_memory_is_looked_at_unless_its_answer_shows_it(rule: str, shows: bool) -> None:
    channels = [
        Channel(parse(rule), {"a": torch.zeros(64)}, rank=rank, size=2, owners=Owners(2, least=8)) for rank in range(2)
    ]
    layout, given = channels[0].layout(["a"]), Given(torch.arange(64.0), step_sizes={"a": 0.1})
    for step in range(3):
        sent = [own.send(layout, given) for own in channels]
        letters = [[each.shares.letters[rank].message for each in sent if each.shares] for rank in range(2)]
        answers = [own.answer(sent[r], own.opened(sent[r], letters[r])) for r, own in enumerate(channels)]
        for rank, own in enumerate(channels):
            assert own.hub is not None
            kept = {id(flat) for layout in own.hub.store._bound for _, flat in own.hub.store.vectors(layout)}
            looked_at = {id(flat) for _, flat in own._underway._memories()}
            assert kept.isdisjoint(looked_at) == (shows and (step > 0 or "ef21" not in rule))
            own.receive_answers(sent[rank], answers[rank], [each.message for each in answers], torch.zeros(64))
            assert own.finish() is None
