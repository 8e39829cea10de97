"""What is known of one parameter's second moment so far: squares already added, and uses still to be added up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from thinwire.errors import MomentError
from thinwire.moments.layer import Layer, Setting
from thinwire.moments.rows import Rows, together, wide


class Call:
    """One call of an exact module: its input, and δ once the backward pass has come to it."""

    def __init__(self, layer: Layer, module: nn.Module, kept: Callable[[], Tensor] | None) -> None:
        self.layer, self.module, self.setting, self.kept = layer, module, Setting(module.training), kept


class Arrival:
    """A call that took part in a backward pass. Its input is fetched once, by the first parameter that needs it."""

    def __init__(self, call: Call, delta: Tensor) -> None:
        self._call, self._delta = call, delta.detach()
        self._input: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type that the module computed in: under autocast not its parameters'."""
        return self._delta.dtype

    def rows(self, local: str) -> Rows:
        call = self._call
        if self._input is None and call.kept is not None and call.layer.needs_input(local):
            self._input = call.kept()
        return call.layer.rows(call.module, local, call.setting, self._input, self._delta)


class Slot(ABC):
    """One parameter's Σ c², over all backward passes since it was last cleared."""

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        self.name, self.parameter = name, parameter
        self._squares: Tensor | None = None
        self.expected = 0
        """Calls of its modules in the forward pass: uses that may come."""
        self.error: MomentError | None = None
        """What went wrong inside a backward pass; raised by whoever asks for the moment."""
        self.clear()

    def clear(self) -> None:
        self.forget()
        self.turn: int | None = None
        """The backward pass that the latest gradient came from."""

    def forget(self) -> None:
        """Drop what was added up, but not what is pending."""
        self._empty, self.error = True, None
        self.terms = 0
        """How many gradients were squared: samples, or micro-batches."""

    @abstractmethod
    def gradient(self, gradient: Tensor, turn: int, size: int | None) -> None:
        """The parameter's gradient of this pass is about to be accumulated."""

    @abstractmethod
    def settle(self) -> None:
        """Add up what is pending."""

    def settle_late(self) -> None:
        """Add up what an old pass left pending; what goes wrong is kept for whoever reads."""
        try:
            self.settle()
        except MomentError as error:
            self.error = self.error or error

    def ready(self) -> None:
        """Add up what is pending; raise what went wrong before or now, again and again until it is cleared."""
        if self.error is None:
            self.settle()
        if self.error is not None:
            raise self.error

    def read(self) -> Tensor:
        """Σ c², zero where no gradient came; overwritten by the next gradient after `clear`."""
        self.ready()
        squares, beta = self._place()
        return squares if beta else squares.zero_()

    def _place(self) -> tuple[Tensor, int]:
        """Where squares are added up, and beta = 1 if there are some already.

        The place is kept from step to step: fresh pages from the kernel cost a fifth of the product that fills them
        (1024 × 1024, batch 64, two EPYC cores).
        """
        if self._squares is None:
            self._squares = self._new()
        beta, self._empty = int(not self._empty), False
        return self._squares, beta

    def _new(self) -> Tensor:
        (empty,) = wide(torch.empty_like(self.parameter, requires_grad=False, memory_format=torch.contiguous_format))
        return empty


