"""One line for DistributedDataParallel: a comm hook that exchanges buckets through a channel."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.channel import Channel, Outgoing
from thinwire.checkpoint import OnResize, save
from thinwire.engines.agreement import agreement, load_together_
from thinwire.engines.needs import check_need, check_one_backward
from thinwire.engines.second_moments import SecondMoments
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError, MomentError, NonFiniteGradient, ThinwireError
from thinwire.exchange import Group, Pending
from thinwire.feedback import Need, Rule, as_rule
from thinwire.layout import Layout
from thinwire.ledger import Ledger

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
        self._group, self._step_sizes, self._moments = group, step_sizes, moments
        self._scaler, self._nonfinite = scaler, nonfinite
        self._names = {id(parameter): name for name, parameter in _trained(ddp).items()}
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._errors: list[ThinwireError] = []
        self._arrivals: list[_Arrival] = []
        self._unfinished = False
        self._static = bool(getattr(ddp, "static_graph", False))
        self._used: set[str] | None = None
        if self._static or ddp.find_unused_parameters:
            self._used, hooks = _watch_use(ddp)
            # The hooks go with the handle, or they would pile up on a model that is attached once after another.
            weakref.finalize(self, _take_off, hooks).atexit = False

    @property
    def watches_use(self) -> bool:
        """Whether ranks agree at each step on which parameters were used."""
        return self._used is not None

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        return self.channel.rule

    def state_dict(self) -> dict[str, Any]:
        """This rank's state. Every rank must save its own: memories differ from rank to rank."""
        self._settle()
        return save(self.channel)

    def load_state_dict(self, state: Mapping[str, Any], *, on_resize: OnResize = "raise") -> None:
        """Load this rank's state, or the merged states of another number of ranks (see `merge_states`).

        Call it on every rank: all load, or (with a `StateError` on each) none.
        """
        self._settle()
        load_together_(self._group, self.channel, state, on_resize)

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """Exchange one bucket: what the comm hook does."""
        if bucket.index() == 0:
            self._settle()
            self._group.next_round()
        flat = bucket.buffer().detach()  # under create_graph it has a history
        layout = self._layout(bucket)
        scale = float(self._scaler.get_scale()) if self._scaler is not None and self._scaler.is_enabled() else 1.0
        sent = self.channel.send(
            layout,
            flat,
            step_sizes=self._step_sizes.now() if self._step_sizes else None,
            scale=scale,
            used=self._used_somewhere(layout, flat.device),
            moment=None if self._moments is None else self._moment(self._moments, layout, scale),
            measure=self.ledger.due(self.channel.step),
        )
        pending, traffic = self._group.gather(sent.message, fixed=sent.fixed)
        self.ledger.add(traffic, layout.numel, sent.norms, sent.elements)
        arrival = _Arrival(sent, pending, flat)
        self._arrivals.append(arrival)
        if bucket.is_last() and self._used is not None:
            self._used.clear()
        self._proceed(last=bucket.is_last())
        return arrival.result

    def _proceed(self, *, last: bool) -> None:
        """Have the answers received and the step finished, as late as DDP allows.

        Callbacks at the end of a backward pass run in the order they were queued, and DDP queues the one that waits for
        the buckets after the last hook has returned: so ours receives, and queues a second one that finishes. But a
        static graph's first step calls the hooks from DDP's last callback, and a rank that ran out of data under
        `ddp.join()` calls them outside any backward pass: there the answers are needed at once.
        """
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and not (self._static and self.ledger.steps == 0):
            if last:
                _at_end_of_backward(self._end_backward)
            return
        self._receive_all()
        if last and in_backward:
            _at_end_of_backward(self._end_backward)
        elif last:
            self._unfinished = True

    def _layout(self, bucket: GradBucket) -> Layout:
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        if names not in self._layouts:
            self._layouts[names] = self.channel.layout(names)
        return self._layouts[names]

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

    def _receive_all(self) -> None:
        """Turn what has arrived into gradients, in the order it was sent.

        This is done in the thread of the backward pass: a Python callback in a thread of the process group can outlive
        the group or the interpreter, and then ends the process. An error is kept until DDP is done.
        """
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            messages = arrival.pending.wait()
            try:
                self.channel.receive(arrival.sent, messages, arrival.flat)
            except ThinwireError as error:
                self._errors.append(error)
                arrival.flat.fill_(float("nan"))
        try:
            self.channel.judge()
        except ThinwireError as error:
            self._errors.append(error)
        for arrival in arrivals:
            arrival.result.set_result(arrival.flat)

    def _end_backward(self) -> None:
        """Receive, and finish once DDP has written the gradients."""
        self._receive_all()
        _at_end_of_backward(self._finish)

    def _settle(self) -> None:
        """Finish a step that could not finish by itself; undo one whose backward pass broke off.

        Such a step was another rank's: if its gradient was not finite, that rank has raised, and nothing is left to do.
        """
        if self._unfinished:
            self._unfinished = False
            with suppress(NonFiniteGradient):
                self._finish()
        self._arrivals.clear()
        self._errors.clear()
        self.channel.abandon()

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


