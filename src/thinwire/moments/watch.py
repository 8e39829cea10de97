"""Watch a model: the second moment of every parameter, ready when its gradient is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.errors import ConfigError, MomentError
from thinwire.feedback import Need, Rule, rule_of
from thinwire.moments.hooks import Hooks, take_off
from thinwire.moments.plan import Entry, Exact, MicroBatches, Plan, Source, check_initialised, plain, plan
from thinwire.moments.slots import ExactSlot, MicroBatchSlot, Slot
from thinwire.spec import rule_from

Reduction = Literal["mean", "sum"]


class Moments:
    """What `watch` returns: q = Σ_z c_z² for each parameter, where the rows c_z of all samples sum to `.grad`.

    c_z is ∇f_z / |B| for a mean over the batch, ∇f_z for a sum: q always has the units of `.grad` squared.

    Several passes before a step (accumulation, `no_sync`) add up as the gradients do in `.grad`: their samples together
    are the batch, and each loss must be weighted as for the gradient, with its share of the samples (loss / k for k
    equal passes). Where `.grad` is None (after `zero_grad()`, but not with `set_to_none=False`: call `clear`), older
    passes are forgotten: those of a step that was given up.
    If the model is called several times before *one* backward pass, equal places in the batches are one sample.
    """

    def __init__(self, model: nn.Module, plan: Plan, reduction: Reduction, checks: int, batch: int | None) -> None:
        # Weak, for DDP's reducer holds the handle, the handle these moments, and no garbage collector sees through C++.
        self._ddp = weakref.ref(model) if isinstance(model, DistributedDataParallel) else None
        self._model = _module(model)
        self._plan, self._reduction, self._batch = plan, reduction, batch
        self._probes = checks > 0
        parameters = {plain(name): parameter for name, parameter in self._model.named_parameters()}
        self._slots = {entry.name: _slot(entry, parameters[entry.name], checks) for entry in plan}
        self._hooks = Hooks(self._model, plan, self._slots, batch)
        # Hooks that nobody can read go too, or they would pile up on a model that is watched for one DDP after another.
        self._removal = weakref.finalize(self, take_off, self._hooks.handles)
        self._removal.atexit = False

    def plan(self) -> Plan:
        """For each parameter: where its moment comes from, at what cost, and why."""
        return self._plan

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that are watched: those that were trained when `watch` was called."""
        return tuple(self._slots)

    def watches(self, name: str, parameter: Tensor) -> bool:
        """Whether this very parameter is watched under this name."""
        return name in self._slots and self._slots[name].parameter is parameter

    def of(self, name: str, scale: float | Tensor = 1.0) -> Tensor:
        """A copy of q, in the parameter's shape, float32 at least; zero if the parameter got no gradient.

        `scale` is the loss scale, if the loss was multiplied by one: q is divided by its square.
        """
        return self._unscaled(self._slot(name), scale).clone()

    def pop(self, name: str, scale: float | Tensor = 1.0) -> Tensor:
        """q of one parameter, which is then cleared: what a comm hook asks for.

        It stays where it was added up, so the parameter's next gradient overwrites it: `take` and `of` give copies.
        """
        slot = self._slot(name)
        q = self._unscaled(slot, scale)
        slot.clear()
        return q

    def take(self, scale: float | Tensor = 1.0) -> dict[str, Tensor]:
        """A copy of q of every parameter; then all are cleared."""
        return {name: self.pop(name, scale).clone() for name in self._slots}

    def terms(self, name: str) -> int:
        """How many gradients were squared for q: the n of the paper's criterion, where r² / v ≤ n."""
        slot = self._slot(name)
        slot.ready()
        return slot.terms

    def leave_errors(self) -> None:
        """Raise errors only where moments are read: an engine reads them all, and tells every rank."""
        self._hooks.quiet = True

    def clear(self) -> None:
        """Forget everything, also what is pending from a backward pass that broke off."""
        for slot in self._slots.values():
            slot.clear()

    def backward(self, loss_of: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        """One backward pass for each micro-batch of the batch; gives the loss of the whole batch.

        `loss_of(*part)` computes the loss of a part with the stated reduction, by the model that is watched. `.grad`
        becomes the gradient of the whole batch, and a watched DDP model exchanges gradients with the last part only.
        The first call tries out the reduction first, as `check` does, unless `watch` was told `checks=0`: with another
        one the parts would be weighted wrongly, gradient and all.
        """
        parts = next((e.source.parts for e in self._plan if isinstance(e.source, MicroBatches)), None)
        if parts is None:
            raise MomentError("no parameter is served by micro-batches: call loss.backward() as usual")
        self._check_batch(batch)
        self._probe_once(loss_of, batch)
        ddp = self._ddp() if self._ddp is not None else None
        pieces, losses = split(batch, parts), []
        with self._hooks.any_batch():
            for number, piece in enumerate(pieces, 1):
                share = len(piece[0]) / len(batch[0]) if self._reduction == "mean" else 1.0
                with ddp.no_sync() if ddp is not None and number < len(pieces) else nullcontext():
                    loss = loss_of(*piece) * share
                    torch.autograd.backward(loss)
                losses.append(loss.detach())
        return torch.stack(losses).sum()

    def check(self, loss_of: Callable[..., Tensor], *batch: Tensor) -> None:
        """Try out whether the loss has the stated reduction and every module sees the batch; else a `MomentError`.

        A batch that is given twice leaves a mean as it is and doubles a sum. The probe runs in evaluation mode, without
        gradients, and leaves the random numbers as they were. With exact sources nobody else tries it out: call it once
        before training, on every rank.
        """
        self._compare(*self._probe_both(loss_of, batch))

    def _probe_once(self, loss_of: Callable[..., Tensor], batch: Sequence[Tensor]) -> None:
        """On all ranks alike, for a DDP model may broadcast its buffers; a loss that is not finite says nothing."""
        if self._probes:
            self._probes = False
            loss, doubled = self._probe_both(loss_of, batch)
            if torch.isfinite(loss + doubled):
                self._compare(loss, doubled)

    def _probe_both(self, loss_of: Callable[..., Tensor], batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of the batch, and of the batch twice."""
        return self._probe(loss_of, batch), self._probe(loss_of, [torch.cat([t, t]) for t in batch])

    def _compare(self, loss: Tensor, doubled: Tensor) -> None:
        expected = loss if self._reduction == "mean" else 2 * loss
        bound = torch.finfo(loss.dtype).eps ** 0.5 * (abs(expected) + abs(doubled))
        if not abs(doubled - expected) <= bound:
            raise MomentError(
                f'with reduction "{self._reduction}" the same batch twice should have a loss of {expected:.6g}, '
                f"and has {doubled:.6g} (once: {loss:.6g}). A mean stays as it is, a sum doubles; a loss that "
                "compares samples with each other does neither, and has no per-sample gradients"
            )

    def remove(self) -> None:
        """Take all hooks off the model. What was computed can still be read."""
        self._removal()

    def __enter__(self) -> Moments:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _check_batch(self, batch: Sequence[Tensor]) -> None:
        if self._batch is not None and batch and len(batch[0]) != self._batch:
            raise MomentError(
                f"backward was given {len(batch[0])} samples (a tensor of shape {tuple(batch[0].shape)}), but watch "
                f"was told batch={self._batch}: samples lie in dimension 0. Move them there, or state another batch"
            )

    def _slot(self, name: str) -> Slot:
        if name not in self._slots:
            raise ConfigError(f"no parameter {name!r} is watched; watched are {', '.join(self._slots)}")
        return self._slots[name]

    def _unscaled(self, slot: Slot, scale: float | Tensor) -> Tensor:
        with torch.no_grad():
            q = slot.read()
            return q if isinstance(scale, int | float) and scale == 1 else q / scale**2

    def _probe(self, loss_of: Callable[..., Tensor], batch: Sequence[Tensor]) -> Tensor:
        modes = {module: module.training for module in self._model.modules()}
        self._model.eval()
        self._hooks.check_every_call = True
        devices = {p.device for p in self._model.parameters() if p.is_cuda}
        try:
            with self._hooks.any_batch(), torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
                return loss_of(*batch).detach()
        finally:
            self._hooks.check_every_call = False
            for module, mode in modes.items():
                module.training = mode


def watch(
    model: nn.Module,
    *,
    rule: Rule | str | None = None,
    reduction: Reduction = "mean",
    sources: Sequence[Source] = (Exact(),),
    checks: int = 1,
    batch: int | None = None,
) -> Moments:
    """Have the second moments of a model's per-sample gradients computed in every backward pass.

    Dimension 0 of every module's input is the batch: use `batch_first` modules. Time-major input (T, B, features)
    cannot be told from T samples, unless `batch` states how many samples each call of the model that is trained (or
    `Moments.backward`) is given: another number is then a `MomentError`.

    `rule` leaves out the parameters whose rule does not need them (all, for most rules). `sources` are tried in order
    for each parameter; one that none can serve is an `AttachError`.
    `reduction` is how the loss goes over the samples of the batch. Micro-batches are weighted by it, and
    `Moments.check` tries it out; exact moments do not depend on it, for they have the units of `.grad` squared.

    In its first `checks` passes the per-sample gradients of each exact parameter are added up and compared with its
    gradient: a use that was not seen (a function called with the parameter, a penalty on it) is a `MomentError` at the
    end of that pass, as far as it is larger than what rounding can explain.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> moments = watch(model)
    >>> model(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).mean().backward()
    >>> model.weight.grad, moments.pop("weight")
    (tensor([[1., 0.]]), tensor([[0.5000, 2.0000]]))
    """
    if reduction not in ("mean", "sum"):
        raise ConfigError(f'reduction must be "mean" or "sum", got {reduction!r}')
    if isinstance(checks, bool) or not isinstance(checks, int) or checks < 0:
        raise ConfigError(f"checks must be a whole number, 0 or more, got {checks!r}")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ConfigError(f"batch must be a whole number of samples, 1 or more, got {batch!r}")
    check_initialised(_module(model))
    planned = plan(_module(model), sources, None if rule is None else _needed(_module(model), rule_from(rule)))
    planned.check()
    return Moments(model, planned, reduction, checks, batch)


def split(batch: Sequence[Tensor], parts: int) -> list[tuple[Tensor, ...]]:
    """The batch in micro-batches of nearly equal size, at least one sample each.

    >>> [len(x) for x, in split([torch.zeros(10, 2)], 4)]
    [3, 3, 2, 2]
    """
    sizes = sorted({len(tensor) for tensor in batch})
    if len(sizes) != 1 or sizes == [0]:
        raise MomentError(f"the tensors of a batch must have the same, positive number of samples, got {sizes}")
    return list(zip(*(tensor.tensor_split(min(parts, len(tensor))) for tensor in batch), strict=True))


def _needed(model: nn.Module, rule: Rule) -> set[str]:
    """The trained parameters whose rule needs second moments."""
    named = ((plain(name), p.numel()) for name, p in model.named_parameters() if p.requires_grad)
    return {name for name, numel in named if Need.MOMENTS in rule_of(rule, name, numel).needs}


def _module(model: nn.Module) -> nn.Module:
    """The plain module, also of a DDP model."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _slot(entry: Entry, parameter: nn.Parameter, checks: int) -> Slot:
    match entry.source:
        case Exact():
            return ExactSlot(entry.name, parameter, checks)
        case MicroBatches(parts):
            return MicroBatchSlot(entry.name, parameter, parts)
    raise AssertionError("a plan that was checked has a source for every parameter")
