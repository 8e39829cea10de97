"""The crowd: n workers that share one copy of the parameters, simulated by one call of a rule's halves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.engines.crowd.joint import JointKey, first_rows, int64
from thinwire.engines.crowd.stack import Stack
from thinwire.engines.rounds import Stacked
from thinwire.errors import ConfigError, NonFiniteGradient
from thinwire.exchange import Loopback, Traffic, adds_up
from thinwire.feedback import Feedback, Need, Rule, Signal, rule_of
from thinwire.feedback.base import Round
from thinwire.feedback.family.participation import tosses
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.ops import Key, first_nonfinite
from thinwire.outgoing import Norms, squared_norm
from thinwire.payload import Empty, Flagged, Payload
from thinwire.payload.base import mean_count
from thinwire.payload.letter import FINITE, letter_size
from thinwire.payload.sums import Summand
from thinwire.store import ParameterInfo, Store


@dataclass(frozen=True, eq=False)
class Seen:
    """All that an exchange looks at of the workers' gradients, laid side by side."""

    places: Tensor
    """As `Crowd.seen` gives them."""
    values: Tensor


def refusal(rule: Rule, parameters: Mapping[str, Tensor]) -> str | None:
    """Why one call cannot serve all workers; None where it can.

    >>> from thinwire import EF21, TopK
    >>> refusal(EF21(TopK(0.1, per="bucket")), {"x": torch.zeros(9)})
    'topk(0.1, per=bucket) does not compress each piece by itself (Compressor.piecewise)'
    """
    if not isinstance(rule, Feedback):
        return f"{rule} gives parameters rules of their own"
    for need in (Need.MOMENTS, Need.BROADCAST, Need.AGREEMENT):
        if need in rule.needs:
            return f"{rule.name} needs {need.value}"
    if not rule.piecewise:
        return f"{rule.name} does not treat each piece by itself (Feedback.piecewise)"
    if not rule.compressor.piecewise:
        return f"{rule.compressor} does not compress each piece by itself (Compressor.piecewise)"
    if any(slot.bits < 32 for slot in rule.slots):
        return f"{rule.name} keeps its memory in bytes, which one buffer of all workers does not"
    kinds = {(parameter.dtype, parameter.device.type) for parameter in parameters.values()}
    if len(kinds) != 1 or not kinds <= {(torch.float32, "cpu"), (torch.float64, "cpu")}:
        return "parameters must be of one type, float32 or float64, on the CPU"
    return None