class _Arrival:
    """One bucket's exchange under way, and the future that DDP waits for."""

    def __init__(self, sent: Outgoing, pending: Pending, flat: Tensor) -> None:
        self.sent, self.pending, self.flat = sent, pending, flat
        self.result: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)


def _watch_use(ddp: DistributedDataParallel) -> tuple[set[str], list[Any]]:
    """A set that names every parameter as soon as it gets a gradient, and the hooks that do it.

    (No handle in them: DDP would never be freed.)
    """
    used: set[str] = set()
    hooks = []
    for name, parameter in _trained(ddp).items():
        hook = parameter.register_post_accumulate_grad_hook
        hooks.append(hook(lambda _, name=name: used.add(name)))  # type: ignore[no-untyped-call]
    return used, hooks


def _take_off(hooks: Sequence[Any]) -> None:
    """Remove hooks from their parameters, if these are still there."""
    for hook in hooks:
        hook.remove()


def _at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward pass is done, after all callbacks that were queued before."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(callback)


def comm_hook(handle: Handle, bucket: GradBucket) -> Future[Tensor]:
    """The hook that DDP calls for each bucket; all is in the handle."""
    return handle.exchange(bucket)


def attach(
    ddp: torch.nn.Module,
    rule: Rule,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    moments: "Moments | None" = None,
    scaler: torch.amp.GradScaler | None = None,
    nonfinite: Literal["raise", "skip"] = "raise",
    seed: int = 0,
    ledger_every: int = 10,
) -> Handle:
    """Make a DistributedDataParallel model exchange its gradients by `rule`, and return the handle.

    Call it on every rank, once, after the optimizer is built. `optimizer` tells the step sizes that `MemSGD` needs,
    `moments=thinwire.moments.watch(ddp)` the second moments that `VGC` needs; `scaler` the loss scale, if there is one.
    A gradient with NaN or infinity on any rank raises `NonFiniteGradient` on all at the end of `backward()`, or with
    `nonfinite="skip"` gives NaN gradients, so that the scaler skips the step; either way no state advances.
    """
    module = _unwrapped(ddp)
    group = Group(module.process_group)
    with agreement(group) as mine:
        _check_module(module)
        handle = _handle(module, group, as_rule(rule), optimizer, moments, scaler, nonfinite, seed, ledger_every)
        mine |= _description(handle, scaler, nonfinite)
    module.register_comm_hook(handle, comm_hook)
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
        if not parameter.is_floating_point():
            raise AttachError(
                f"parameter {name!r} is {parameter.dtype}; only real floating-point ones can be exchanged"
            )
    if getattr(ddp, "_comm_hooks", []):
        raise AttachError("this DDP model has a comm hook already, and DDP takes only one: build a new DDP model")


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
    return settings | {f"parameter {n!r}": f"{list(i.shape)} {i.dtype}" for n, i in channel.parameters.items()}
