"""Workers that agree on what they send: what the mean of it keeps, what is refused, and what it costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.gradients import LAYOUTS, vectors
from torch import Tensor

import thinwire
from thinwire import Channel, Key, Layout, Simulation
from thinwire.advice.candidates import candidate
from thinwire.compressors import ArcTopK, Compressor
from thinwire.engines.crowd import Crowd
from thinwire.engines.elastic import ElasticHandle, Elasticity
from thinwire.errors import AttachError, ConfigError, NonFiniteGradient, ThinwireError, WireError
from thinwire.exchange import allreduce_bytes
from thinwire.feedback import Need
from thinwire.ops import random_bits
from thinwire.outgoing import Given
from thinwire.payload import Reader, pack_payload, unpack_payload

RULE = "memsgd(arctopk(0.25, columns=8, directions=2))"
FORMS = [ArcTopK(0.3, columns=3, directions=1), ArcTopK(0.5, columns=4, directions=2), ArcTopK(0.2, 2, 2)]


def agreed(compressor: Compressor, xs: list[Tensor], layout: Layout, key: Key) -> Compressor:
    """Once these workers' sketches are added up."""
    sketches = [compressor.sketch(x, layout, replace(key, worker=worker)) for worker, x in enumerate(xs)]
    return compressor.by([sum(own[1:], own[0]) for own in map(list, zip(*sketches, strict=True))])


@pytest.mark.parametrize("compressor", FORMS, ids=str)
@settings(max_examples=15)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_the_mean_of_what_is_sent_is_a_contraction_of_the_mean(
    compressor: ArcTopK, data: st.DataObject, layout: Layout
) -> None:
    """E|C(x) - x|^2 <= (1 - delta) |x|^2 for the mean x of three workers' vectors, in the mean of 200 keys: with
    Hoeffding's bound, as for each compressor alone; and that what is sent is the mean's own numbers."""
    xs = [data.draw(vectors(layout, torch.float64)) for _ in range(3)]
    mean, draws = sum(xs) / 3, 200
    gaps = torch.zeros(draws, len(layout.pieces), dtype=torch.float64)
    for seed in range(draws):
        key = Key(seed, 7)
        together = agreed(compressor, xs, layout, key)
        sent = [together(x, layout, replace(key, worker=i)).decode(layout, x.dtype) for i, x in enumerate(xs)]
        gap = sum(sent) / 3 - mean
        chosen = torch.stack([each != 0 for each in sent]).any(0)
        assert float(gap[chosen].abs().sum()) <= 64 * 2.0**-52 * float(sum(x.abs().sum() for x in xs))
        gaps[seed] = torch.stack([view.square().sum() for _, view in layout.views(gap)])
    for place, (piece, view) in enumerate(layout.views(mean)):
        seen = gaps[:, place]
        noise = 2 * float(seen.max()) * math.sqrt(math.log(1e9) / (2 * draws))
        whole = float(view.square().sum())
        assert float(seen.mean()) <= (1 - compressor.delta(piece.numel)) * whole + noise + 64 * 2.0**-52 * whole


def test_the_bound_is_met_where_all_of_a_row_lies_in_one_number() -> None:
    """Rows whose sketches are their numbers: the largest are always chosen."""
    layout, x = Layout.of([("x", 0, (64,))]), torch.zeros(64, dtype=torch.float64)
    x[::8] = torch.arange(1.0, 9.0, dtype=torch.float64)
    for seed in range(20):
        found = ArcTopK(0.25, columns=8, directions=2)(x, layout, Key(seed)).decode(layout, x.dtype)
        assert found.nonzero().flatten().tolist() == [48, 56]


