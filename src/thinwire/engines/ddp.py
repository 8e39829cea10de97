"""One line for DistributedDataParallel: a comm hook that exchanges buckets through a channel."""

import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.channel import Channel, Given, Outgoing, longest_message
from thinwire.checkpoint import OnResize, save
from thinwire.engines.agreement import agreement, load_together_
from thinwire.engines.common import Common
from thinwire.engines.flush import apply_, dense_channel, forget_, owed
from thinwire.engines.memory_order import MemoryOrder
from thinwire.engines.needs import check_need, check_one_backward, warn_of_decay, warn_of_optimizer
from thinwire.engines.plug import Plug, plug_in, plug_of
from thinwire.engines.second_moments import SecondMoments
from thinwire.engines.step_sizes import StepSizes
from thinwire.engines.verdict import Verdict
from thinwire.errors import AttachError, MomentError, NonFiniteGradient, PeerLost, StateError, ThinwireError, WireError
from thinwire.exchange import Group, Pending
from thinwire.feedback import Need, Rule
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.roll_call import assemble
from thinwire.spec import rule_from

if TYPE_CHECKING:
    from thinwire.moments import Moments


class Handle:
    """What `attach` returns: the ledger and the state of this rank. A torch `Stateful`, for distributed checkpoints."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        channel: Channel,
        group: Group,
        step_sizes: StepSizes | None,
        moments: SecondMoments | None,
        scaler: torch.amp.GradScaler | None,
        nonfinite: str,
        ledger: Ledger,
    ) -> None:
        self.channel, self.ledger = channel, ledger
        self._ddp = weakref.ref(ddp)  # DDP holds the handle in C++, where no garbage collector sees a circle
        self._group, self._step_sizes, self._moments = group, step_sizes, moments
        self._scaler, self._nonfinite = scaler, nonfinite
        self._parameters = _trained(ddp)
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._common = Common(ddp, channel, step_sizes)
        self._buckets: dict[tuple[str, ...], tuple[Layout, MemoryOrder]] = {}
        self._errors: list[ThinwireError] = []
        self._arrivals: list[_Arrival] = []
        self._threads: set[int] = set()
        self._plug: weakref.ref[Plug] | None = None  # weak, or model and handle would wait for the garbage collector
        self._warned = False
        watches = bool(getattr(ddp, "static_graph", False)) or ddp.find_unused_parameters
        self._used: set[str] | None = set() if watches else None
        hooks = [] if self._used is None else _watch_use(self._parameters, self._used)
        self._unwatch = weakref.finalize(self, _remove, hooks)
        self._unwatch.atexit = False

    @property
    def watches_use(self) -> bool:
        """Whether ranks agree at each step on which parameters were used."""
        return self._used is not None

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        return self.channel.rule

    def state_dict(self) -> dict[str, Any]:
        """This rank's state as of the last finished step. Every rank must save its own: memories differ.

        It may be called at any moment, from a signal handler or another thread too: a step under way is not disturbed.
        """
        return save(self.channel)

    def load_state_dict(self, state: Mapping[str, Any], *, on_resize: OnResize = "raise") -> None:
        """Load this rank's state, or the merged states of another number of ranks (see `merge_states`).

        Call it on every rank: all load, or (with a `StateError` on each) none.
        """
        self._check_between_steps("load_state_dict")
        self._give_up()
        self._forget_use()
        self._group.next_round("loading a state")
        load_together_(self._group, self.channel, state, on_resize)

    def flush(self) -> float:
        """Hand over all that was not sent: every rank's memory travels dense, and is applied to the model as an update.

        For the end of training: x <- x - (1/n) sum_i m_i, after which all memories are empty. Rules of differences
        (EF21's) keep no such sum; for them nothing happens. Call it on every rank, between steps; gives the norm of the
        update.
        """
        self._check_between_steps("flush")
        self._give_up()
        self._group.next_round("flushing the memories")
        updates = owed(self.channel, self._step_sizes)
        dense = dense_channel(self.channel, updates)
        for name, update in updates.items():
            sent, what = dense.send(dense.layout([name]), Given(update)), f"memory of {name!r}"
            pending, traffic = self._group.gather(sent.message, fixed=True, longest=0, what=what)
            self.ledger.book(traffic)
            messages = pending.wait(what)
            self._attempt(partial(dense.receive, sent, messages, update))
        self._attempt(dense.judge)
        error = self._verdict(dense, active=True).error or dense.finish()
        self._errors = []
        if error is not None:
            raise error
        norm = apply_(self._parameters, updates)
        forget_(self.channel, updates)
        return norm

    def detach(self, *, flush: bool = True) -> dict[str, Any]:
        """Take thinwire off the model: DDP averages gradients densely from now on, and may be attached anew.

        What is in the memory is flushed first, or with `flush=False` left in the state that is returned. Call it on
        every rank, between steps.
        """
        self._check_between_steps("detach")
        if flush:
            self.flush()
        plug = None if self._plug is None else self._plug()
        if plug is not None:
            plug.handle = None
        self._unwatch()
        return self.state_dict()

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """Exchange one bucket: what the comm hook does."""
        try:
            if bucket.index() == 0:
                self._begin()
            arrival = self._send(bucket)
            if bucket.is_last():
                self._end()
            return arrival.result
        except PeerLost:
            self._give_up()
            self._forget_use()
            raise

    def _begin(self) -> None:
        """Begin a step; one whose backward pass broke off is undone first."""
        self._give_up()
        self._threads = {threading.get_ident()}
        self._group.next_round(f"step {self.channel.step}")
        self._common.look(self._group)
        if self._step_sizes is not None:
            self.ledger.see(self._common.rates, self._step_sizes.peaks())
        self._warned = self._warned or warn_of_decay(self.channel, self._step_sizes, self.ledger.rate_fall)

    def _send(self, bucket: GradBucket) -> "_Arrival":
        flat = bucket.buffer().detach()  # with create_graph=True it is part of a graph
        if flat.is_cuda:
            self._threads.add(threading.main_thread().ident or 0)  # there autograd calls from threads of its own
        layout, order = self._bucket(bucket)
        gradient = order.logical(flat)
        scale = float(self._scaler.get_scale()) if self._scaler is not None and self._scaler.is_enabled() else 1.0
        given = Given(
            gradient,
            step_sizes=self._common.step_sizes,
            scale=scale,
            used=self._used_somewhere(layout, flat.device),
            moment=None if self._moments is None else self._moment(self._moments, layout, scale),
            measure=self.ledger.due(self.channel.step),
            mark=self._common.mark,
        )
        sent = self.channel.send(layout, given)
        what = f"bucket {bucket.index()}"
        pending = None
        try:
            pending, traffic = self._group.gather(
                sent.message, fixed=sent.fixed, longest=longest_message(layout), what=what
            )
            self.ledger.add(traffic, layout.numel, sent.norms, sent.elements)
        except WireError as error:  # a length that cannot be: every rank has heard it, and none gathers this bucket
            self._errors.append(error)
        self._arrivals.append(_Arrival(what, sent, pending, flat, gradient, order))
        return self._arrivals[-1]

    def _bucket(self, bucket: GradBucket) -> tuple[Layout, MemoryOrder]:
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        if names not in self._buckets:
            layout = self.channel.layout(names)
            self._buckets[names] = layout, MemoryOrder(layout, self._parameters)
        return self._buckets[names]

    def _used_somewhere(self, layout: Layout, device: torch.device) -> Sequence[bool] | None:
        """Which parameters some rank used this step; DDP drops the others' results, so nothing is sent for them."""
        if self._used is None:
            return None
        marks = torch.tensor([piece.name in self._used for piece in layout.pieces], device=device)
        return [bool(mark) for mark in self._group.any(marks).tolist()]

    def _moment(self, moments: SecondMoments, layout: Layout, scale: float) -> Tensor | None:
        """The bucket's second moments. What is wrong with them is kept until DDP is done, for other ranks wait."""
        errors: list[MomentError] = []
        terms = moments.terms(layout)
        moment = moments.take(layout, scale, errors)
        self._errors += errors
        try:
            moments.check_terms(layout, terms, self._group)
        except ThinwireError as error:
            self._errors.append(error)
        return moment

    def _end(self) -> None:
        """Receive all buckets, agree on whether the step is taken, and finish once DDP has written the gradients.

        This is done in the body of the last hook. A Python callback in a thread of the process group can outlive the
        group or the interpreter, and then ends the process. Callbacks at the end of a backward pass run in the order
        they were queued, and DDP queues the one that writes gradients after the last hook has returned: so ours queues
        a second one that finishes. A rank that ran out of data under `ddp.join()` calls the hooks outside any backward
        pass, and finishes at once; what was not finite was another rank's, which raises.
        """
        self._forget_use()
        self._receive_all()
        in_backward = torch._C._current_graph_task_id() != -1
        verdict = self._verdict(self.channel, active=in_backward)
        for arrival in self._arrivals:
            arrival.deliver(verdict)
        self._arrivals = []
        if in_backward:
            _at_end_of_backward(lambda: _at_end_of_backward(self._finish))
        else:
            with suppress(NonFiniteGradient):
                self._finish()

    def _forget_use(self) -> None:
        if self._used is not None:
            self._used.clear()

    def _receive_all(self) -> None:
        """Turn what has arrived into gradients, in the order it was sent. An error is kept for the verdict."""
        for arrival in self._arrivals:
            if arrival.pending is not None:
                messages = arrival.pending.wait(arrival.what)
                self._attempt(partial(self.channel.receive, arrival.sent, messages, arrival.gradient))
        self._attempt(self.channel.judge)

    def _attempt(self, reading: Callable[[], object]) -> None:
        """Do what may fail on this rank alone; the others wait for the verdict, and must hear of it."""
        try:
            reading()
        except ThinwireError as error:
            self._errors.append(error)
        except Exception as error:
            problem = WireError(
                f"rank {self._group.rank} could not read what it was sent: {type(error).__name__}: {error}"
            )
            problem.__cause__ = error
            self._errors.append(problem)

    def _verdict(self, channel: Channel, *, active: bool) -> Verdict:
        """Whether all ranks can take what a channel has received, and how many of them had data."""
        problem = self._errors[0] if self._errors else None
        verdict = Verdict.agreed(self._group, problem, channel.fault, active, self._common)
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
        if fault is not None and self._nonfinite == "raise":
            raise fault

    def _give_up(self) -> None:
        """Undo a step that neither finished nor will."""
        self._arrivals, self._errors = [], []
        self.channel.abandon()

    def _check_between_steps(self, what: str) -> None:
        """Refuse what would tear a step in two. One whose backward pass broke off is none: no pass of its is left."""
        here = torch._C._current_graph_task_id() == -1 and threading.get_ident() in self._threads
        if self.channel.moving and not here:
            raise StateError(
                f"{what} was called in the middle of step {self.channel.step}: call it between steps, from the thread "
                "that trains. (state_dict may be called at any moment: it gives the last finished step)"
            )


class _Arrival:
    """One bucket's exchange under way, and the future that DDP waits for."""

    def __init__(
        self, what: str, sent: Outgoing, pending: Pending | None, flat: Tensor, gradient: Tensor, order: MemoryOrder
    ) -> None:
        self.what, self.sent, self.pending = what, sent, pending
        self.flat, self.gradient, self._order = flat, gradient, order
        self.result: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)

    def deliver(self, verdict: Verdict) -> None:
        """Give DDP the exchanged gradient: NaN where the step is not taken."""
        if verdict.error is not None or verdict.fault is not None:
            self.flat.fill_(float("nan"))
        else:
            self._order.write_(self.flat, self.gradient)
            if verdict.factor != 1.0:
                self.flat.mul_(verdict.factor)
        self.result.set_result(self.flat)


