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

from thinwire.channel import Channel
from thinwire.checkpoint import OnResize, prepared
from thinwire.compressors import Identity
from thinwire.engines.auto import Mode
from thinwire.engines.ddp.agreement import Loadable, load_together_, marked_anywhere
from thinwire.engines.ddp.aside import Aside
from thinwire.engines.ddp.attachment import Attachment
from thinwire.engines.ddp.autopilot import Autopilot, WithChoices, choices_of
from thinwire.engines.ddp.beside import Folder, gather_states, is_anywhere, read_beside, save_beside
from thinwire.engines.ddp.bucket import Delivery, MemoryOrder, SecondMoments
from thinwire.engines.ddp.holding import Bucket, Holding, watch_use
from thinwire.engines.ddp.hook import Plugs
from thinwire.engines.ddp.late import Late
from thinwire.engines.ddp.post import Post
from thinwire.engines.ddp.verdict import Common, Verdict
from thinwire.engines.flush import dense_channel, forget_, owed
from thinwire.engines.needs import warn_of_decay
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import MomentError, NonFiniteGradient, PeerLost, StateError, ThinwireError, WireError
from thinwire.exchange import Exchange, Reduces
from thinwire.feedback import Plain, Rule
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.outgoing import Given

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
        self._post, self._aside = Post(channel, exchange, self.ledger), Aside()
        self._deliveries: list[Delivery] = []
        self._scale = 1.0
        self.auto: Autopilot | None = None
        """Who says how buckets travel, where that is not the rule's alone."""
        self._threads: set[int] = set()
        self.plug: weakref.ref[Plugs] | None = None  # weak, or model and handle would wait for the garbage collector
        self._warned = False
        self._used: set[str] | None = set() if holding.watches_use else None
        self._late = Late(given.optimizer) if given.nonfinite == "late" and given.optimizer is not None else None
        self._overdue: ThinwireError | None = None
        """What became of the last step, if it was heard of in this one: the same on every rank."""
        hooks = [] if self._used is None else watch_use(holding.named, self._used)
        self._unwatch = weakref.finalize(self, _remove, hooks)
        self._unwatch.atexit = False

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        return self.channel.rule

    def steer(self, auto: Autopilot) -> None:
        """Have each bucket travel as an autopilot says."""
        self.auto, self._post.laps = auto, auto.laps

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
        late = self._late
        if late is not None and late.is_pending and self._is_between_steps() and not late.is_refused:
            self.settle()  # asks nobody
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
            self._post.attempt(partial(dense.receive, sent, incoming.wait(), update))
        self._post.attempt(dense.judge)
        error = self._verdict(dense, active=True).error or dense.finish()
        self._post.errors = []
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
            self._post.laps.lap("compute", bucket.index())
            if bucket.index() == 0:
                self._begin()
            with self._aside.of(bucket.buffer()):
                delivery = self._send(bucket)
                self._post.laps.lap("encode", bucket.index())
                if bucket.is_last():
                    self._receive_all()
                elif self.auto is None:
                    self._post.receive_early()
            if bucket.is_last():
                self._end()
            return delivery.result
        except PeerLost:
            self._give_up()
            self._forget_use()
            raise

    def _begin(self) -> None:
        """Begin a step; one whose backward pass broke off is undone first. Where the last one turns out to have been
        refused, neither is this one taken: DDP would not survive an error here, so it is raised at the end."""
        self._overdue = self._settled()
        self._give_up()
        self._post.errors += [] if self._overdue is None else [self._overdue]
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
            self._post.average(layout, flat, bucket.index())
        elif mode is not Mode.COMPRESSED and self.auto is not None and self.auto.is_bare(layout):
            delivery = Delivery(flat, flat, order)  # the ranks' buffers are in one order
            self.auto.average_bare(flat)
        else:
            delivery = Delivery(flat, order.logical(flat), order)
            self._say(layout, delivery.gradient, mode, bucket.index())
        self._deliveries.append(delivery)
        self._post.sent(last=bucket.is_last())
        return delivery

    def _is_mean(self, layout: Layout, flat: Tensor) -> bool:
        """Whether nothing is asked of a bucket on a GPU but its mean, which the exchange takes itself. (On a CPU it is
        added up in rank order, as a simulation does.)"""
        if not (flat.is_cuda and self.auto is None and self._used is None and self._post.reduces):
            return False
        return all(self.channel.rules[piece.name] == MEAN for piece in layout.pieces)

    def _say(self, layout: Layout, gradient: Tensor, mode: Mode, place: int) -> None:
        """Start to exchange what rules have to say of a bucket, compressed or whole."""
        given = self._given_of(layout, gradient)
        if self.auto is not None and mode is not Mode.COMPRESSED:
            self.auto.average(given, gradient)
            return
        sent = self.channel.send(layout, self._post.agreed(layout, given, place))
        if self.auto is not None:
            self.auto.compressed(sent.message.numel())
        self._post.send(sent, gradient, place)

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
        self._post.errors += errors
        try:
            moments.check_terms(layout, terms, self._council)
        except ThinwireError as error:
            self._post.errors.append(error)
        return moment

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
        if self._late is not None and self._overdue is None and not self._common.divides_by_active:
            self._late.tell(self._agreed_refusal())
            self._hand_over(Verdict(None, None, 1.0))
        elif torch._C._current_graph_task_id() == -1:
            self._deliver(self._judged(active=False))
            with suppress(NonFiniteGradient):
                self._finish()
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
            self._post.attempt(self.channel.judge)
            refused = torch.zeros((), device=self._deliveries[0].gradient.device if self._deliveries else None)
        if self._post.errors or self.channel.fault is not None:
            refused.fill_(1.0)
        if self._exchange.size > 1:
            assert isinstance(self._exchange, Reduces)
            self._exchange.reduce_(refused, "agreeing on the step").wait()
        return refused.clamp_(max=1.0)

    def settle(self) -> None:
        """With `nonfinite="late"`: take the last step, or undo it on all ranks and raise, if that is not done yet. Call
        it on every rank, after the last step of a training."""
        if self._late is not None and self._late.is_pending:
            if self._late.heard():
                self._judged(active=True)
            self._finish()

    def _settled(self) -> ThinwireError | None:
        """What became of the last step, if it was not taken."""
        try:
            self.settle()
        except PeerLost:
            raise
        except ThinwireError as error:
            return error
        return None

    @property
    def _judges_late(self) -> bool:
        """Whether DDP writes the gradients before it is known that they stand: on a GPU, which would be idle while the
        host waits for the verdict and only then launches what DDP, and after it the optimizer, have to do. 2 ms of a
        step of 45 on an H200. By the end of the backward pass it is known all the same."""
        on_gpu = bool(self._deliveries) and self._deliveries[0].gradient.is_cuda
        plain = self._holding.ddp is not None and self.auto is None and self._used is None
        plain = plain and self._council is self._exchange  # gradients are the model's own
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
                self._post.errors.append(error)

    def _hand_over(self, verdict: Verdict) -> None:
        """Give DDP what it waits for."""
        for delivery in self._deliveries:
            delivery.deliver(verdict.taken, verdict.factor)
        self._deliveries = []
        self._post.clear()

    def _receive_all(self) -> None:
        """Receive all buckets, and begin to look at what came."""
        self._post.receive_all()
        if self.auto is not None:
            self.auto.receive()
        self._post.attempt(self.channel.look)

    def _judged(self, active: bool) -> Verdict:
        """What becomes of the step: ranks ask each other, unless all of them saw the same of every bucket."""
        self._post.attempt(self.channel.judge)
        alike = self.auto is not None and not self.auto.needs_verdict and not self._common.divides_by_active
        verdict = Verdict(None, self.channel.fault, 1.0) if alike else self._verdict(self.channel, active=active)
        self._post.laps.lap("verdict")
        return verdict

    def _forget_use(self) -> None:
        if self._used is not None:
            self._used.clear()

    def complain(self, error: ThinwireError) -> None:
        """Refuse the step under way, on all ranks: what something went wrong with that was to be exchanged."""
        self._post.errors.append(error)

    def _verdict(self, channel: Channel, *, active: bool) -> Verdict:
        """Whether all ranks can take what a channel has received, and how many of them had data."""
        problem = self._post.errors[0] if self._post.errors else None
        verdict = Verdict.agreed(self._council, problem, channel.fault, active, self._common)
        channel.fault = verdict.fault
        if verdict.error is not None:
            self._post.errors = [verdict.error]
        return verdict

    def _finish(self) -> None:
        if self._moments is not None:
            self._moments.clear()
        if self._post.errors:
            error = self._post.errors[0]
            self._post.errors.clear()
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
        self._aside.join()
        self._deliveries, self._post.errors = [], []
        self._post.clear()
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