def test_signs_that_cancel_hide_a_row_and_the_claim_allows_for_it() -> None:
    """Equal numbers cancel or add up by the draw; in the mean a sketch has the claimed share of the squares."""
    layout, x = Layout.of([("x", 0, (8,))]), torch.tensor([1.0, 1, 1, 1, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
    compressor = ArcTopK(0.5, columns=4, directions=1)
    chosen = [compressor(x, layout, Key(seed)).positions[0].item() for seed in range(400)]
    assert set(chosen) == {0, 4} or set(chosen) == {0}
    shares = [compressor.sketch(x, layout, Key(seed))[0].square().sum() / 4 for seed in range(400)]
    assert float(sum(shares)) / 400 == pytest.approx(float(x.square().sum()) / 4, rel=0.3)
    assert compressor.delta(8) == 0.5 / 4
    assert compressor.delta(4) == compressor.delta(0) == 1.0


def test_a_sketch_is_the_rows_times_a_matrix_that_all_draw_alike() -> None:
    layout = Layout.of([("x", 3, (2, 5)), ("y", 7, (2,))])
    x = torch.arange(12.0)
    sketch, none = ArcTopK(0.5, columns=4, directions=2).sketch(x, layout, Key(5, 2, worker=1))
    signs = (random_bits(Key(5, 2).shared().at(3).number, 4) < 0).to(x.dtype) * 2 - 1
    rows = torch.nn.functional.pad(x[:10], (0, 2)).view(3, 4)
    assert torch.equal(sketch, (rows * signs).view(3, 2, 2).sum(2).flatten())
    assert none.numel() == 0


@pytest.mark.parametrize(
    ("columns", "directions"), [(0, 1), (8, 0), (8, 3), (2.5, 1), (4, 8)], ids=lambda number: str(number)
)
def test_rows_that_cannot_be_cut_are_refused(columns: int, directions: int) -> None:
    with pytest.raises(ConfigError, match="arctopk cuts a row"):
        ArcTopK(0.1, columns, directions)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (-1, "beyond the end of a row"),
        (8, "claims 65537 rows of 'x'"),
        (4, "rows of no numbers"),
        (12, "counted|marks"),
    ],
)
def test_a_message_of_rows_that_cannot_be_is_refused(place: int, words: str) -> None:
    """Columns, the counts of two parameters, the rows, and numbers, two of them behind the last row."""
    layout, x = Layout.of([("x", 0, (10,)), ("y", 1, (9,))]), torch.arange(19.0)
    message = pack_payload(ArcTopK(0.4, columns=4)(x, layout, Key()))
    assert unpack_payload(Reader(message), layout, Key(), x.dtype).decode(layout, x.dtype)[8:10].tolist() == [8.0, 9.0]
    message[4 : 4 + 4 * (place == 4)] = 0
    if place != 4:
        message[place + 2 * (place == 8)] += 1
    with pytest.raises(WireError, match=words):
        unpack_payload(Reader(message), layout, Key(), x.dtype)


# ------------------------------------------------------------------------------------------------------------ in a step


def vectors_of(workers: int, seed: int = 0) -> list[dict[str, Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(40, 10, generator=draws), "b": torch.randn(5, generator=draws)} for _ in range(workers)]


def simulation(rule: str = RULE, workers: int = 3, scale: float = 0.0) -> Simulation:
    return Simulation({"x": torch.full((40, 10), scale), "b": torch.zeros(5)}, rule, workers)