class ExactSlot(Slot):
    """c_z of single samples. The uses of one backward pass are kept until all have come, and then squared together."""

    def __init__(self, name: str, parameter: nn.Parameter, checks: int) -> None:
        super().__init__(name, parameter)
        self._checks = checks

    def clear(self) -> None:
        super().clear()
        self._pending: list[tuple[Arrival, str]] = []
        self._whole: Tensor | None = None

    def arrive(self, arrival: Arrival, local: str, turn: int) -> None:
        if self.turn != turn:
            self.settle_late()
        self.turn = turn
        self._pending.append((arrival, local))

    def gradient(self, gradient: Tensor, turn: int, size: int | None) -> None:
        """All uses have come: square them. (Reentrant checkpoints get here several times a pass, with a part each.)"""
        if not self._pending or self.turn != turn:
            raise MomentError(
                f"parameter {self.name!r} has a gradient, but its module was not called: a function uses it directly. "
                "Call the module, or let micro-batches serve it: sources=(Exact(), MicroBatches(8)) with a module type "
                "that is not in the list of exact layers"
            )
        if self._checks > 0:
            self._whole = gradient.detach().clone() if self._whole is None else self._whole + gradient
        if len(self._pending) >= self.expected:
            self.settle()

    def settle(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        rows = together([arrival.rows(local) for arrival, local in pending], self.name)
        if self._whole is not None:
            self._check(rows, {arrival.dtype for arrival, _ in pending})
        rows.squares_(*self._place())
        self.terms += rows.samples

    def _check(self, rows: Rows, computed: set[torch.dtype]) -> None:
        """Σ_z c_z must be the gradient: else some use of the parameter was not seen.

        Both are sums of the same n terms in another order, and each errs in a number by at most n (ε / 2) M, to first
        order, M being the sum of the terms' absolute values: for equal terms that are added one by one, as some of
        torch's kernels do, the error comes near it. ε is that of the type that is added in, the gradient's for
        products, which have float32 sums under autocast too, else the coarsest. ε' is that of the types the modules
        `computed` in and of factors that are rounded first (TF32): two of each product and its result, in both sums,
        and as much again where a normalised input is formed anew. Of a result below the smallest number ω of a type
        nothing may be left. The bound: (n ε + 8 ε') ‖M‖ + 8 ω √d for d numbers.
        """
        whole, self._whole = self._whole, None
        assert whole is not None
        kinds = [torch.finfo(dtype) for dtype in computed | {whole.dtype, self.parameter.dtype}]
        coarsest, lost = max(kind.eps for kind in kinds), max(kind.tiny * kind.eps for kind in kinds)
        added = max(torch.finfo(whole.dtype).eps, torch.finfo(self.parameter.dtype).eps) if rows.epsilon else coarsest
        gap = (rows.total() - whole).norm()
        size = rows.magnitude().norm()
        bound = (rows.addends * added + 8 * max(coarsest, rows.epsilon)) * size + 8 * lost * whole.numel() ** 0.5
        if not torch.isfinite(gap + bound):
            return  # an overflow under a loss scaler: check the next pass
        if gap > bound:
            raise MomentError(
                f"parameter {self.name!r}: the per-sample gradients that were seen differ from its gradient by "
                f"{gap:.3g} (bound {bound:.3g}), so part of it comes from elsewhere: a function that uses the "
                "parameter directly, a penalty on it in the loss (leave weight decay to the optimizer), or a hook that "
                "changes the gradient"
            )
        self._checks -= 1


class MicroBatchSlot(Slot):
    """c_j = the gradient of one backward pass, over the passes of a step."""

    def __init__(self, name: str, parameter: nn.Parameter, parts: int) -> None:
        super().__init__(name, parameter)
        self._parts = parts

    def forget(self) -> None:
        super().forget()
        self.samples = 0

    def gradient(self, gradient: Tensor, turn: int, size: int | None) -> None:
        if self.turn == turn:
            raise MomentError(
                f"parameter {self.name!r} got its gradient in several pieces in one backward pass, which cannot be "
                "squared one by one: use checkpoint(..., use_reentrant=False)"
            )
        if size is None:
            raise MomentError("the size of the batch is not known: call the model that is watched, with a tensor")
        (gradient,) = wide(gradient.detach().to_dense() if gradient.is_sparse else gradient.detach())
        squares, beta = self._place()
        squares.addcmul_(gradient, gradient) if beta else torch.mul(gradient, gradient, out=squares)
        self.turn = turn
        self.terms += 1
        self.samples += size

    def settle(self) -> None:
        pass  # gradients are squared as they come

    def read(self) -> Tensor:
        if 0 < self.terms < min(self._parts, self.samples):
            raise MomentError(
                f"parameter {self.name!r} is served by {self._parts} micro-batches, but there were only {self.terms} "
                f"backward passes (over {self.samples} samples): run moments.backward(loss_of, *batch), or put all "
                "passes of a step but the last under ddp.no_sync()"
            )
        return super().read()
