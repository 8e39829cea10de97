"""Live numbers and replays, as far as a CPU can tell: the recordings themselves are tested on a GPU (tests/dist)."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
import torch
from tests.methods import COMPRESSORS, METHODS
from torch import Tensor

from thinwire import Channel, Compressor, Feedback, Key, Layout, MemSGD, TopK
from thinwire.feedback.memory import decayed
from thinwire.ops import piece_indices
from thinwire.ops.live import Dials, LiveKey, LiveRatios, NotRepeatable
from thinwire.replay import ALIKE, MOST, Now, Replays, is_on

LAYOUT = Layout.of([("a", 3, (2, 3)), ("b", 5, (4,)), ("c", 9, (1,))])
CPU = torch.device("cpu")


def test_a_live_key_has_the_words_of_each_step() -> None:
    dials = Dials(CPU, 64)
    key = Key(seed=7, step=2, worker=1)
    live = LiveKey.of(key, dials)
    own, common = live.words(piece_indices(LAYOUT)), live.shared().stream(4).words(piece_indices(LAYOUT))
    for step in (2, 3, 11):
        dials.set_(step)
        then = Key(seed=7, step=step, worker=1)
        assert torch.equal(own, then.words(piece_indices(LAYOUT)))
        assert torch.equal(common, then.shared().stream(4).words(piece_indices(LAYOUT)))


def test_a_live_key_gives_the_host_no_numbers() -> None:
    live = LiveKey.of(Key(), Dials(CPU, 8))
    with pytest.raises(NotRepeatable):
        live.numbers([1])
    with pytest.raises(NotRepeatable):
        live.across(torch.arange(2))


def test_a_dial_that_is_the_only_one_turns_too() -> None:
    dials = Dials(CPU, 8)
    step = dials.add(1, lambda step: torch.tensor([step]))
    for now in (5, 7):
        dials.set_(now)
        assert step.tolist() == [now]


def test_dials_have_an_end() -> None:
    with pytest.raises(NotRepeatable, match="more than 2"):
        Dials(CPU, 2).add(3, lambda step: torch.zeros(3, dtype=torch.int64))


def test_step_sizes_and_the_digest_lie_on_dials() -> None:
    dials = Dials(CPU, 64)
    told = Now(Key(), (None, (1.0, 0.5, 2.0)), 5)
    live = told.on(dials, lambda: told)
    dials.set_(0)
    none, ratios = live.ratios
    assert none is None
    assert isinstance(ratios, LiveRatios)
    assert isinstance(live.digest, Tensor)
    assert (list(ratios), ratios[1], live.digest.item()) == ([1.0, 0.5, 2.0], 0.5, 5)
    halved = decayed(ratios, 0.5, LAYOUT)
    told = Now(Key(), (None, (1.0, 3.0, 2.0)), 2**32 - 1)
    dials.set_(1)
    assert list(ratios) == [1.0, 3.0, 2.0]
    assert halved is not None
    assert list(halved) == [0.5, 0.25, 1.0]  # made before the step: on a GPU it is part of the recording
    assert live.digest.to(torch.int32).item() == -1


def test_nothing_is_recorded_that_comes_once() -> None:
    """Launch by launch at first; a recording is asked for when the same has come often enough."""
    asked: list[bool] = []

    class Watched(Replays[None]):
        def _record(self, what, read, written, now, work, *, staged=False):  # type: ignore[no-untyped-def]
            asked.append(staged)
            self._tapes[what] = None

    def work(read: Sequence[Tensor], written: Sequence[Tensor], now: Now) -> tuple[list[Tensor], None]:
        return [read[0] + 1], None

    replays = Watched()
    for times in range(ALIKE + 3):
        found, _ = replays.do("what", [torch.ones(2)], [], Now(Key()), work)
        assert found[0].tolist() == [2.0, 2.0]
        assert len(asked) == (times >= ALIKE)
    for other in range(5):
        replays.do(other, [torch.ones(2)], [], Now(Key()), work)
    assert asked == [False]


def test_what_was_recorded_can_be_recorded_anew_after_much_else() -> None:
    """Where a tensor has moved, the shapes of what is made are looked up again."""

    class Moved:
        extra = None

        def run(self, *given: object) -> None:
            return None

    class Watched(Replays[None]):
        def _record(self, what, read, written, now, work, *, staged=False):  # type: ignore[no-untyped-def]
            assert self._seen[what].made
            self._tapes[what] = None if staged else Moved()
            return self._tapes[what]

    def work(read: Sequence[Tensor], written: Sequence[Tensor], now: Now) -> tuple[list[Tensor], None]:
        return [read[0] + 1], None

    replays = Watched()
    for _ in range(ALIKE):
        replays.do("what", [torch.ones(2)], [], Now(Key()), work)
    replays._tapes["what"] = Moved()  # type: ignore[assignment]
    for other in range(3 * MOST):
        replays.do(other, [torch.ones(2)], [], Now(Key()), work)
    assert replays.do("what", [torch.ones(2)], [], Now(Key()), work)[0][0].tolist() == [2.0, 2.0]


def test_a_copy_has_recorded_nothing() -> None:
    replays: Replays[None] = Replays()
    replays._seen["what"] = replays._tapes["what"] = lambda: None  # type: ignore[assignment]
    copied = pickle.loads(pickle.dumps(replays))
    assert not copied._seen
    assert not copied._tapes


def test_recordings_are_forgotten_where_state_is_laid_out_anew() -> None:
    """Another layout of the same parameters, and back: what was recorded first moves memory that is no longer used."""
    channel = Channel(MemSGD(TopK(0.5)), {name: torch.zeros(4) for name in "abc"}, rank=0, size=2)
    forgotten: list[int] = []
    channel._replays.clear = lambda: forgotten.append(channel.worker.packings)  # type: ignore[method-assign]

    def step(names: str) -> None:
        channel.worker.bind(channel.layout(list(names)))
        assert channel._recorded is channel._replays

    for names in ("abc", "abc", "ab", "abc", "abc"):
        step(names)
    assert forgotten == [1, 2, 3]


def test_replays_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_on()
    monkeypatch.setenv("THINWIRE_REPLAY", "0")
    assert not is_on()


@pytest.mark.parametrize("compressor", [c for c in COMPRESSORS if c.pattern(Key()) is not None], ids=str)
def test_a_compressor_with_a_pattern_asks_the_host_for_nothing(compressor: Compressor) -> None:
    """What `pattern` promises: with a live key it does what it does with a key."""
    key = Key(seed=1, step=30, worker=2)
    dials = Dials(CPU, 64)
    live = _Told(1, 30, 2, 0, dials)
    x = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(0))
    decoded = [compressor(x, LAYOUT, each).decode(LAYOUT, x.dtype) for each in (key, live)]
    assert torch.equal(*decoded)


class _Told(LiveKey):
    """A live key whose words are there at once."""

    def words(self, pieces: Tensor) -> Tensor:
        words = super().words(pieces)
        self.dials.set_(self.step)
        return words.clone()

    def shared(self) -> LiveKey:
        return _Told(self.seed, self.step, -1, self.piece, self.dials)


@pytest.mark.parametrize("rule", METHODS, ids=str)
def test_patterns_can_be_compared(rule: Feedback) -> None:
    patterns = [rule.pattern(Key(step=step)) for step in (1, 1, 1000)]
    assert hash(patterns[0]) == hash(patterns[1])
    assert patterns[0] == patterns[1]
    assert (patterns[0] is None) == (patterns[2] is None)
