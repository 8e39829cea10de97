"""What an FSDP2 model holds of thinwire: a hook in each module, and what they hand over in one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from thinwire.engines.ddp.handle import at_end_of_backward
from thinwire.engines.ddp.holding import Bucket
from thinwire.engines.fsdp.innards import ReducedTogether, local
from thinwire.engines.sites.shard import Shard
from thinwire.errors import AttachError, ThinwireError


class ExchangesShards(Protocol):
    """What exchanges buckets: a handle."""

    def exchange(self, bucket: Bucket) -> Future[Tensor]: ...

    def complain(self, error: ThinwireError) -> None:
        """Refuse the step under way, on all ranks."""


@dataclass(frozen=True)
class Flat:
    """One module's gradients, one behind the other without padding: a `Bucket`."""

    unit: Unit
    numbers: Tensor

    def index(self) -> int:
        """Its place in the order."""
        return self.unit.place

    def is_last(self) -> bool:
        """Whether it is the last."""
        return self.unit.is_last

    def parameters(self) -> Sequence[Tensor]:
        """The shards whose gradients these are."""
        return self.unit.parts

    def buffer(self) -> Tensor:
        """The gradients."""
        return self.numbers


@dataclass(frozen=True)
class Unit:
    """Parameters that FSDP reduces together, and their place in the order in which all ranks exchange them."""

    reduced: ReducedTogether
    place: int
    is_last: bool
    parameters: Sequence[nn.Parameter]
    parts: Sequence[Tensor]
    """Their shards on this rank."""
    shards: Sequence[Shard]

    def take_(self, output: Tensor) -> Flat | None:
        """The site's mean out of FSDP's flat tensor, of which zeros are left; None where parameters are missing."""
        if output.numel() != sum(shard.padded for shard in self.shards):
            return None
        padded = torch.split(output, [shard.padded for shard in self.shards])
        flat = torch.cat([each[: part.numel()] for each, part in zip(padded, self.parts, strict=True)])
        flat = flat.to(self._dtype)
        divisor = self.reduced.divisor(output.dtype)
        output.zero_()
        return Flat(self, flat if divisor == 1.0 else flat.div_(divisor))

    def nothing(self) -> Flat:
        """What a module says that took no part in the pass."""
        return Flat(
            self, torch.zeros(sum(p.numel() for p in self.parts), dtype=self._dtype, device=self.parts[0].device)
        )

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.parts[0].dtype == torch.float64 else torch.float32

    @torch.no_grad()
    def add_(self, exchanged: Tensor) -> None:
        """Add what was exchanged to the gradients, which FSDP has made of the zeros that were left to it."""
        pieces = torch.split(exchanged, [part.numel() for part in self.parts])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = local(parameter.grad)
            gradient.add_(piece.view(gradient.shape).to(gradient.dtype))


@final
class FsdpPlug:
    """The hooks of a model. Without a handle they average the sites' gradients as DDP would.

    Modules are exchanged in one order on all ranks, whatever the order in which a backward pass reaches them: one that
    comes early waits for those before it, and all that is left goes at the end of the pass. There the gradients are
    written, so that every rank takes the step or none.
    """

    def __init__(self, units: Sequence[Unit], group: Any) -> None:
        self.units, self._group = units, group
        self.handle: ExchangesShards | None = None
        self._pass = -1
        self._arrived: dict[int, Flat] = {}
        self._sent: list[Future[Tensor]] = []
        self._errors: list[Exception] = []
        self._late: set[int] = set()
        """Modules that give gradients more than once in a pass: they wait for its end."""
        for unit in units:
            unit.reduced.module.set_all_reduce_hook(Hook(self, unit))

    def unplug(self) -> None:
        """Take the handle out."""
        self.handle = None

    def take(self, unit: Unit, output: Tensor) -> None:
        """Take over a module's gradients: what its hook does."""
        self._begin_pass()
        flat = unit.take_(output.detach())
        if flat is None:
            self._errors.append(AttachError(_some_missing(unit)))
            output.zero_()
        elif unit.place not in self._arrived:
            self._arrived[unit.place] = flat
        else:
            self._take_again(unit, flat)
        self._send(at_end=False)

    def _begin_pass(self) -> None:
        """Forget a pass that broke off, if this is a new one."""
        here = torch._C._current_graph_task_id()
        if here != self._pass:
            self._pass, self._arrived, self._sent, self._errors = here, {}, [], []
            at_end_of_backward(lambda: at_end_of_backward(self._end))

    def _take_again(self, unit: Unit, flat: Flat) -> None:
        """More gradients of a module that was here in this pass already."""
        if unit.place < len(self._sent):
            self._late.add(unit.place)
            self._errors.append(AttachError(_twice(unit)))
        self._arrived[unit.place].numbers.add_(flat.numbers)

    def _send(self, *, at_end: bool) -> None:
        """Exchange all modules that are here and whose turn it is; the last one always waits for the end."""
        assert self.handle is not None
        try:
            while (place := len(self._sent)) < len(self.units):
                if not at_end and (place not in self._arrived or self._waits(place)):
                    return
                if place == len(self.units) - 1:
                    self._complain()
                self._sent.append(self.handle.exchange(self._arrived.get(place) or self.units[place].nothing()))
        except Exception as error:  # FSDP is not to be torn in the middle of its own work
            if at_end:
                raise
            self._errors.append(error)

    def _waits(self, place: int) -> bool:
        return place in self._late or place == len(self.units) - 1 or bool(self._lost)

    @property
    def _lost(self) -> list[Exception]:
        """Errors with which nothing can be exchanged any more."""
        return [error for error in self._errors if not isinstance(error, AttachError)]

    def _complain(self) -> None:
        assert self.handle is not None
        for error in self._errors:
            if isinstance(error, ThinwireError):
                self.handle.complain(error)

    def _end(self) -> None:
        """Exchange what is left, and write all gradients: FSDP has written its own."""
        try:
            if self._lost:
                raise self._lost[0]
            if any(unit.reduced.is_underway for unit in self.units):
                raise AttachError(NESTED)
            self._send(at_end=True)
            for unit, sent in zip(self.units, self._sent, strict=True):
                unit.add_(sent.value())
        finally:
            self._pass, self._arrived, self._sent, self._errors = -1, {}, [], []

    def average_(self, output: Tensor) -> None:
        """The dense mean over sites."""
        dist.all_reduce(output, group=self._group)
        output.div_(dist.get_world_size(self._group))


NESTED = (
    "a backward pass within the backward pass has ended, and FSDP's own has not: so does torch.utils.checkpoint with "
    "use_reentrant=True, by which gradients come in parts. Use use_reentrant=False"
)


@dataclass(frozen=True)
class Hook:
    """One module's all-reduce hook."""

    plug: FsdpPlug
    unit: Unit

    def __call__(self, output: Tensor) -> None:
        if self.plug.handle is None:
            self.plug.average_(output)
        else:
            self.plug.take(self.unit, output)


def _some_missing(unit: Unit) -> str:
    return (
        f"module {unit.reduced.name!r} has no gradient for some of its parameters, which FSDP then leaves out: freeze "
        "them (requires_grad_(False) before fully_shard), or call model.set_reduce_scatter_unused_params(True), by "
        "which FSDP puts zeros in their place. No rank takes the step"
    )


def _twice(unit: Unit) -> str:
    return (
        f"module {unit.reduced.name!r} gave gradients a second time in one backward pass, when the first were on their "
        "way. No rank takes the step: drop it (optimizer.zero_grad()) and go on, for from now on the module waits for "
        "the end of the pass"
    )
