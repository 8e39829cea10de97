"""The hooks that fill the slots while a model is trained.

forward hook of a module       keeps the input, as autograd keeps what it needs itself
hook on the module's output    gets δ = ∂L/∂output when the backward pass comes to it
hook on the parameter          runs when all uses have given their gradient, before it is accumulated, and so before
                               DDP can hand the parameter's bucket to a comm hook: here the squares are added up

What goes wrong inside a backward pass is kept with the slot, and raised by whoever reads it: an error in the middle of
a pass on one rank would leave the others waiting for its buckets. At the end of the pass it is raised all the same,
unless an engine has taken that upon itself (`quiet`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.errors import MomentError
from thinwire.moments.layer import Layer
from thinwire.moments.plan import Plan, plain
from thinwire.moments.slots import Arrival, Call, ExactSlot, Slot

Served = list[tuple[str, ExactSlot]]
"""A module's exact parameters, by their names in it."""


class Hooks:
    """All hooks on one model, and which backward pass is running."""

    def __init__(self, model: nn.Module, plan: Plan, slots: Mapping[str, Slot], batch: int | None) -> None:
        self._model, self._slots = model, slots
        self._batch = batch
        self._served = _served(plan, slots)
        self._size: int | None = None
        self._backward_seen = False
        self._outer: int | None = None
        self.quiet = False
        """An engine reads every slot and speaks of its error to all ranks."""
        self._failure: MomentError | None = None
        self.check_every_call = False
        """Compare the leading dimension of every call with the batch, not only of those that get gradients."""
        self.handles = self._install({id(p.module): p.layer for entry in plan for p in entry.places if p.layer})

    @contextmanager
    def any_batch(self) -> Iterator[None]:
        """Calls tell the size of the batch themselves: they are given parts of it, or a multiple."""
        stated, self._batch, self._size = self._batch, None, None
        try:
            yield
        finally:
            self._batch = stated

    def __reduce__(self) -> tuple[Callable[[], Hooks], tuple[()]]:
        """Copies of the model (`deepcopy`, a file) carry its hooks, but are not watched and do not keep it alive."""
        return _of_no_model, ()

    def _install(self, layers: Mapping[int, Layer]) -> list[Any]:
        model: Any = self._model
        handles = [model.register_forward_pre_hook(self._before_model, with_kwargs=True, prepend=True)]
        microbatches = any(not isinstance(slot, ExactSlot) for slot in self._slots.values())
        for module in model.modules():
            if id(module) in self._served:
                hook = _outside_graphs(partial(self._after_layer, layers[id(module)]))
                handles.append(module.register_forward_hook(hook, with_kwargs=True, prepend=True))
            elif microbatches:
                handles.append(module.register_forward_hook(self._after_other))
        for slot in self._slots.values():
            parameter: Any = slot.parameter
            handles.append(parameter.register_hook(partial(self._on_gradient, slot)))
        return handles

    def _before_model(self, model: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
        if model is self._model and not _in_backward():
            self._next_pass()
            self._size = _leading((arguments, named)) if self._batch is None else self._batch

    def _after_layer(
        self, layer: Layer, module: nn.Module, arguments: Any, named: dict[str, Any], output: Tensor
    ) -> None:
        served = self._served.get(id(module))
        if served is None:
            return
        input = arguments[0] if arguments else next(iter(named.values()))
        if not self._recomputing():
            self._next_pass()
            for _, slot in served:
                slot.expected += 1
            if output.requires_grad or self.check_every_call:
                self._check_batch(layer, module, input)
        if output.requires_grad:
            kept = _keep(input) if any(layer.needs_input(local) for local, _ in served) else None
            tensor: Any = output
            tensor.register_hook(partial(self._on_delta, Call(layer, module, kept), served))

    def _after_other(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """A module without exact parameters still tells of a recomputation."""
        self._recomputing()

    def _on_delta(self, call: Call, served: Served, delta: Tensor) -> None:
        self._backward_seen = True
        arrival, turn = Arrival(call, delta), self._turn()
        for local, slot in served:
            slot.arrive(arrival, local, turn)

    def _on_gradient(self, slot: Slot, gradient: Tensor) -> None:
        self._backward_seen = True
        if slot.parameter.grad is None:  # nothing that this gradient will be added to: a new sum begins
            slot.forget()
        try:
            with _plain_arithmetic(gradient.device.type):
                slot.gradient(gradient, self._turn(), self._size)
        except MomentError as error:
            self._keep(slot, error)

    def _keep(self, slot: Slot, error: MomentError) -> None:
        """Leave an error with its slot until the pass is over."""
        slot.error = slot.error or error
        if self._failure is None and not self.quiet:
            self._failure = error
            _at_end_of_backward(lambda: _at_end_of_backward(self._raise))  # after all that DDP does at the end

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _next_pass(self) -> None:
        """A forward pass after a backward pass: what is still pending belongs to the old one."""
        self._outer = self._failure = None
        if self._backward_seen:
            self._backward_seen = False
            for slot in self._slots.values():
                slot.settle_late()
                slot.expected = 0

    def _recomputing(self) -> bool:
        """Whether a forward hook runs inside a backward pass: activation checkpointing.

        That pass is then the one that counts, for a reentrant checkpoint runs backward passes of its own within it.
        """
        if not _in_backward():
            return False
        if self._outer is None:
            self._outer = torch._C._current_graph_task_id()
            _at_end_of_backward(self._end_outer)
        return True

    def _end_outer(self) -> None:
        self._outer = None

    def _turn(self) -> int:
        """The number of the backward pass."""
        return self._outer if self._outer is not None else torch._C._current_graph_task_id()

    def _check_batch(self, layer: Layer, module: nn.Module, input: Tensor) -> None:
        if self._size is None:
            self._size = _leading(input)
        if not layer.batched(module, input) or input.shape[0] != self._size:
            path = next(plain(path) for path, candidate in self._model.named_modules() if candidate is module)
            raise MomentError(
                f"module {path!r} was called with an input of shape {tuple(input.shape)}, but the batch has "
                f"{self._size} samples, and per-sample gradients need them in dimension 0. Expand the input "
                "over the batch (for positions: ids.expand(len(x), -1)), use batch_first modules, or let "
                "micro-batches serve the parameters: sources=(MicroBatches(8),)"
            )


def _of_no_model() -> Hooks:
    """Hooks that do nothing."""
    return Hooks(nn.Identity(), Plan(()), {}, None)


def take_off(handles: list[Any]) -> None:
    """Remove hooks from what they were put on, if that is still there."""
    for handle in handles:
        handle.remove()
    handles.clear()


def _served(plan: Plan, slots: Mapping[str, Slot]) -> dict[int, Served]:
    """The exact parameters of each module, by the module's id."""
    served: dict[int, Served] = {}
    for entry in plan:
        slot = slots[entry.name]
        if isinstance(slot, ExactSlot):
            for place in entry.places:
                served.setdefault(id(place.module), []).append((place.local, slot))
    return served


class _Saved(torch.autograd.Function):
    """A node beside the graph, whose only purpose is what it saves."""

    @staticmethod
    def forward(ctx: Any, trigger: Tensor, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return trigger.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None


@cache
def _trigger() -> Tensor:
    """What makes autograd record a node: a tensor that requires a gradient."""
    return torch.empty(0, requires_grad=True)


def _keep(tensor: Tensor) -> Callable[[], Tensor]:
    """A function that gives the tensor back, once.

    It is saved through autograd, so checkpointing recomputes it, offloading fetches it, and a change in place since
    then is an error, all as for the tensors that the module itself saves; and it shares their memory.
    """
    beside = _Saved.apply(_trigger(), tensor.detach())  # type: ignore[no-untyped-call]

    def back() -> Tensor:
        # Through the output: before torch 2.13 a node dies with it, whoever holds the node's Python object.
        saved: tuple[Tensor, ...] = beside.grad_fn.saved_tensors
        if not saved:  # torch.compile has traced the hooks, and the node with them
            raise MomentError("the model was compiled while it was watched: call torch.compile first, then watch")
        return saved[0]

    return back


class _OutsideGraphs:
    """A hook as torch.compile leaves it alone, breaking the graph there; in a copy, the copy of the hook."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = hook
        self._disabled: Any = torch.compiler.disable(lambda *arguments: hook(*arguments))  # type: ignore[no-untyped-call]

    def __call__(self, *arguments: Any) -> None:
        self._disabled(*arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _outside_graphs, (self._hook,)


def _outside_graphs(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook outside the graphs of torch.compile, if that is there. (Its machinery takes seconds to import.)"""
    return _OutsideGraphs(hook) if "torch._dynamo" in sys.modules else hook


@contextmanager
def _plain_arithmetic(device: str) -> Iterator[None]:
    """Without gradients and autocast, though the backward pass may run with both. (Each costs 20 µs to enter.)"""
    if not (torch.is_grad_enabled() or torch.is_autocast_enabled(device)):
        yield
        return
    with torch.no_grad(), torch.autocast(device, enabled=False):
        yield


def _at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward pass is done, after all callbacks that were queued before."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _leading(arguments: Any) -> int | None:
    """The length of the first tensor in the arguments."""
    if isinstance(arguments, Tensor):
        return arguments.shape[0] if arguments.dim() else None
    if isinstance(arguments, Mapping):
        arguments = tuple(arguments.values())
    if isinstance(arguments, tuple | list):
        return next((size for size in map(_leading, arguments) if size is not None), None)
    return None