class Crowd:
    """n workers whose vectors lie side by side in one buffer.

    Worker i's parameters are the i-th row, and to the rule no more than some of the buffer's pieces. A rule that treats
    each piece by itself so does for each worker exactly what that worker's `Channel` would do: parameters, state and
    byte counts are those of `Simulation`, bit for bit, without n messages being packed and read.

    Memory, in numbers: n times the parameters for each of the rule's slots that belong to a worker, as many for the
    gradients that are given (or seen), and the parameters for each slot that all share.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], rule: Feedback, workers: int, *, seed: int = 0, ledger_every: int = 10
    ) -> None:
        if workers < 1:
            raise ConfigError(f"a simulation needs at least 1 worker, got {workers}")
        if (why := refusal(rule, parameters)) is not None:
            raise ConfigError(f"workers cannot be simulated together: {why}. Use thinwire.Simulation")
        self.rule, self.workers, self.seed, self.step = rule, workers, seed, 0
        self.points = parameters
        infos = {name: ParameterInfo.of(i, p) for i, (name, p) in enumerate(parameters.items())}
        for name, info in infos.items():
            rule_of(rule, name, info.numel)
        rule.admit_workers(workers)
        self.layout = Layout.of([(name, info.index, info.shape) for name, info in infos.items()])
        self._dtype = next(iter(infos.values())).state_dtype
        self._all = range(workers)
        self._everyone = JointKey(seed, 0, ranks=self._all)
        """This round's key of all workers: it remembers what is drawn from `seen` to the exchange."""
        self.server = Store(
            {name: [slot for slot in rule.slots if not slot.per_worker] for name in infos}, infos, workers
        )
        self.state = {
            slot.name: torch.full((workers, self.layout.numel), slot.initial, dtype=self._dtype)
            for slot in rule.slots
            if slot.per_worker
        }
        """Each slot of the workers, one row a worker."""
        self.ledger = Ledger(workers, every=ledger_every)
        self._loopback = Loopback(workers)
        self._sizes: dict[tuple[int | None, ...], int] = {}
        self._blank: dict[str, Tensor] = {}
        """Vectors that are written where a round looks at them: not a number elsewhere, and old ones."""
        self._step_size: float | None = None
        self._first = True
        self._coins: tuple[int, Sequence[int]] = (-1, self._all)
        """A step and who sends in it: who asks for `heard` need not toss again."""

    @property
    def needs(self) -> frozenset[Need]:
        """What the rule asks for."""
        return self.rule.needs

    @property
    def wants_full(self) -> bool:
        """Whether the next exchange is to be given gradients of all samples."""
        return Need.FULL in self.rule.needs and (self._first or self.rule.wants_full(self._shared_key()))

    @property
    def heard(self) -> Sequence[int]:
        """The workers whose gradients the next exchange looks at: those who send, and worker 0 where its norms are
        due. All of them where it is a range."""
        ranks = self._ranks()
        aside = self.ledger.due(self.step) and not (ranks and ranks[0] == 0)
        return [0, *ranks] if aside else ranks

    @property
    def seen(self) -> Tensor | None:
        """Where the next exchange looks at the workers' gradients, laid side by side, in rising order; None where it
        looks everywhere, or not at all workers (see `heard`). All of worker 0's are there where its norms are due."""
        if self.rule.participation < 1:
            return None
        places = self.rule.looks_at(self._joint(self.workers), self._everyone, self._first)
        if places is None or not self.ledger.due(self.step):
            return places
        d = self.layout.numel
        return torch.cat([torch.arange(d), places[torch.searchsorted(places, d) :]])

    def exchange(
        self,
        gradients: Stacked | Seen,
        step_size: float,
        previous: Stacked | Seen | None = None,
        ranks: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """The gradient that every worker would get, by parameter. A fault is raised as it is found, and leaves a crowd
        that is of no more use.

        Rows are those of all workers, or of `ranks`, which must be what `heard` asks for.
        """
        given = self._all if ranks is None else ranks
        value = self._vectors(gradients, given, "value")
        before = None if previous is None else value
        if previous is not None and previous is not gradients:
            before = self._vectors(previous, given, "previous")
        out = torch.zeros(self.layout.numel, dtype=self._dtype)
        if step_size == 0 and Need.STEP_SIZE in self.rule.needs:
            self._hold(value, given)
        else:
            self._run(value, before, given, step_size, out)
        self.step += 1
        self._everyone = JointKey(self.seed, self.step, ranks=self._all)
        self.ledger.finish(skipped=False)
        return {piece.name: view.view(piece.shape) for piece, view in self.layout.views(out)}

    def _hold(self, value: Tensor, given: Sequence[int]) -> None:
        """At a step size of zero memories wait, and zeros are sent, as in `Channel`."""
        memories, ranks = self.state, self._ranks()
        self.state = {name: torch.zeros_like(rows) for name, rows in memories.items()}
        nothing = Signal(torch.zeros_like(value), None, self._first)
        try:
            stack = Stack(self._send(nothing, given, ranks), self.layout, ranks, self.workers)
        finally:
            self.state = memories
        self._account(stack, Signal(value, None, self._first), 0.0)

    def _run(self, value: Tensor, previous: Tensor | None, given: Sequence[int], step_size: float, out: Tensor) -> None:
        """Both halves of the rule: all workers' payloads, and what the server makes of them."""
        ranks = self._ranks()
        signal = Signal(value, self._rescale(step_size, len(ranks)), self._first, previous=previous)
        stack = Stack(self._send(signal, given, ranks), self.layout, ranks, self.workers)
        self._account(stack, signal, step_size)
        round = Round(stack, self._shared_key(), self._first)
        self.rule.receive(round, self.layout, self.server.bind(self.layout), out)
        if (overflow := int(first_nonfinite(out, self.layout))) != FINITE:
            raise NonFiniteGradient(None, self.layout.pieces[overflow].name, self.step)
        self._first, self._step_size = False, step_size

    def _vectors(self, gradients: Stacked | Seen, ranks: Sequence[int], use: str) -> Tensor:
        """The workers' vectors one after the other, right wherever the rule looks."""
        if not isinstance(gradients, Seen):
            return self._joined(gradients, ranks)
        if use not in self._blank:
            self._blank[use] = torch.full((self.workers * self.layout.numel,), math.nan, dtype=self._dtype)
        finite = gradients.values.isfinite()
        if not bool(finite.all()):
            worker, place = divmod(int(gradients.places[~finite][0]), self.layout.numel)
            piece = next(piece for piece in self.layout.pieces if place < piece.part.stop)
            raise NonFiniteGradient(worker, piece.name, self.step)
        self._blank[use][gradients.places] = gradients.values
        return self._blank[use]

    def _joined(self, gradients: Stacked, ranks: Sequence[int]) -> Tensor:
        """The workers' vectors one after the other; a number that is not finite is refused, before anything moves."""
        rows = [gradients[piece.name].reshape(len(ranks), piece.numel) for piece in self.layout.pieces]
        flat = (rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)).reshape(-1)
        place = int(first_nonfinite(flat, self._joint(len(ranks))))
        if place != FINITE:
            row, piece = divmod(place, len(self.layout.pieces))
            raise NonFiniteGradient(ranks[row], self.layout.pieces[piece].name, self.step)
        return flat

    def _ranks(self) -> Sequence[int]:
        """The workers that send in this round."""
        if self._first or self.rule.participation >= 1:
            return self._all
        if self._coins[0] != self.step:
            heads = tosses(Key(self.seed, self.step), int64(self._all), self.rule.participation)
            ranks = heads.nonzero().squeeze(1).tolist()
            self._coins = self.step, self._all if len(ranks) == self.workers else ranks
        return self._coins[1]

    def _rescale(self, step_size: float, workers: int) -> tuple[float, ...] | None:
        """Previous step size / this one for each piece of so many workers; None where it has not moved."""
        if Need.STEP_SIZE not in self.rule.needs or self._step_size in (None, step_size):
            return None
        assert self._step_size is not None
        return (self._step_size / step_size,) * (workers * len(self.layout.pieces))

    def _send(self, signal: Signal, given: Sequence[int], ranks: Sequence[int]) -> Payload:
        """The joint payload of the workers that send; the state of the others stays as it is, and is not read."""
        if not ranks:
            return Empty()
        layout = self._joint(len(ranks))
        if ranks is self._all:
            state = {name: rows.view(-1) for name, rows in self.state.items()}
            return self.rule.send(signal, layout, state, self._everyone)
        chosen, key = int64(ranks), JointKey(self.seed, self.step, ranks=ranks)
        state = {name: rows[chosen].view(-1) for name, rows in self.state.items()}
        payload = self.rule.send(_of(signal, given, chosen), layout, state, key)
        for name, rows in self.state.items():
            rows[chosen] = state[name].view(len(ranks), -1)
        return payload

    def _joint(self, rows: int) -> Layout:
        """The layout of so many workers' vectors side by side."""
        return first_rows(self.layout, rows, self.workers)

    def _shared_key(self) -> Key:
        return Key(self.seed, self.step).shared()

    # ------------------------------------------------------------------------------------------------------ accounting

    def _account(self, stack: Stack, signal: Signal, step_size: float) -> None:
        norms = self._norms(signal, step_size) if self.ledger.due(self.step) else {}
        mean = mean_count(stack.joint.elements, self.workers)
        self.ledger.add(self._traffic(stack), self.layout.numel, norms, mean)

    def _traffic(self, stack: Stack) -> Traffic:
        """By the real messages. Where those who send send messages of one size, one stands for all of them."""
        if not stack.joint.fixed:
            return self._loopback.cost([letter_size(payload) for payload in stack], fixed=False)
        ranks = stack.ranks
        longest = self._size(stack, ranks[0]) if ranks else 0
        share = self._share(stack) if ranks is self._all else None
        if share is not None:
            return Traffic.of_sum(longest, share, self.workers)
        if len(ranks) == self.workers:
            return self._loopback.cost([longest], fixed=not self.rule.varies)
        silent = self.workers - len(ranks)
        return self._loopback.cost([longest] * len(ranks) + [letter_size(Empty())] * silent, fixed=False)

    def _share(self, stack: Stack) -> int | None:
        """Bytes of a letter with a share of a message, where messages are added up on their way."""
        joint = stack.joint.summand if self.rule.averages else None
        if joint is None or not adds_up(joint.nbytes // self.workers, self.workers):
            return None
        own = stack[0]
        assert own.summand is not None
        return Summand(own, own.summand, torch.tensor(FINITE)).share_size(self.workers)

    def _size(self, stack: Stack, rank: int) -> int:
        """Bytes of one worker's message, packed once for each number of senders and of numbers that they send."""
        shape = (len(stack.ranks), *_shape(stack.joint))
        if shape not in self._sizes:
            self._sizes[shape] = letter_size(stack[rank])
        return self._sizes[shape]

    def _norms(self, everyone: Signal, step_size: float) -> dict[str, Norms]:
        """Squared norms of worker 0's gradient and of what it has not said."""
        value, previous = (
            None if flat is None else flat[: self.layout.numel] for flat in (everyone.value, everyone.previous)
        )
        assert value is not None
        signal = Signal(value, everyone.rescale, everyone.first, previous=previous)
        residual = self.rule.residual(signal, {name: rows[0] for name, rows in self.state.items()})
        size = (step_size or self._step_size) if Need.STEP_SIZE in self.rule.needs else None
        return {
            piece.name: Norms(
                squared_norm(view), None if residual is None else squared_norm(residual[piece.part]), size
            )
            for piece, view in self.layout.views(signal.value)
        }


def _shape(payload: Payload) -> tuple[int | None, ...]:
    """What the size of a payload follows from, where it is fixed: its formats and how many numbers it sends.

    Numbers that have to be counted, as those that are not zero among many, do not change it.
    """
    count = payload.elements
    known = None if isinstance(count, Tensor) else count
    return (payload.tag, known, *(_shape(payload.inner) if isinstance(payload, Flagged) else ()))


def _of(signal: Signal, given: Sequence[int], chosen: Tensor) -> Signal:
    """The part of the signal of the given workers that belongs to the chosen ones."""
    if len(given) == chosen.numel():
        return signal
    rows = chosen if isinstance(given, range) else torch.searchsorted(int64(given), chosen)
    value, previous = (
        None if flat is None else flat.view(len(given), -1)[rows].view(-1) for flat in (signal.value, signal.previous)
    )
    assert value is not None
    return Signal(value, signal.rescale, signal.first, previous=previous)