def _watch_use(parameters: Mapping[str, Tensor], used: set[str]) -> list[Any]:
    """Hooks that put every parameter's name into a set as soon as it gets a gradient."""
    hooks = []
    for name, parameter in parameters.items():
        register: Any = parameter.register_post_accumulate_grad_hook
        hooks.append(register(lambda _, name=name: used.add(name)))
    return hooks


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward pass is done, after all callbacks that were queued before."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(callback)


def attach(
    ddp: torch.nn.Module,
    rule: Rule | str,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    moments: "Moments | None" = None,
    scaler: torch.amp.GradScaler | None = None,
    nonfinite: Literal["raise", "skip"] = "raise",
    seed: int = 0,
    ledger_every: int = 10,
    patience: float = 60.0,
) -> Handle:
    """Make a DistributedDataParallel model exchange its gradients by `rule` (or its text), and return the handle.

    Call it on every rank, once, after the optimizer is built. `optimizer` tells the step sizes that `MemSGD` needs,
    `moments=thinwire.moments.watch(ddp)` the second moments that `VGC` needs; `scaler` the loss scale, if there is one.
    A gradient with NaN or infinity on any rank raises `NonFiniteGradient` on all at the end of `backward()`, or with
    `nonfinite="skip"` gives NaN gradients, so that the scaler skips the step; either way no state advances. Ranks that
    do not come to `attach` within `patience` seconds of each other are named.
    """
    module = _unwrapped(ddp)
    group = Group(module.process_group)
    assemble(group.group, "attach", timedelta(seconds=patience))
    with agreement(group) as mine:
        _check_module(module)
        handle = _handle(module, group, rule_from(rule), optimizer, moments, scaler, nonfinite, seed, ledger_every)
        mine |= _description(handle, scaler, nonfinite)
    handle.channel.run = group.everyone([secrets.randbits(62)], "attach")[0][0]
    handle._plug = weakref.ref(plug_in(module, handle))
    return handle


