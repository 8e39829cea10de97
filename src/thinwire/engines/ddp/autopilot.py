"""Autopilot: what a handle has beside it under `auto`.

It times the steps, asks the pilot how each bucket is to travel, and keeps account of which memories must be sent before
a bucket may go bare.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.engines.auto import BucketFacts, Mode, Pilot, Probe, Report, Tell
from thinwire.engines.auto.modes import Rows, Talk
from thinwire.engines.ddp.agreement import Loadable
from thinwire.engines.ddp.averaging import Averaging, Mean
from thinwire.engines.ddp.laps import Laps
from thinwire.errors import StateError, WireError
from thinwire.exchange import Reduces
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.outgoing import Given
from thinwire.whole import Whole


class Decider(Protocol):
    """Who says how buckets travel: the same on every rank."""

    def mode(self, names: Iterable[str]) -> Mode:
        """How a bucket of these parameters travels in this step."""

    def modes(self) -> Mapping[str, Mode]:
        """How each parameter travels, as a checkpoint keeps it."""

    def resume(self, modes: Mapping[str, Mode]) -> None:
        """Go on from a checkpoint."""

    def after(self, report: Report) -> Talk:
        """Take in a step, and ask all ranks."""

    def words(self) -> list[str]:
        """What was decided, and why."""


@dataclass
class _Sent:
    """A bucket of the step under way."""

    layout: Layout
    mode: Mode
    whole: Whole | None = None
    message: int = 0


class Autopilot:
    """One rank's end of what all ranks decide together.

    A bucket travels *bare* where its rules are no more than the mean of gradients once their memories are empty, and
    they are: DDP's own all-reduce, of DDP's own buffer. One whose memories may hold something is sent whole first.
    """

    def __init__(
        self,
        channel: Channel,
        exchange: Reduces,
        ledger: Ledger,
        text: str,
        why: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.text, self._why = text, why
        self._channel, self._exchange, self._ledger = channel, exchange, ledger
        self._dense = channel.dense_twin()
        self.laps = Laps(clock)
        self.decider: Decider = Pilot(exchange.size, ledger.switches.append)
        self._laden: set[str] = set()
        """Parameters whose memory may hold something."""
        self._mark = 0
        self._sent: list[_Sent] = []
        self._averaging: list[Averaging] = []
        self._facts: dict[Layout, BucketFacts] = {}

    # ------------------------------------------------------------------------------------------------------------ send

    def begin(self) -> None:
        """A step begins; what was left of another is forgotten."""
        self._sent, self._averaging = [], []

    def mode(self, layout: Layout) -> Mode:
        """How a bucket travels in this step."""
        names = [piece.name for piece in layout.pieces]
        mode = Mode.DENSE if self._exchange.size == 1 else self.decider.mode(names)
        self._sent.append(_Sent(layout, mode))
        return mode

    def is_bare(self, layout: Layout) -> bool:
        """Whether nothing but gradients is to be said of a bucket."""
        return self._facts_of(layout).bare and not any(piece.name in self._laden for piece in layout.pieces)

    def average_bare(self, flat: Tensor) -> Averaging:
        """Start DDP's own all-reduce of the bucket that was asked about last."""
        last = self._sent[-1]
        half = last.mode is Mode.HALF and flat.dtype == torch.float32
        return self._under_way(Averaging.bare(self._exchange, flat, last.layout, self._what, half=half))

    def average(self, given: Given, gradient: Tensor) -> Averaging:
        """Start to average all that is to be said of that bucket. What a memory holds travels in its own precision."""
        last = self._sent[-1]
        last.whole = self._dense.whole(last.layout, given)
        facts = self._facts_of(last.layout)
        half = last.mode is Mode.HALF and facts.halves and not facts.bare
        return self._under_way(Averaging.of(self._exchange, last.whole, gradient, self._what, half=half))

    @property
    def _what(self) -> str:
        return f"bucket {len(self._sent) - 1}"

    def _under_way(self, averaging: Averaging) -> Averaging:
        self._averaging.append(averaging)
        return averaging

    def compressed(self, message: int) -> None:
        """That bucket goes as a message of so many bytes."""
        self._sent[-1].message = message

    def _facts_of(self, layout: Layout) -> BucketFacts:
        if layout not in self._facts:
            self._facts[layout] = self._looked_up(layout)
        return self._facts[layout]

    def _looked_up(self, layout: Layout) -> BucketFacts:
        names = tuple(piece.name for piece in layout.pieces)
        bare = all(self._channel.rules[name].averages for name in names)
        infos = [self._channel.parameters[name] for name in names]
        dtype = infos[0].dtype if bare else infos[0].state_dtype
        return BucketFacts(names, layout.numel, dtype.itemsize, dtype == torch.float32, bare)

    # --------------------------------------------------------------------------------------------------------- receive

    @property
    def needs_verdict(self) -> bool:
        """Whether ranks may see this step differently: a mean they all see alike."""
        return any(sent.mode is Mode.COMPRESSED for sent in self._sent)

    def receive(self) -> None:
        """Wait for every mean, and book what it cost."""
        for place, averaging in enumerate(self._averaging):
            averaging.receive(self._dense)
            self.laps.lap("wait", place)
            for count, traffic in enumerate(averaging.traffics):
                numel = 0 if count else averaging.layout.numel
                self._ledger.add(traffic, numel, {}, numel)

    def finish(self) -> None:
        """The step is taken: what was compressed may have left something in a memory, what was sent whole has not."""
        for sent in self._sent:
            if sent.mode is Mode.COMPRESSED:
                self._laden |= {p.name for p in sent.layout.pieces if self._channel.rules[p.name].slots}
            elif sent.whole is not None:
                said = {piece.name for part in sent.whole.parts for piece in part.layout.pieces}
                self._laden -= said - sent.whole.held

    def forget_memories(self, names: Iterable[str]) -> None:
        """The memories of these parameters were handed over."""
        self._laden.difference_update(names)

    # ---------------------------------------------------------------------------------------------------------- decide

    def end_step(self, mark: int) -> None:
        """Report the step to the decider, and ask of all ranks what it asks. `mark` is what they must have in common:
        bare buckets carry none."""
        report, self._mark = self._report(), mark
        self.laps.restart()
        if self._exchange.size > 1:
            talk = self.decider.after(report)
            try:
                request = next(talk)
                while True:
                    request = talk.send(self._asked(request))
            except StopIteration:
                pass
            self.laps.restart(self.laps.clock())

    def _report(self) -> Report:
        count = len(self._sent)
        return Report(
            buckets=tuple(self._facts_of(sent.layout) for sent in self._sent),
            modes=tuple(sent.mode for sent in self._sent),
            period=self.laps.since_restart(),
            verdict=sum(self.laps.of("verdict", 1)),
            compute=self.laps.of("compute", count),
            encode=self.laps.of("encode", count),
            decode=self.laps.of("decode", count),
            message=tuple(sent.message for sent in self._sent),
        )

    def _asked(self, request: Tell | Probe) -> Rows:
        if isinstance(request, Tell):
            return self._told(request.numbers)
        numbers = torch.zeros(max(request.nbytes // 4, 1))
        start = self.laps.clock()
        mean = Mean(self._exchange, numbers, "a probe of the wire", half=False)
        mean.wait()
        spent = round(1e6 * (self.laps.clock() - start))
        self._ledger.book(mean.traffic)
        return self._exchange.everyone([spent], "how long a probe took")

    def _told(self, numbers: Sequence[int]) -> Rows:
        chosen = json.dumps([self._mark, self.state()])
        rows = self._exchange.everyone([zlib.crc32(chosen.encode()), *numbers], "how long steps take")
        if len({row[0] for row in rows}) > 1:
            raise WireError(
                "ranks have drifted apart under auto: in the step, a learning rate or what was chosen for a bucket; no "
                "rank has taken the step. Give every rank the same settings, and load the same checkpoint on all"
            )
        return [row[1:] for row in rows]

    def explain(self) -> str:
        """What was chosen, and why."""
        if self._exchange.size == 1:
            return f"{self.text}: one rank exchanges nothing"
        return "\n  ".join([f"{self.text}: {self._why}", *self.decider.words()])

    # ----------------------------------------------------------------------------------------------------------- state

    def state(self) -> list[list[Any]]:
        """Of each parameter its name, how it travels, and whether its memory may hold something."""
        modes = self.decider.modes()
        return [
            [name, modes.get(name, Mode.COMPRESSED).value, name in self._laden] for name in self._channel.parameters
        ]

    def load(self, rows: Choices) -> None:
        """Go on from a state that was loaded into the channel."""
        self._dense = self._channel.dense_twin()  # with the seed that was loaded
        self._laden = {name for name, _, laden in rows if laden}
        self.decider.resume({name: Mode(mode) for name, mode, _ in rows})


Choices = list[tuple[str, str, bool]]


@dataclass(frozen=True)
class WithChoices:
    """A state that was found to fit, with what `auto` had chosen."""

    fitting: Loadable
    auto: Autopilot
    rows: Choices

    def common(self) -> dict[str, str]:
        """What must be the same on every rank, as texts."""
        return self.fitting.common() | {"what auto had chosen": json.dumps(self.rows)}

    def commit_(self) -> None:
        """Put it into its place."""
        self.fitting.commit_()
        self.auto.load(self.rows)


def choices_of(state: Mapping[str, Any], names: Iterable[str]) -> Choices:
    """The part of a state that `Autopilot.state` gave, checked. A run without `auto` says nothing of choices: there any
    memory may hold something."""
    rows = state.get("auto", [[name, Mode.COMPRESSED.value, True] for name in names])
    if not (isinstance(rows, list | tuple) and all(map(_is_choice, rows)) and {row[0] for row in rows} == set(names)):
        raise StateError(f"the state's auto cannot be {rows!r}: the file is damaged, or of another model")
    return [(name, mode, laden) for name, mode, laden in rows]


def _is_choice(row: object) -> bool:
    match row:
        case [str(), str(mode), bool()]:
            return mode in {known.value for known in Mode}
    return False
