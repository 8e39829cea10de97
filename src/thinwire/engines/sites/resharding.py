"""A rank's state as shards of whole tensors: what torch's distributed checkpoint cuts anew for another shard degree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as Placement

from thinwire.channel import Channel
from thinwire.engines.sites.shard import Shard
from thinwire.errors import StateError
from thinwire.feedback import Slot


@dataclass(frozen=True)
class Resharding:
    """Between a channel's state, which speaks of one rank's shards, and one that speaks of whole parameters.

    A slot with a number for each of the parameter's becomes a `DTensor` that is sharded as the parameter is. Those with
    fewer (a number for a whole shard, or for each of its rows and columns) belong to this very shard: they have it in
    their key, and fit no other shard degree.
    """

    shards: Mapping[str, Shard]
    mesh: DeviceMesh
    """The ranks of this site."""

    def widen(self, channel: Channel, state: Mapping[str, Any]) -> dict[str, Any]:
        """A channel's state, in terms of whole parameters."""
        slots = {}
        for key, slot, shard, tensor in self._slots(channel, state["slots"]):
            dim = _sharded_dim(slot, shard)
            slots[key if dim is not None else self._own(key)] = (
                tensor if dim is None else self._wide(tensor, dim, shard)
            )
        shapes = {name: list(shard.whole) for name, shard in self.shards.items()}
        return {**state, "shapes": shapes, "slots": slots}

    def narrow(self, channel: Channel, state: Mapping[str, Any]) -> dict[str, Any]:
        """What `widen` gave, in terms of this rank's shards."""
        if not isinstance(state, Mapping) or not all(
            isinstance(state.get(key), Mapping) for key in ("slots", "shapes")
        ):
            raise StateError("a state is a dict, as state_dict() gives it, with slots and shapes")
        self._check_shapes(state["shapes"])
        own = f"@{self._label}"
        saved = {key.removesuffix(own): tensor for key, tensor in state["slots"].items()}
        slots = dict(saved)
        for key, slot, shard, tensor in self._slots(channel, saved):
            dim = _sharded_dim(slot, shard)
            slots[key] = tensor if dim is None else _narrowed(key, tensor, dim, shard)
        shapes = {name: list(shard.shape) for name, shard in self.shards.items()}
        return {**state, "shapes": shapes, "slots": slots}

    @property
    def _label(self) -> str:
        shard = next(iter(self.shards.values()))
        return f"shard{shard.member}of{shard.members}"

    def _own(self, key: str) -> str:
        return f"{key}@{self._label}"

    def _slots(self, channel: Channel, saved: Mapping[str, Any]) -> Iterator[tuple[str, Slot, Shard, Any]]:
        """Each saved slot of this channel's rules: its key, what it is, whose it is, and its tensor."""
        kinds = {
            (slot.name, name): slot
            for store in (channel.worker, channel.server)
            for name in channel.parameters
            for slot in store.slots_of(name)
        }
        for key, tensor in saved.items():
            kind, name = key.split("/")[0], key.rpartition("/")[2]
            if (kind, name) in kinds:
                yield key, kinds[kind, name], self.shards[name], tensor

    def _wide(self, tensor: Tensor, dim: int, shard: Shard) -> DTensor:
        whole = (*tensor.shape[: tensor.ndim - len(shard.whole)], *shard.whole)
        stride = tensor.new_empty(whole, device="meta").stride()
        return DTensor.from_local(
            tensor, self.mesh, [Placement(dim)], run_check=False, shape=tensor.new_empty(whole, device="meta").shape,
            stride=stride,
        )  # fmt: skip

    def _check_shapes(self, theirs: Mapping[str, Any]) -> None:
        for name, shard in self.shards.items():
            if list(theirs.get(name, ())) != list(shard.whole):
                raise StateError(
                    f"the state's parameters are not this model's: {name!r} has shape {list(shard.whole)} here and "
                    f"{theirs.get(name, 'none')} in the state"
                )


def _sharded_dim(slot: Slot, shard: Shard) -> int | None:
    """The dimension in which a slot's tensor is cut; None of one that is no part of a whole."""
    return None if slot.single or slot.factored else shard.dim + bool(slot.copies)


def _narrowed(key: str, tensor: Any, dim: int, shard: Shard) -> Tensor:
    """This rank's part of a saved tensor."""
    if not isinstance(tensor, Tensor):
        raise StateError(f"{key!r} is no tensor but {type(tensor).__name__}: pass what handle.state_dict() gave")
    if not isinstance(tensor, DTensor):
        behind = tensor.ndim - len(shard.whole)
        if tuple(tensor.shape[max(behind, 0) :]) == shard.whole and shard.shape != shard.whole:
            return shard.of(tensor, behind=behind)
        return tensor
    if tensor.device_mesh.size() != shard.members or list(tensor.placements) != [Placement(dim)]:
        raise StateError(
            f"{key!r} was saved in {tensor.device_mesh.size()} shards, and here there are {shard.members}: load it by "
            "torch.distributed.checkpoint, which cuts it anew"
        )
    return tensor.to_local()
