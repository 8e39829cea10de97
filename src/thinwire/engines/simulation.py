"""n workers in one process, exchanging real messages: bitwise what n processes compute."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.checkpoint import OnResize, load_all_, merge_states, save
from thinwire.engines.flush import apply_, dense_channel, forget_, owed
from thinwire.engines.needs import (
    IN_SIMULATION,
    check_agreement,
    check_gives,
    check_momentum,
    check_need,
    warn_of_optimizer,
)
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import ConfigError
from thinwire.exchange import Incoming, Loopback, Traffic, adds_up, check_exchange_name, owners_among
from thinwire.feedback import EF21P, Feedback, Need, Rule
from thinwire.feedback.family.ef21p import UNTOLD
from thinwire.hub import Answer, Shares
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.ops import Key
from thinwire.outgoing import Agreed, Given, Outgoing, longest_message
from thinwire.owners import Owners
from thinwire.payload.base import Count, both_counts, mean_count
from thinwire.payload.letter import letter_size
from thinwire.spec import rule_from

Gradients = Mapping[str, Tensor]
"""Parameter name -> gradient of one worker."""
Moments = Mapping[str, Tensor]
"""Parameter name -> second moment of one worker, as `thinwire.moments.Moments.take` gives them."""
Terms = Mapping[str, int] | int
"""How many gradients were squared for each second moment: samples of a batch, or micro-batches; one number for all."""


class Simulation:
    """n workers that share one copy of the parameters.

    `step(gradients)` takes each worker's gradients, exchanges them, writes `.grad` and lets the optimizer step, if
    one was given. `exchange(gradients)` does the first half only and returns the result. Both take each worker's
    second moments as well, and the gradients of the same samples at the previous point, for rules that need them.

    What a rule needs comes with each call, so that a simulation cannot know at its construction what it will be given:
    what is lacking is refused by the first exchange, before anything moves, and gradients of all samples (`Need.FULL`)
    are taken for such where `wants_full` asked for them. Say `gives=` what the calls will give, and a rule that needs
    more is refused at construction; an optimizer gives the step sizes, and the model's broadcast is always there.

    Gradients belong to `points`: what workers know of the parameters. Where a rule compresses the model's broadcast
    (`EF21P`) they are not the parameters themselves, and whoever moves those in place of `step` does so in `moving()`.

    With `exchange="server"` every worker is the server of a share of the numbers, as under `attach`.

    >>> import torch, thinwire
    >>> x = torch.nn.Parameter(torch.zeros(4))
    >>> rule = thinwire.MemSGD(thinwire.TopK(count=1))
    >>> sim = thinwire.Simulation({"x": x}, rule, workers=2, optimizer=torch.optim.SGD([x], lr=1.0))
    >>> sim.step([{"x": torch.tensor([4.0, 1, 0, 0])}, {"x": torch.tensor([0.0, 0, 0, 2])}])
    >>> x.tolist()
    [-2.0, 0.0, 0.0, -1.0]
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        rule: Rule | str,
        workers: int,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
        ledger_every: int = 10,
        gives: Collection[Need] | None = None,
        exchange: str | Owners = "gather",
    ) -> None:
        if workers < 1:
            raise ConfigError(f"a simulation needs at least 1 worker, got {workers}")
        rule = rule_from(rule)
        self.parameters = dict(parameters)
        self.optimizer = optimizer
        self.channels = self._channels(rule, workers, seed, _owners(exchange, workers))
        if gives is not None:
            check_gives(self.channels[0], {*gives, *([Need.STEP_SIZE] if optimizer is not None else [])})
        self._step_sizes = StepSizes(self.parameters, optimizer) if optimizer is not None else None
        check_agreement(self.channels[0], self.channels[0].hub is None, "workers that are servers of shares")
        check_momentum(self.channels[0], self._step_sizes)
        warn_of_optimizer(self.channels[0], self._step_sizes, stacklevel=3)
        self._layouts = [self.channels[0].layout(names) for names in _by_type(self.parameters)]
        self._loopback = Loopback(workers)
        self.ledger = Ledger(workers, every=ledger_every)

    def _channels(self, rule: Rule, workers: int, seed: int, owners: Owners | None) -> list[Channel]:
        first = Channel(rule, self.parameters, rank=0, size=workers, seed=seed, owners=owners)
        return [first] + [
            Channel(rule, self.parameters, rank=rank, size=workers, seed=seed, beside=first, owners=owners)
            for rank in range(1, workers)
        ]

    @property
    def workers(self) -> int:
        return len(self.channels)

    @property
    def needs(self) -> frozenset[Need]:
        """All that the rules in use ask for."""
        return self.channels[0].needs

    @property
    def wants_full(self) -> bool:
        """Whether the next exchange is to be given gradients of all samples: a rule that needs them asks by a coin."""
        return self.channels[0].wants_full

    def exchange(
        self,
        gradients: Sequence[Gradients],
        step_sizes: Mapping[str, float] | None = None,
        moments: Sequence[Moments] | None = None,
        previous: Sequence[Gradients] | None = None,
        terms: Terms | None = None,
    ) -> dict[str, Tensor]:
        """The gradient that every worker would get. One that a worker lacks counts as zero; a parameter that all lack
        is left out, and its state stays as it is.

        `previous` holds gradients of the same samples at the points of the step before; in the first step any will do.
        `terms` is the least number of gradients that any worker squared for its moments (`Moments.terms`): where it is
        given, a batch that is too small for the rule is refused in a parameter's first exchange, as under DDP.
        """
        if step_sizes is None and self._step_sizes is not None:
            step_sizes = self._step_sizes.now()
        given = {Need.STEP_SIZE: step_sizes, Need.MOMENTS: moments, Need.PREVIOUS: previous}
        for need, what in given.items():
            check_need(self.channels[0], need, what is not None, IN_SIMULATION[need])
        self._check(gradients, "gradient")
        self._check_step_sizes(step_sizes)
        if moments is not None:
            self._check(moments, "second moment")
            moments = self._needed(Need.MOMENTS, moments, gradients, "moment")
            self._check_terms(terms)
            self._check_signs(moments)
        if previous is not None:
            self._check(previous, "previous gradient")
            previous = self._needed(Need.PREVIOUS, previous, gradients, "previous one")
        self._abandon()  # an exchange that broke off half-way, as by Ctrl-C
        if self._step_sizes is not None:
            self.ledger.see(self._step_sizes.rates(), self._step_sizes.peaks())
        result: dict[str, Tensor] = {}
        for layout in self._layouts:
            used = [any(own.get(piece.name) is not None for own in gradients) for piece in layout.pieces]
            flat = self._exchange(layout, gradients, step_sizes, moments, previous, used)
            pieces = zip(used, layout.views(flat), strict=True)
            result |= {piece.name: view.view(piece.shape) for some, (piece, view) in pieces if some}
        self._finish()
        return result

    def _check(self, given: Sequence[Mapping[str, Tensor]], what: str) -> None:
        """Refuse what does not belong to the parameters, before any worker has sent."""
        if len(given) != self.workers:
            raise ConfigError(f"{self.workers} workers need {self.workers} {what}s, got {len(given)}")
        for worker, own in enumerate(given):
            for name, tensor in own.items():
                known = self.parameters.get(name)
                if known is None:
                    raise ConfigError(f"worker {worker} gives a {what} of {name!r}, which is no parameter here")
                if tensor is not None and tensor.shape != known.shape:
                    raise ConfigError(
                        f"worker {worker}'s {what} of {name!r} has shape {tuple(tensor.shape)}, "
                        f"the parameter {tuple(known.shape)}"
                    )

    def _needed(
        self, need: Need, given: Sequence[Mapping[str, Tensor]], gradients: Sequence[Gradients], what: str
    ) -> Sequence[Mapping[str, Tensor]] | None:
        """What was given for those parameters whose rule needs it, if any; a gradient without it is refused."""
        needed = {name: rule for name, rule in self.channels[0].rules.items() if need in rule.needs}
        for worker, (gradient, own) in enumerate(zip(gradients, given, strict=True)):
            for name, rule in needed.items():
                if gradient.get(name) is not None and own.get(name) is None:
                    raise ConfigError(f"worker {worker} gives a gradient of {name!r} without the {what} {rule} needs")
        return [{name: own[name] for name in needed if name in own} for own in given] if needed else None

    def _check_terms(self, terms: Terms | None) -> None:
        """Refuse a batch in which nothing could pass; asked once for each parameter."""
        for name, rule in self._fresh(Need.MOMENTS).items():
            if isinstance(terms, int):
                rule.admit_terms(name, terms)
            elif terms is not None and name in terms:
                rule.admit_terms(name, terms[name])

    def _check_signs(self, moments: Sequence[Moments] | None) -> None:
        """Refuse sums of squares below zero in a parameter's first exchange.

        Not in every one: finding the least number takes about 2 % of an exchange's time (10 million numbers, VGC, two
        workers, one EPYC core), and on a GPU a wait.
        """
        for name in self._fresh(Need.MOMENTS):
            for worker, own in enumerate(moments or ()):
                given = own.get(name)
                if given is not None and given.numel() and (least := float(given.min())) < 0:
                    raise ConfigError(
                        f"worker {worker}'s second moment of {name!r} has {least:.3g} in it, and sums of squares are 0 "
                        "or more: give Σ_z c_z², as thinwire.moments computes it"
                    )

    def _fresh(self, need: Need) -> dict[str, Feedback]:
        """The rules with this need of parameters that were never exchanged."""
        channel = self.channels[0]
        rules = channel.rules.items() if len(channel.started) < len(channel.rules) else ()
        return {name: rule for name, rule in rules if need in rule.needs and name not in channel.started}

    def _check_step_sizes(self, step_sizes: Mapping[str, float] | None) -> None:
        for name in self.parameters:
            if step_sizes is not None and name not in step_sizes:
                raise ConfigError(f"step_sizes has none for {name!r}: give one for every parameter")

    def _exchange(
        self,
        layout: Layout,
        gradients: Sequence[Gradients],
        step_sizes: Mapping[str, float] | None,
        moments: Sequence[Moments] | None,
        previous: Sequence[Gradients] | None,
        used: Sequence[bool],
    ) -> Tensor:
        measure = self.ledger.due(self.channels[0].step)
        given = [
            Given(
                self._flat(layout, own),
                step_sizes=step_sizes,
                used=used,
                moment=None if moments is None else self._flat(layout, moments[channel.rank]),
                previous=None if previous is None else self._flat(layout, previous[channel.rank]),
                measure=measure and channel is self.channels[0],
            )
            for channel, own in zip(self.channels, gradients, strict=True)
        ]
        agreed = self._agreed(layout, given)
        sent = [
            channel.send(layout, replace(own, agreed=agreed)) for channel, own in zip(self.channels, given, strict=True)
        ]
        like = self.parameters[layout.pieces[0].name]
        out = torch.empty(layout.numel, dtype=like.dtype, device=like.device)
        if self.channels[0].hub is not None:
            return self._serve(sent, out)
        arriving = self._gathered(sent, "a bucket")
        self._book(sent, self._traffic(sent[0], arriving))
        return self.channels[0].receive(sent[0], arriving.wait(), out)

    def _agreed(self, layout: Layout, given: Sequence[Given]) -> Agreed | None:
        """What workers agree upon before they send, where rules ask for that."""
        made = [channel.sketch(layout, own) for channel, own in zip(self.channels, given, strict=True)]
        sketched = [each for each in made if each is not None]
        if not sketched or not sketched[0].numbers.numel():
            return sketched[0].none() if sketched else None
        arriving = self._gathered([each.outgoing for each in sketched], "sketches of a bucket")
        self.ledger.carry(self._traffic(sketched[0].outgoing, arriving))
        agreed, fault = sketched[0].agree(arriving.wait())
        self.channels[0].fault = self.channels[0].fault or fault
        return agreed

    def _book(self, sent: Sequence[Outgoing], traffic: Traffic) -> None:
        self.ledger.add(traffic, sent[0].layout.numel, sent[0].norms, _mean([one.elements for one in sent]))

    def _serve(self, sent: Sequence[Outgoing], out: Tensor) -> Tensor:
        """Every worker tells each owner of its numbers, and each owner tells all."""
        answers = []
        for rank, channel in enumerate(self.channels):
            told = [one.shares.letters[rank].message for one in sent if one.shares is not None]
            answers.append(channel.answer(sent[rank], channel.opened(sent[rank], told)))
        self._book(sent, _two_hops([one.shares for one in sent if one.shares is not None], answers))
        return self.channels[0].receive_answers(sent[0], answers[0], [one.message for one in answers], out)

    def _traffic(self, sent: Outgoing, arriving: Incoming) -> Traffic:
        """What the exchange would cost each worker."""
        own = sent.summand
        if own is None or not adds_up(own.numbers.nbytes, self.workers):
            return arriving.traffic
        return Traffic.of_sum(sent.message.numel(), own.share_size(self.workers), self.workers)

    def _gathered(self, sent: Sequence[Outgoing], what: str) -> Incoming:
        """Every worker's message, as it comes to the first."""
        fixed, longest = sent[0].fixed, longest_message(sent[0].layout)
        arriving = [
            end.gather(own.message, fixed=fixed, longest=longest, what=what)
            for end, own in zip(self._loopback.ends, sent, strict=True)
        ]
        return arriving[0]

    def _flat(self, layout: Layout, gradients: Gradients) -> Tensor:
        parts = (gradients.get(piece.name) for piece in layout.pieces)
        return torch.cat(
            [
                self.parameters[piece.name].new_zeros(piece.numel) if part is None else part.detach().reshape(-1)
                for piece, part in zip(layout.pieces, parts, strict=True)
            ]
        )

    def _abandon(self) -> None:
        for channel, end in zip(self.channels, self._loopback.ends, strict=True):
            channel.undo_()
            end.begin(f"step {channel.step}")
        self.channels[0].abandon()

    def _finish(self) -> None:
        for channel in self.channels:
            channel.judge()
        self.channels[0].fault = next((channel.fault for channel in self.channels if channel.fault), None)
        for channel in self.channels[1:] if self.channels[0].fault is not None else ():
            channel.undo_()
        fault = self.channels[0].finish()
        for channel in self.channels[1:]:
            channel.keep()
        self.ledger.finish(skipped=fault is not None)
        if fault is not None:
            raise fault

    def step(
        self,
        gradients: Sequence[Gradients],
        moments: Sequence[Moments] | None = None,
        previous: Sequence[Gradients] | None = None,
        terms: Terms | None = None,
    ) -> None:
        """Exchange, write the parameters' `.grad`, step the optimizer, and broadcast."""
        result = self.exchange(gradients, moments=moments, previous=previous, terms=terms)
        for name, parameter in self.parameters.items():
            parameter.grad = result.get(name)
        with self.moving():
            if self.optimizer is not None:
                self.optimizer.step()

    def flush(self) -> float:
        """Hand over all that was not sent, dense, and apply it to the parameters: x <- x - (1/n) sum_i m_i.

        For the end of training; all memories are then empty. Gives the norm of the update. Rules of differences
        (EF21's) keep no sum of what they have not sent: for them nothing happens.
        """
        self._abandon()
        debts = [owed(channel, self._step_sizes) for channel in self.channels]
        dense = [dense_channel(channel, own) for channel, own in zip(self.channels, debts, strict=True)]
        updates: dict[str, Tensor] = {}
        for name in debts[0]:
            layout = dense[0].layout([name])
            sent = [channel.send(layout, Given(own[name])) for channel, own in zip(dense, debts, strict=True)]
            arriving = self._gathered(sent, f"memory of {name!r}")
            self.ledger.book(arriving.traffic)
            updates[name] = dense[0].receive(sent[0], arriving.wait(), torch.empty_like(debts[0][name]))
        fault = dense[0].finish()
        if fault is not None:
            raise fault
        for channel in self.channels:
            forget_(channel, updates)
        return apply_(self.parameters, updates)

    @property
    def points(self) -> dict[str, Tensor]:
        """Where workers take their gradients: the parameters, less what they were not yet told of them."""
        return {name: self._point(name) for name in self.parameters}

    def _point(self, name: str) -> Tensor:
        parameter = self.parameters[name]
        if not isinstance(self.channels[0].rules[name], EF21P):
            return parameter
        untold = self.channels[0].server.view(name, UNTOLD.name).view(parameter.shape)
        return parameter.detach() - untold.to(parameter.dtype)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A block in which the parameters move; at its end their change is broadcast, where a rule compresses that."""
        before = self.points
        yield
        for name, rule in self.channels[0].rules.items():
            if isinstance(rule, EF21P):
                self._broadcast(rule, name, before[name])

    @torch.no_grad()
    def _broadcast(self, rule: EF21P, name: str, point: Tensor) -> None:
        channel = self.channels[0]
        layout, untold = channel.layout([name]), channel.server.view(name, UNTOLD.name)
        untold.copy_((self.parameters[name] - point).reshape(-1))
        told = rule.tell_(untold, layout, Key(channel.seed, channel.step).shared())
        self.ledger.tell(letter_size(told))

    def state_dict(self) -> dict[str, Any]:
        """The state of all workers, in the form that a merged checkpoint of real ranks has."""
        with self.channels[0].clock.lock:  # all workers' states are of one and the same step
            return merge_states([save(channel) for channel in self.channels])

    def load_state_dict(self, state: Mapping[str, Any], *, on_resize: OnResize = "raise") -> None:
        """Load the merged state of all workers, or of another number of them."""
        load_all_(self.channels, state, on_resize)


def _owners(exchange: str | Owners, workers: int) -> Owners | None:
    """Who owns what, where the server's work is shared out."""
    if isinstance(exchange, Owners):
        return owners_among(workers, exchange.least)
    check_exchange_name(exchange)
    return owners_among(workers) if exchange == "server" else None


def _two_hops(shares: Sequence[Shares], answers: Sequence[Answer]) -> Traffic:
    """What both hops cost a worker, in the mean: what leaves one arrives at another."""
    workers, first = len(shares), shares[0]
    told = (0 if first.fixed else workers) + (first.answer_sizes is None)
    out = sum(own.sizes[owner] for rank, own in enumerate(shares) for owner in range(workers) if owner != rank)
    back = sum((workers - 1) * answer.message.numel() for answer in answers)
    moved = (out + back) // workers + Traffic.of_numbers(told, workers).sent
    return Traffic(sum(sum(own.sizes) for own in shares) / workers, moved, moved)


def _mean(counts: Sequence[Count]) -> float | Tensor | None:
    """The mean over workers of what all of them count."""
    return mean_count(reduce(both_counts, counts), len(counts))


def _by_type(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """Names that can share a flat buffer: one list for each type and device, as DDP buckets them."""
    groups: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, parameter in parameters.items():
        groups.setdefault((parameter.dtype, parameter.device), []).append(name)
    return list(groups.values())