def _handle(
    ddp: DistributedDataParallel,
    group: Group,
    rule: Rule,
    optimizer: torch.optim.Optimizer | None,
    moments: "Moments | None",
    scaler: torch.amp.GradScaler | None,
    nonfinite: str,
    seed: int,
    ledger_every: int,
) -> Handle:
    if nonfinite not in ("raise", "skip"):
        raise AttachError(f'nonfinite must be "raise" or "skip", got {nonfinite!r}')
    parameters = _trained(ddp)
    channel = Channel(rule, parameters, rank=group.rank, size=group.size, seed=seed)
    step_sizes = StepSizes(parameters, optimizer) if optimizer is not None else None
    check_need(channel, Need.STEP_SIZE, step_sizes is not None, "attach(ddp, rule, optimizer)")
    remedy = "attach(ddp, rule, moments=thinwire.moments.watch(ddp))"
    check_need(channel, Need.MOMENTS, moments is not None, remedy)
    check_one_backward(channel)
    warn_of_optimizer(channel, step_sizes)
    second = None if moments is None else SecondMoments(channel, moments, parameters)
    ledger = Ledger(group.size, every=ledger_every)
    return Handle(ddp, channel, group, step_sizes, second, scaler, nonfinite, ledger)


def _trained(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    """The parameters that DDP exchanges, by the names they have in the plain module (torch.compile adds a prefix)."""
    return {
        name.replace("_orig_mod.", ""): parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    }


def _unwrapped(ddp: torch.nn.Module) -> DistributedDataParallel:
    """The DDP model itself, also from inside torch.compile(ddp)."""
    module = getattr(ddp, "_orig_mod", ddp)
    if not isinstance(module, DistributedDataParallel):
        if any("FSDP" in kind.__name__ or "FullySharded" in kind.__name__ for kind in type(module).__mro__):
            raise AttachError(
                f"attach does not serve FSDP ({type(module).__name__}), whose ranks hold shards of parameters: if the "
                "model fits on every rank, use torch.nn.parallel.DistributedDataParallel in place of it"
            )
        raise AttachError(
            "attach takes a torch.nn.parallel.DistributedDataParallel, "
            f"got {type(module).__name__}: wrap the model first, DDP(model)"
        )
    return module


def _check_module(ddp: DistributedDataParallel) -> None:
    if getattr(ddp, "_use_python_reducer", False):
        raise AttachError(
            "torch's experimental python_reducer calls hooks parameter by parameter, outside DDP's buckets, which "
            'thinwire does not serve: set torch._dynamo.config.optimize_ddp = "ddp_optimizer" (the default) before '
            "building DDP"
        )
    if ddp.mixed_precision is not None:
        raise AttachError("DDP's mixed_precision brings a comm hook of its own: use torch.autocast instead")
    for name, module in ddp.module.named_modules():
        if getattr(module, "sparse", False) is True:
            raise AttachError(f"module {name!r} makes sparse gradients, which cannot be compressed: set sparse=False")
    for name, parameter in _trained(ddp).items():
        if hasattr(parameter, "_in_backward_optimizers"):
            raise AttachError(
                f"parameter {name!r} has an optimizer within its backward pass, for which DDP takes its only hook: "
                "step an ordinary optimizer after backward()"
            )
        if not parameter.is_floating_point():
            raise AttachError(
                f"parameter {name!r} is {parameter.dtype}; only real floating-point ones can be exchanged"
            )
    plug_of(ddp)


def _description(handle: Handle, scaler: torch.amp.GradScaler | None, nonfinite: str) -> dict[str, str]:
    """What must be the same on every rank, as texts that an error can show."""
    channel = handle.channel
    settings = {
        "rule": str(channel.rule),
        "seed": str(channel.seed),
        "nonfinite": nonfinite,
        "scaler": str(scaler is not None and scaler.is_enabled()),
        "find_unused_parameters or static_graph": str(handle.watches_use),
    }
    settings |= {} if handle._step_sizes is None else handle._step_sizes.settings()
    return settings | {f"parameter {n!r}": f"{list(i.shape)} {i.dtype}" for n, i in channel.parameters.items()}
