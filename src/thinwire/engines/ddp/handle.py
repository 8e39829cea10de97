"""What exchanges the buckets of one rank's model: the handle that `attach` returns."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.futures import Future

from thinwire.channel import Channel, Given, longest_message
from thinwire.checkpoint import OnResize, prepared
from thinwire.compressors import Identity
from thinwire.engines.auto import Mode
from thinwire.engines.ddp.agreement import Loadable, load_together_, marked_anywhere
from thinwire.engines.ddp.aside import Aside
from thinwire.engines.ddp.attachment import Attachment
from thinwire.engines.ddp.autopilot import Autopilot, WithChoices, choices_of
from thinwire.engines.ddp.averaging import Averaging
from thinwire.engines.ddp.beside import Folder, gather_states, is_anywhere, read_beside, save_beside
from thinwire.engines.ddp.bucket import Arrival, Delivery, MemoryOrder, SecondMoments
from thinwire.engines.ddp.holding import Bucket, Holding, watch_use
from thinwire.engines.ddp.hook import Plugs
from thinwire.engines.ddp.laps import Laps, NoLaps
from thinwire.engines.ddp.late import Late
from thinwire.engines.ddp.two_hops import send_answers, send_shares
from thinwire.engines.ddp.verdict import Common, Verdict
from thinwire.engines.flush import dense_channel, forget_, owed
from thinwire.engines.needs import warn_of_decay
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import MomentError, NonFiniteGradient, PeerLost, StateError, ThinwireError, WireError
from thinwire.exchange import Exchange, Incoming, Reduces, Scatters, Sharded, Traffic, adds_up
from thinwire.exchange.bundle import FULL, SHORT, gather_together
from thinwire.feedback import Plain, Rule
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.payload.letter import Contents
from thinwire.payload.sums import add_up, write_shares, write_total

MEAN = Plain(Identity())
"""The rule that is nothing but the mean over ranks."""


class Handle:
    """What `attach` returns: the ledger and the state of this rank. A torch `Stateful`, for distributed checkpoints.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> from thinwire import attach
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ddp = DistributedDataParallel(torch.nn.Linear(10, 1))
    >>> handle = attach(ddp, "memsgd(topk(0.1))", torch.optim.SGD(ddp.parameters(), lr=0.1))
    >>> ddp(torch.ones(4, 10)).mean().backward()
    >>> state = handle.state_dict()  # every rank saves its own
    >>> round(handle.flush(), 4)  # the norm of what had not been sent: nine weights' gradients of 1, times the rate
    0.3
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        holding: Holding,
        channel: Channel,
        exchange: Exchange,
        given: Attachment,
        step_sizes: StepSizes | None,
    ) -> None:
        self.channel, self.ledger = channel, Ledger(exchange.size, every=given.ledger_every)
        self._exchange, self._given, self._step_sizes = exchange, given, step_sizes
        self._holding, self._parameters, self._council = holding, holding.parts, holding.council
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        moments = given.moments
        self._moments = None if moments is None else SecondMoments(channel, moments, self._parameters)
        self._common = Common(holding.ddp, channel, step_sizes, holding.shard)
        self._buckets: dict[tuple[str, ...], tuple[Layout, MemoryOrder]] = {}
        self._errors: list[ThinwireError] = []
        self._deliveries: list[Delivery] = []
        self._arrivals: list[Arrival] = []
        self._waiting: list[Arrival] = []
        self._means: list[Averaging] = []
        self._scale = 1.0
        self._reduces, self._scatters = isinstance(exchange, Reduces), isinstance(exchange, Scatters)
        self._aside = Aside()
        self.auto: Autopilot | None = None
        """Who says how buckets travel, where that is not the rule's alone."""
        self._laps: Laps = NoLaps()
        self._threads: set[int] = set()
        self.plug: weakref.ref[Plugs] | None = None  # weak, or model and handle would wait for the garbage collector
        self._warned = False
        self._used: set[str] | None = set() if holding.watches_use else None
        self._late = Late(given.optimizer) if given.nonfinite == "late" and given.optimizer is not None else None
        hooks = [] if self._used is None else watch_use(holding.named, self._used)
        if self._late is not None:
            hooks += self._settling(holding)
        self._unwatch = weakref.finalize(self, _remove, hooks)
        self._unwatch.atexit = False

    def _settling(self, holding: Holding) -> list[Any]:
        """A hook by which the last step is settled when the next forward pass begins."""
        ddp, settle = None if holding.ddp is None else holding.ddp(), weakref.WeakMethod(self.settle)

        def before_forward(*_: Any) -> None:
            if (call := settle()) is not None:
                call()

        return [] if ddp is None else [ddp.register_forward_pre_hook(before_forward)]

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        return self.channel.rule

    def steer(self, auto: Autopilot) -> None:
        """Have each bucket travel as an autopilot says."""
        self.auto, self._laps = auto, auto.laps

    def explain(self) -> str:
        """How buckets travel and why; under `auto` with all that was measured and every change of mind.

        It is the same on every rank, and costs nothing.
        """
        return f"{self.rule}: named by the user, for every bucket" if self.auto is None else self.auto.explain()

    def describe(self) -> dict[str, str]:
        """What must be the same on every rank, as texts that an error can show."""
        channel, given = self.channel, self._given
        settings = {
            "rule": str(channel.rule) if self.auto is None else self.auto.text,
            "seed": str(channel.seed),
            "nonfinite": given.nonfinite,
            "scaler": str(given.scaled),
            "find_unused_parameters or static_graph": str(self._used is not None),
        }
        settings |= {} if channel.hub is None else {"exchange": str(channel.hub.owners)}
        settings |= {} if self._step_sizes is None else self._step_sizes.settings()
        return settings | self._holding.describe()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state as of the last finished step. Every rank must save its own: memories differ.

        It may be called at any moment, from a signal handler or another thread too: a step under way is not disturbed.
        """
        if self._is_between_steps():
            self.settle()
        return self._holding.save(self.channel) | ({} if self.auto is None else {"auto": self.auto.state()})

    def load_state_dict(self, state: Mapping[str, Any], *, on_resize: OnResize = "raise") -> None:
        """Load this rank's state, or the merged states of another number of ranks (see `merge_states`).

        Call it on every rank: all load, or (with a `StateError` on each) none.
        """
        self._load(lambda: state, on_resize, "load_state_dict")

    def _load(self, read: Callable[[], Mapping[str, Any]], on_resize: OnResize, what: str) -> None:
        self._check_between_steps(what)
        self._give_up()
        self._forget_use()
        self._council.begin("loading a state")
        load_together_(self._council, lambda: self._prepared(read(), on_resize), self._holding.shard)

    def _prepared(self, state: Mapping[str, Any], on_resize: OnResize) -> Loadable:
        fitting = prepared(self.channel, self._holding.kept(self.channel, state), on_resize)
        if self.auto is None:
            return fitting
        return WithChoices(fitting, self.auto, choices_of(state, self._parameters))

    def merged_state(self) -> dict[str, Any]:
        """On rank 0 the states of all ranks as one (see `merge_states`), elsewhere this rank's own.

        For a checkpoint that rank 0 alone writes: every rank can load it. Call it on every rank, between steps. All
        states travel, dense, and the ledger counts them; rank 0 holds as many states as there are ranks.
        """
        if self._holding.shard:
            raise StateError("states of shards are not merged: every rank keeps its own, by save(folder)")
        self._check_between_steps("merged_state")
        self._council.begin("saving a state")
        return gather_states(self._council, self.state_dict(), self.ledger.book)

    def save(self, folder: Folder) -> None:
        """Write this rank's state into a folder, beside whatever is there: one file a rank, whole or not at all.

        Call it on every rank, between steps. The folder may be shared by all hosts or each host's own. A failure on
        one rank is a `CheckpointError` on all.
        """
        self._check_between_steps("save")
        self._council.begin("saving a state")
        save_beside(self._council, folder, self.state_dict())

    def load(self, folder: Folder, *, on_resize: OnResize = "raise") -> bool:
        """Load what `save` wrote, on every rank; False where no rank finds anything of thinwire in the folder.

        Another number of ranks needs all files in every rank's folder, and `on_resize="redistribute"` or `"reset"`.
        """
        self._council.begin("looking for a state")
        if not is_anywhere(self._council, folder):
            return False
        self._load(lambda: read_beside(folder, self._council, self.channel.size), on_resize, "load")
        return True

    def flush(self) -> float:
        """Hand over all that was not sent: every rank's memory travels dense, and is applied to the model as an update.

        For the end of training: x <- x - (1/n) sum_i m_i, after which all memories are empty. Rules of differences
        (EF21's) keep no such sum; for them nothing happens. Call it on every rank, between steps; gives the norm of the
        update.
        """
        self._check_between_steps("flush")
        self._give_up()
        self._council.begin("flushing the memories")
        updates = owed(self.channel, self._step_sizes)
        dense = dense_channel(self.channel, updates)
        for name, update in updates.items():
            sent, what = dense.send(dense.layout([name]), Given(update)), f"memory of {name!r}"
            incoming = self._exchange.gather(sent.message, fixed=True, longest=0, what=what)
            self.ledger.book(incoming.traffic)
            self._attempt(partial(dense.receive, sent, incoming.wait(), update))
        self._attempt(dense.judge)
        error = self._verdict(dense, active=True).error or dense.finish()
        self._errors = []
        if error is not None:
            raise error
        norm = self._holding.apply(updates)
        forget_(self.channel, updates)
        if self.auto is not None:
            self.auto.forget_memories(updates)
        return norm

    def detach(self, *, flush: bool = True) -> dict[str, Any]:
        """Take thinwire off the model: DDP averages gradients densely from now on, and may be attached anew.

        What is in the memory is flushed first, or with `flush=False` left in the state that is returned. Call it on
        every rank, between steps.
        """
        self._check_between_steps("detach")
        if flush:
            self.flush()
        plug = None if self.plug is None else self.plug()
        if plug is not None:
            plug.unplug()
        self._unwatch()
        if self._late is not None:
            self._late.release()
        return self.state_dict()

    def exchange(self, bucket: Bucket) -> Future[Tensor]:
        """Exchange one bucket: what the comm hook does."""
        try:
            self._laps.lap("compute", bucket.index())
            if bucket.index() == 0:
                self._begin()
            with self._aside.of(bucket.buffer()):
                delivery = self._send(bucket)
                self._laps.lap("encode", bucket.index())
                self._receive_early()
                if bucket.is_last():
                    self._receive_all()
            if bucket.is_last():
                self._end()
            return delivery.result
        except PeerLost:
            self._give_up()
            self._forget_use()
            raise

    def _begin(self) -> None:
        """Begin a step; one whose backward pass broke off is undone first."""
        self.settle()
        self._give_up()
        self._threads = {threading.get_ident()}
        self._council.begin(f"step {self.channel.step}")
        self._common.look(self._council)
        self._scale = self._given.scale  # once a step: asking a scaler makes the host wait for a GPU
        if self._step_sizes is not None:
            self.ledger.see(self._common.rates, self._step_sizes.peaks())
        self._warned = self._warned or warn_of_decay(self.channel, self._step_sizes, self.ledger.rate_fall)

    def _send(self, bucket: Bucket) -> Delivery:
        flat = bucket.buffer().detach()  # with create_graph=True it is part of a graph
        if flat.is_cuda:
            self._threads.add(threading.main_thread().ident or 0)  # there autograd calls from threads of its own
        layout, order = self._bucket(bucket)
        mode = Mode.COMPRESSED if self.auto is None else self.auto.mode(layout)
        if self._is_mean(layout, flat):
            delivery = Delivery(flat, flat, order)
            self._average(layout, flat, bucket.index())
        elif mode is not Mode.COMPRESSED and self.auto is not None and self.auto.is_bare(layout):
            delivery = Delivery(flat, flat, order)  # the ranks' buffers are in one order
            self.auto.average_bare(flat)
        else:
            delivery = Delivery(flat, order.logical(flat), order)
            self._say(layout, delivery.gradient, mode, bucket.index())
        self._deliveries.append(delivery)
        self._send_waiting(FULL if not bucket.is_last() else 1)
        return delivery

    def _is_mean(self, layout: Layout, flat: Tensor) -> bool:
        """Whether nothing is asked of a bucket on a GPU but its mean, which the exchange takes itself. (On a CPU it is
        added up in rank order, as a simulation does.)"""
        if not (flat.is_cuda and self.auto is None and self._used is None and self._reduces):
            return False
        return all(self.channel.rules[piece.name] == MEAN for piece in layout.pieces)

    def _average(self, layout: Layout, flat: Tensor, place: int) -> None:
        """Start to replace a bucket by its mean over all ranks."""
        assert isinstance(self._exchange, Reduces)
        averaging = Averaging.bare(self._exchange, flat, layout, f"bucket {place}", half=False)
        for traffic in averaging.traffics:
            self.ledger.add(traffic, layout.numel, {}, layout.numel)
        self._means.append(averaging)

    def _say(self, layout: Layout, gradient: Tensor, mode: Mode, place: int) -> None:
        """Start to exchange what rules have to say of a bucket, compressed or whole."""
        given = self._given_of(layout, gradient)
        if self.auto is not None and mode is not Mode.COMPRESSED:
            self.auto.average(given, gradient)
            return
        arrival = Arrival(self.channel.send(layout, given), gradient, place)
        if self.auto is not None:
            self.auto.compressed(arrival.sent.message.numel())
        self._arrivals.append(arrival)
        self._start(arrival)

    def _given_of(self, layout: Layout, gradient: Tensor) -> Given:
        scale = self._scale
        return Given(
            gradient,
            step_sizes=self._common.step_sizes,
            scale=scale,
            used=self._used_somewhere(layout),
            moment=None if self._moments is None else self._moment(self._moments, layout, scale),
            measure=self.ledger.due(self.channel.step),
            mark=self._common.mark,
        )

    def _start(self, arrival: Arrival) -> None:
        """Send a message on its way, to be gathered or added up; a short one waits for the next."""
        sent, exchange = arrival.sent, self._exchange
        own = sent.summand
        if isinstance(exchange, Sharded):
            self._send_shares(exchange, arrival)
        elif own is not None and self._scatters and adds_up(own.numbers.nbytes, exchange.size):
            assert isinstance(exchange, Scatters)
            shares = write_shares(own, sent.expected, exchange.rank, exchange.size)
            arrival.in_shares, arrival.incoming = True, exchange.scatter(shares, arrival.what)
            self._book(arrival, Traffic.of_sum(sent.message.numel(), own.share_size(exchange.size), exchange.size))
        elif sent.message.numel() >= SHORT or sent.message.is_cuda:
            self._gather([arrival])
        else:
            self._waiting.append(arrival)

    def _send_waiting(self, least: int) -> None:
        """Send what waits off, if it is so many bytes."""
        if sum(each.sent.message.numel() for each in self._waiting) >= least:
            waiting, self._waiting = self._waiting, []
            self._gather(waiting)

    def _gather(self, arrivals: Sequence[Arrival]) -> None:
        """Start to gather the messages of some buckets in one collective."""
        try:
            parts = gather_together(
                self._exchange,
                [one.sent.message for one in arrivals],
                fixed=all(one.sent.fixed for one in arrivals),
                longest=sum(longest_message(one.sent.layout) for one in arrivals),
                what=" and ".join(one.what for one in arrivals),
            )
        except WireError as error:  # a length that cannot be: every rank has heard it, and none gathers these buckets
            self._errors.append(error)
            return
        for one, part in zip(arrivals, parts, strict=True):
            one.incoming = part
            self._book(one, part.traffic)

    def _book(self, arrival: Arrival, traffic: Traffic) -> None:
        sent = arrival.sent
        self.ledger.add(traffic, sent.layout.numel, sent.norms, sent.elements)

    def _bucket(self, bucket: Bucket) -> tuple[Layout, MemoryOrder]:
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        if names not in self._buckets:
            layout = self.channel.layout(names)
            self._buckets[names] = layout, MemoryOrder(layout, self._parameters)
        return self._buckets[names]

    def _used_somewhere(self, layout: Layout) -> Sequence[bool] | None:
        """Which parameters some rank used this step; DDP drops the others' results, so nothing is sent for them."""
        if self._used is None:
            return None
        return marked_anywhere(self._council, [piece.name in self._used for piece in layout.pieces])

    def _moment(self, moments: SecondMoments, layout: Layout, scale: float) -> Tensor | None:
        """The bucket's second moments. What is wrong with them is kept until DDP is done, for other ranks wait."""
        errors: list[MomentError] = []
        terms = moments.terms(layout)
        moment = moments.take(layout, scale, errors)
        self._errors += errors
        try:
            moments.check_terms(layout, terms, self._council)
        except ThinwireError as error:
            self._errors.append(error)
        return moment

    def _receive_early(self) -> None:
        """On a GPU, turn earlier buckets' messages into gradients while the backward pass goes on: nobody waits for
        them, for what they say is judged at the end of the step."""
        early = self.auto is None and not isinstance(self._exchange, Sharded)
        for arrival in self._arrivals[:-1] if early else ():
            if arrival.incoming is not None and arrival.sent.fixed and arrival.gradient.is_cuda:
                incoming, arrival.incoming = arrival.incoming, None
                self._receive_from(incoming, arrival)

    def _end(self) -> None:
        """Agree on whether the step is taken, hand over the gradients, and finish once DDP has written them.

        This is done in the body of the last hook. A Python callback in a thread of the process group can outlive the
        group or the interpreter, and then ends the process. Callbacks at the end of a backward pass run in the order
        they were queued, and DDP queues the one that writes gradients after the last hook has returned: so ours queues
        a second one that finishes. A rank that ran out of data under `ddp.join()` calls the hooks outside any backward
        pass, and finishes at once; what was not finite was another rank's, which raises.
        """
        self._forget_use()
        self._aside.join()
        if torch._C._current_graph_task_id() == -1:
            self._deliver(self._judged(active=False))
            with suppress(NonFiniteGradient):
                self._finish()
        elif self._late is not None and not self._common.divides_by_active:
            self._late.tell(self._agreed_refusal())
            self._hand_over(Verdict(None, None, 1.0))
        elif self._judges_late:
            self._hand_over(Verdict(None, None, 1.0))
            at_end_of_backward(lambda: at_end_of_backward(self._judge_and_finish))
        else:
            self._deliver(self._judged(active=True))
            at_end_of_backward(lambda: at_end_of_backward(self._finish))

    def _agreed_refusal(self) -> Tensor:
        """1 where some rank cannot take the step, else 0: on the device."""
        refused = self.channel.refused()
        if refused is None:
            self._attempt(self.channel.judge)
            refused = torch.tensor(float(self.channel.fault is not None))
        if self._errors:
            refused.fill_(1.0)
        if self._exchange.size > 1:
            assert isinstance(self._exchange, Reduces)
            self._exchange.reduce_(refused, "agreeing on the step").wait()
        return refused.clamp_(max=1.0)

    def settle(self) -> None:
        """With `nonfinite="late"`: take the last step, or undo it on all ranks and raise, if that is not done yet."""
        if self._late is not None and self._late.is_pending:
            if self._late.heard():
                self._judged(active=True)
            self._finish()

    @property
    def _judges_late(self) -> bool:
        """Whether DDP writes the gradients before it is known that they stand: on a GPU, which would be idle while the
        host waits for the verdict and only then launches what DDP, and after it the optimizer, have to do. 2 ms of a
        step of 45 on an H200. By the end of the backward pass it is known all the same."""
        on_gpu = bool(self._deliveries) and self._deliveries[0].gradient.is_cuda
        plain = self._holding.ddp is not None and self.auto is None and self._used is None
        return on_gpu and plain and not self._common.divides_by_active

    def _judge_and_finish(self) -> None:
        verdict = self._judged(active=True)
        if not verdict.taken:
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad.fill_(math.nan)
        self._finish()

    def _deliver(self, verdict: Verdict) -> None:
        self._hand_over(verdict)
        if self.auto is not None:
            try:
                self.auto.end_step(self._common.mark)
            except WireError as error:  # all ranks have seen the same
                self._errors.append(error)

    def _hand_over(self, verdict: Verdict) -> None:
        """Give DDP what it waits for."""
        for delivery in self._deliveries:
            delivery.deliver(verdict.taken, verdict.factor)
        self._deliveries, self._arrivals, self._means = [], [], []

    def _judged(self, active: bool) -> Verdict:
        """What becomes of the step: ranks ask each other, unless all of them saw the same of every bucket."""
        self._attempt(self.channel.judge)
        alike = self.auto is not None and not self.auto.needs_verdict and not self._common.divides_by_active
        verdict = Verdict(None, self.channel.fault, 1.0) if alike else self._verdict(self.channel, active=active)
        self._laps.lap("verdict")
        return verdict

    def _forget_use(self) -> None:
        if self._used is not None:
            self._used.clear()

    def _receive_all(self) -> None:
        """Turn what has arrived into gradients, in the order it was sent. An error is kept for the verdict."""
        for arrival in self._arrivals:
            if arrival.incoming is not None and arrival.in_shares:
                arrival.incoming = self._add_up(arrival, arrival.incoming.wait())
        if isinstance(self._exchange, Sharded):
            self._answer(self._exchange)
        for arrival in self._arrivals:
            if arrival.incoming is not None:
                self._receive_from(arrival.incoming, arrival)
        for averaging in self._means:
            averaging.receive(self.channel)
        if self.auto is not None:
            self.auto.receive()
        self._attempt(self.channel.look)

    def _receive_from(self, incoming: Incoming, arrival: Arrival) -> None:
        try:
            messages = incoming.wait()
        except WireError as error:  # those that travelled together cannot be told apart
            self._errors.append(error)
        else:
            self._laps.lap("wait", arrival.place)
            self._attempt(partial(self._receive, arrival, messages))
        self._laps.lap("decode", arrival.place)

    def _add_up(self, arrival: Arrival, letters: Sequence[Tensor] | Tensor) -> Incoming:
        """Add up this rank's share of a message, and start to tell the others. Where a letter cannot be read they wait
        all the same: they get zeros, and hear by the verdict that no rank takes the step."""
        sent, own = arrival.sent, arrival.sent.summand
        assert own is not None
        total = own.numbers.new_zeros(own.share(self._exchange.size))

        def add() -> None:
            arrival.flags, found = add_up(letters, own, sent.expected)
            total.copy_(found)

        self._attempt(add)
        message = write_total(total, own, sent.expected, self._exchange.rank)
        return self._exchange.gather(message, fixed=True, longest=0, what="the totals of a bucket")

    def _send_shares(self, exchange: Sharded, arrival: Arrival) -> None:
        """Start to tell every owner of its numbers."""
        try:
            arrival.incoming = send_shares(exchange, arrival.sent, arrival.what, self.ledger)
        except WireError as error:  # a length that cannot be: every rank has heard it
            self._errors.append(error)
        else:
            self._book(arrival, arrival.incoming.traffic)

    def _answer(self, exchange: Sharded) -> None:
        """Start to tell everyone what this rank makes of all that it was told of its own numbers."""
        for arrival in self._arrivals:
            if arrival.incoming is not None:
                found: list[Contents] = []
                messages, arrival.incoming = arrival.incoming.wait(), None
                self._attempt(partial(self._open, arrival, messages, found))
                arrival.answer = self.channel.answer(arrival.sent, found[0] if found else None)
        try:
            send_answers(exchange, self._arrivals, self.ledger)
        except WireError as error:
            self._errors.append(error)

    def _open(self, arrival: Arrival, messages: Sequence[Tensor] | Tensor, found: list[Contents]) -> None:
        found.append(self.channel.opened(arrival.sent, messages))

    def _receive(self, arrival: Arrival, messages: Sequence[Tensor] | Tensor) -> None:
        if arrival.sent.shares is not None:
            if arrival.answer is not None and arrival.answer.flags is not None:
                self.channel.receive_answers(arrival.sent, arrival.answer, messages, arrival.gradient)
        elif not arrival.in_shares:
            self.channel.receive(arrival.sent, messages, arrival.gradient)
        elif arrival.flags is not None:
            self.channel.receive_total(arrival.sent, arrival.flags, messages, arrival.gradient)

    def complain(self, error: ThinwireError) -> None:
        """Refuse the step under way, on all ranks: what something went wrong with that was to be exchanged."""
        self._errors.append(error)

    def _attempt(self, reading: Callable[[], object]) -> None:
        """Do what may fail on this rank alone; the others wait for the verdict, and must hear of it."""
        try:
            reading()
        except ThinwireError as error:
            self._errors.append(error)
        except Exception as error:
            problem = WireError(
                f"rank {self._exchange.rank} could not read what it was sent: {type(error).__name__}: {error}"
            )
            problem.__cause__ = error
            self._errors.append(problem)

    def _verdict(self, channel: Channel, *, active: bool) -> Verdict:
        """Whether all ranks can take what a channel has received, and how many of them had data."""
        problem = self._errors[0] if self._errors else None
        verdict = Verdict.agreed(self._council, problem, channel.fault, active, self._common)
        channel.fault = verdict.fault
        if verdict.error is not None:
            self._errors = [verdict.error]
        return verdict

    def _finish(self) -> None:
        if self._moments is not None:
            self._moments.clear()
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            self.channel.abandon()
            self.ledger.finish(skipped=True)
            raise error
        fault = self.channel.finish()
        self.ledger.finish(skipped=fault is not None)
        if fault is None and self.auto is not None:
            self.auto.finish()
        if fault is not None and self._given.nonfinite != "skip":
            raise fault if self._council is self._exchange else fault.of_site()

    def _give_up(self) -> None:
        """Undo a step that neither finished nor will."""
        self._deliveries, self._arrivals, self._waiting, self._means, self._errors = [], [], [], [], []
        if self.auto is not None:
            self.auto.begin()
        self.channel.abandon()

    def _is_between_steps(self) -> bool:
        """Whether the thread that trains asks, outside any backward pass."""
        return torch._C._current_graph_task_id() == -1 and threading.get_ident() in self._threads

    def _check_between_steps(self, what: str) -> None:
        """Refuse what would tear a step in two. One whose backward pass broke off is none: no pass of its is left."""
        if self._is_between_steps():
            self.settle()
        elif self.channel.moving:
            raise StateError(
                f"{what} was called in the middle of step {self.channel.step}: call it between steps, from the thread "
                "that trains. (state_dict may be called at any moment: it gives the last finished step)"
            )


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward pass is done, after all callbacks that were queued before."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(callback)
