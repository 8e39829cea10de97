"""What a handle exchanges: a model's parameters whole, or the shards of them that are this rank's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from thinwire.channel import Channel
from thinwire.checkpoint import save
from thinwire.engines.ddp.attachment import trained
from thinwire.engines.flush import apply_
from thinwire.exchange import Exchange

if TYPE_CHECKING:
    from thinwire.engines.sites.resharding import Resharding


class Bucket(Protocol):
    """Some of the tensors that a handle holds, with their gradients laid out one behind the other; as DDP makes them.

    All ranks give a handle the same buckets in the same order in every step: the first has the index 0.
    """

    def index(self) -> int:
        """Its place in the order."""

    def is_last(self) -> bool:
        """Whether the step ends with it."""

    def parameters(self) -> Sequence[Tensor]:
        """Whose gradients it holds."""

    def buffer(self) -> Tensor:
        """The gradients; where the step is done, what was exchanged."""


@dataclass(frozen=True)
class Holding:
    """What a handle is made for."""

    named: Mapping[str, Tensor]
    """The parameters as the optimizer has them, by the names they have in the model."""
    parts: Mapping[str, Tensor]
    """What this rank exchanges of each: all of it, or its shard."""
    council: Exchange
    """All ranks that take a step together or not at all: those of the exchange, or where that joins the holders of one
    shard, those of all shards."""
    apply: Callable[[Mapping[str, Tensor]], float]
    """Subtract flat updates; gives their norm."""
    ddp: weakref.ref[DistributedDataParallel] | None = None
    """Whose buckets they are; weak, for the model holds the handle, by ways that the garbage collector does not see."""
    shard: str = ""
    """Which shard, in words; empty where parameters are whole."""
    resharding: Resharding | None = None
    """How states of shards are saved."""

    @staticmethod
    def of_ddp(ddp: DistributedDataParallel, exchange: Exchange) -> Holding:
        """The parameters of a DDP model, whole."""
        parameters = trained(ddp)
        return Holding(parameters, parameters, exchange, partial(apply_, parameters), weakref.ref(ddp))

    @property
    def watches_use(self) -> bool:
        """Whether ranks tell each other which parameters they used."""
        ddp = None if self.ddp is None else self.ddp()
        return ddp is not None and (bool(getattr(ddp, "static_graph", False)) or ddp.find_unused_parameters)

    def describe(self) -> dict[str, str]:
        """The parameters, as texts that are the same on every rank."""
        return {f"parameter {name!r}": f"{list(each.shape)} {each.dtype}" for name, each in self.named.items()}

    def save(self, channel: Channel) -> dict[str, Any]:
        """A channel's state as it is kept."""
        state = save(channel)
        return state if self.resharding is None else self.resharding.widen(channel, state)

    def kept(self, channel: Channel, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state of a channel that was kept so."""
        return state if self.resharding is None else self.resharding.narrow(channel, state)


def watch_use(parameters: Mapping[str, Tensor], used: set[str]) -> list[Any]:
    """Hooks that put every parameter's name into a set as soon as it gets a gradient."""
    hooks = []
    for name, parameter in parameters.items():
        register: Any = parameter.register_post_accumulate_grad_hook
        hooks.append(register(lambda _, name=name: used.add(name)))
    return hooks