def test_bytes_are_those_of_an_all_reduce_and_of_the_sketches() -> None:
    """A parameter of 100,000 numbers: 2 (W - 1) / W of the rows' bytes, and (W - 1) of the sketches', and letters."""
    workers, numel = 4, 100_000
    sim = Simulation({"x": torch.zeros(numel)}, "plain(arctopk(0.1, columns=256, directions=2))", workers)
    sim.exchange([{"x": torch.randn(numel)} for _ in range(workers)])
    rows = -(-numel // 256)
    least = allreduce_bytes(4 * 256 * (rows // 10), workers) + (workers - 1) * 4 * 2 * rows
    sent = sim.ledger.summary()["sent_bytes"]
    assert least <= sent <= least + (workers - 1) * (3 * 60)


def test_sketches_follow_what_is_remembered_and_the_step_size() -> None:
    """The chosen rows are those of the memory in the present step's units, with the gradient."""
    sim = simulation("memsgd(arctopk(0.25, columns=8, directions=8))", workers=1)
    sim.exchange(vectors_of(1), {"x": 1.0, "b": 1.0})
    error = sim.channels[0].worker.view("x", "error").clone()
    new = vectors_of(1, seed=1)
    out = sim.exchange(new, {"x": 0.1, "b": 1.0})["x"].flatten()
    given_ = (10.0 * error + new[0]["x"].flatten()).view(50, 8)
    best = given_.square().sum(1).topk(12).indices.sort().values
    assert torch.equal(out.view(50, 8).any(1).nonzero().flatten(), best)


def test_a_parameter_at_rate_zero_keeps_its_memory() -> None:
    sim = simulation()
    sim.exchange(vectors_of(3), {"x": 0.1, "b": 0.1})
    before = [channel.worker.view("x", "error").clone() for channel in sim.channels]
    out = sim.exchange(vectors_of(3, 1), {"x": 0.0, "b": 0.1})
    assert not out["x"].any()
    assert all(torch.equal(e, c.worker.view("x", "error")) for e, c in zip(before, sim.channels, strict=True))


def test_an_unused_parameter_takes_no_part() -> None:
    sim = simulation()
    sent = [{"b": own["b"]} for own in vectors_of(3)]
    assert set(sim.exchange(sent, {"x": 0.1, "b": 0.1})) == {"b"}
    assert set(sim.exchange(vectors_of(3), {"x": 0.1, "b": 0.1})) == {"x", "b"}


@pytest.mark.parametrize("size", [math.nan, math.inf, 3e38])
def test_what_is_not_finite_is_refused_and_changes_nothing(size: float) -> None:
    """NaN and infinity of one worker; and numbers that float32 holds, with a sketch that it does not."""
    clean, hit = simulation(), simulation()
    for step in range(3):
        sizes = {"x": 0.1, "b": 0.1}
        poisoned = vectors_of(3, step)
        poisoned[1]["x"][30:36] = size  # rows that nobody would choose by sketches of zero
        poisoned[2]["x"][30:36] = abs(size)
        with pytest.raises(NonFiniteGradient, match="parameter 'x'"):
            hit.exchange(poisoned, sizes)
        results = [sim.exchange(vectors_of(3, step), sizes) for sim in (clean, hit)]
        assert all(torch.equal(results[0][name], results[1][name]) for name in ("x", "b"))


def test_nothing_is_agreed_on_where_every_row_is_sent() -> None:
    sim = simulation("plain(arctopk(1.0, columns=8))", workers=2)
    ours, dense = sim.exchange(vectors_of(2)), simulation("plain(identity())", workers=2).exchange(vectors_of(2))
    assert all(torch.equal(ours[name], dense[name]) for name in ours)


# -------------------------------------------------------------------------------------------------------------- refusal


def sent_alone() -> None:
    channel = Channel(thinwire.parse(RULE), {"x": torch.zeros(64)}, rank=0, size=2)
    channel.send(channel.layout(["x"]), Given(torch.ones(64), step_sizes={"x": 1.0}))


def elastic() -> None:
    net = torch.nn.Linear(8, 8)
    ElasticHandle(net, thinwire.parse(RULE), torch.optim.SGD(net.parameters(), lr=0.1), Elasticity())


def outer() -> None:
    thinwire.OuterSimulation([{"x": torch.zeros(9)}] * 2, RULE, every=2)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a server of shares": (
        lambda: Simulation({"x": torch.zeros(9)}, RULE, 2, exchange="server"),
        "topk",
    ),
    "a crowd": (lambda: Crowd({"x": torch.zeros(9)}, thinwire.parse(RULE), 2), "sum of all workers' sketches"),
    "a channel alone": (sent_alone, "take topk in place of arctopk"),
    "elastic runs": (elastic, "workers that come and go send without asking first. Take topk"),
    "outer steps": (
        outer,
        "workers that take outer steps send without asking first. Take topk",
    ),
    "a rehearsal": (lambda: candidate(RULE), "measure it with `thinwire lab`"),
    "DGC": (lambda: thinwire.parse("dgc(arctopk(0.1))"), "use memsgd, plain, ef21"),
    "EF21+": (lambda: thinwire.parse("ef21plus(arctopk(0.1))"), "use memsgd, plain, ef21"),
    "EF21-P": (lambda: thinwire.parse("ef21p(ef21(arctopk(0.1)), topk(0.1))"), "use topk"),
}


@pytest.mark.parametrize("who", REFUSED)
def test_who_cannot_ask_workers_to_agree_says_so_with_a_remedy(who: str) -> None:
    attempt, words = REFUSED[who]
    with pytest.raises(ThinwireError, match=re.escape(words)) as caught:
        attempt()
    assert isinstance(caught.value, AttachError | ConfigError)


def test_a_rule_needs_an_agreement_where_its_compressor_asks_for_one() -> None:
    assert thinwire.parse(RULE).needs == {Need.STEP_SIZE, Need.AGREEMENT}  # type: ignore[union-attr]
    assert thinwire.parse("memsgd(topk(0.1))").needs == {Need.STEP_SIZE}  # type: ignore[union-attr]
    assert thinwire.parse("ef21(arctopk(0.1))").needs == {Need.AGREEMENT}  # type: ignore[union-attr]
