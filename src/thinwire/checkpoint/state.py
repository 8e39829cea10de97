"""A channel's state as a dict: saved by parameter name, loaded into the same or another number of workers."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from thinwire.channel import COMMON, Channel
from thinwire.errors import StateError
from thinwire.feedback import Need, Slot
from thinwire.ops import checksum
from thinwire.owners import Owners
from thinwire.payload.message import raw
from thinwire.step import Progress
from thinwire.store import Store

FORMAT = 1
OnResize = Literal["raise", "redistribute", "reset"]


def _key(name: str, slot: Slot, rank: int) -> str:
    """Where a slot is saved. The rank is in the key of what each worker has of its own: torch's distributed
    checkpoint keeps
    only one of equal keys."""
    return f"{slot.name}/rank{rank}/{name}" if slot.per_worker else f"{slot.name}/{name}"


def _shape(store: Store, name: str, slot: Slot, workers: int) -> tuple[int, ...]:
    full = store.parameters[name].shape
    shape = () if slot.single else (slot.length(full),) if slot.factored else full
    return (workers, *shape) if slot.copies else shape


def _wait_for_gpus(channel: Channel) -> None:
    """Buckets are encoded on a stream of their own: what was launched there has to be done before it is read."""
    for device in {info.device for info in channel.parameters.values() if info.device.type == "cuda"}:
        torch.cuda.synchronize(device)


def save(channel: Channel) -> dict[str, Any]:
    """One rank's state as of the last finished step: its own slots, and those that are common to all ranks.

    It may be asked for at any moment, also from a signal handler or another thread in the middle of a step, which it
    neither sees nor disturbs.
    """
    with channel.clock.lock:
        _wait_for_gpus(channel)
        now = channel.clock.now
        slots: dict[str, Tensor] = {}
        for store in channel.stores:
            for name in store.parameters:
                for slot in store.slots_of(name):
                    settled = store.settled(name, slot.name, now.turn)
                    shape = _shape(store, name, slot, channel.size)
                    slots[_key(name, slot, channel.rank)] = settled.reshape(shape).clone()
    served = {} if channel.hub is None else {"owners": channel.hub.owners.least}
    return {
        "format": FORMAT,
        "method": str(channel.rule),
        "run": channel.run,
        "workers": channel.size,
        "step": now.step,
        "seed": channel.seed,
        "shapes": {name: list(info.shape) for name, info in channel.parameters.items()},
        "started": sorted(now.started),
        # pairs, not a dict: a distributed checkpoint flattens dicts and loads only the keys that a fresh handle has
        "step_sizes": [[name, size] for name, size in sorted(now.step_sizes.items())],
        "slots": slots,
        **served,
    }


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks as one, for loading into another number of workers.

    >>> import torch
    >>> from thinwire import Simulation
    >>> simulation = Simulation({"x": torch.zeros(3)}, "ef21(topk(count=1))", workers=2)
    >>> _ = simulation.exchange([{"x": torch.ones(3)}, {"x": torch.zeros(3)}])
    >>> states = [simulation.state_dict()]  # of real processes: what handle.state_dict() gave on each rank
    >>> merge_states(states)["workers"], merge_states(states)["step"]
    (2, 1)
    """
    if not states:
        raise StateError("no states to merge: pass the state_dict() of every rank")
    for state in states:
        _check_fields(state)
    first = states[0]
    for state in states[1:]:
        for field in ("format", "method", "run", "workers", "step", "seed", "owners"):
            if state.get(field) != first.get(field):
                raise StateError(
                    f"states of different runs: {field} is {first.get(field)!r} in one and {state.get(field)!r} in "
                    "another"
                )
    return {**first, "slots": {key: tensor for state in states for key, tensor in state["slots"].items()}}


def merge_parts(parts: Sequence[Any]) -> Any:
    """What rank 0 saved, with the states of all ranks' handles merged, wherever in it they stand.

    >>> merge_parts([{"step": 3, "model": {"w": 1}}, {"step": 3, "model": {"w": 1}}])
    {'step': 3, 'model': {'w': 1}}
    """
    first = parts[0]
    if not isinstance(first, Mapping):
        return first
    if first.keys() >= _FIELDS.keys():
        return merge_states(parts)
    return {key: merge_parts([part[key] if key in part else first[key] for part in parts]) for key in first}


def load_(channel: Channel, state: Mapping[str, Any], on_resize: OnResize = "raise") -> None:
    """Put a saved state into a channel, wholly or (with a `StateError`) not at all."""
    load_all_([channel], state, on_resize)


def load_all_(channels: Sequence[Channel], state: Mapping[str, Any], on_resize: OnResize = "raise") -> None:
    """Put a merged state into several channels: into all of them, or (with a `StateError`) into none."""
    for fitting in [prepared(channel, state, on_resize) for channel in channels]:
        fitting.commit_()


@dataclass(frozen=True)
class Fitting:
    """A state that was found to fit a channel, in its types and on its devices; nothing is changed yet."""

    channel: Channel
    progress: Progress
    seed: int
    run: int
    stores: Sequence[Mapping[tuple[str, str], Tensor]]
    """What is to stand in each of the channel's stores, by parameter and slot."""

    @torch.no_grad()
    def commit_(self) -> None:
        """Put it into the channel."""
        channel = self.channel
        with channel.clock.lock:
            for store, fresh in zip(channel.stores, self.stores, strict=True):
                for (name, slot), saved in fresh.items():
                    store.write(name, slot, saved)
            channel.seed, channel.run = self.seed, self.run
            channel.clock.now = replace(self.progress, turn=channel.clock.now.turn + 1)

    def common(self) -> dict[str, str]:
        """What must be the same on every rank, as texts; slots by their checksums."""
        slots = {
            f"slot {slot!r} of parameter {name!r}": f"checksum {digest(tensor):08x}"
            for (name, slot), tensor in self.stores[COMMON].items()
        }
        started = zlib.crc32(json.dumps(sorted(self.progress.started)).encode())
        sizes = zlib.crc32(json.dumps(sorted(self.progress.step_sizes.items())).encode())
        return {
            "step": str(self.progress.step),
            "seed": str(self.seed),
            "run": f"{self.run:x}",
            "parameters that were exchanged before": f"{len(self.progress.started)} (checksum {started:08x})",
            "step sizes": f"checksum {sizes:08x}",
            **slots,
        }


def digest(tensor: Tensor) -> int:
    """The CRC-32 of a tensor's own bytes, in logical order."""
    return int(checksum(raw(tensor.detach().reshape(-1))).view(torch.int32)) % (1 << 32)


def prepared(channel: Channel, state: Mapping[str, Any], on_resize: OnResize) -> Fitting:
    """A state, once it is found to fit; else a `StateError`."""
    if on_resize not in ("raise", "redistribute", "reset"):
        raise StateError(f'on_resize must be "raise", "redistribute" or "reset", got {on_resize!r}')
    _check(channel, state)
    workers = int(state["workers"])
    if workers != channel.size and on_resize == "raise":
        raise StateError(
            f"the state was saved by {workers} workers, this group has {channel.size}. To go on, merge the states of "
            'all old ranks (thinwire.merge_states) and load with on_resize="redistribute", or start the memories anew '
            'with on_resize="reset"'
        )
    reset = workers != channel.size and on_resize == "reset"
    stores = [
        {
            (name, slot.name): _initial(store, name, slot) if reset else _fitting(channel, store, state, name, slot)
            for name in store.parameters
            for slot in store.slots_of(name)
        }
        for store in channel.stores
    ]
    sizes = {name: float(size) for name, size in state["step_sizes"]}
    done = Progress(int(state["step"])) if reset else Progress(int(state["step"]), frozenset(state["started"]), sizes)
    return Fitting(channel, done, int(state["seed"]), int(state.get("run", 0)), stores)


def _initial(store: Store, name: str, slot: Slot) -> Tensor:
    return store.view(name, slot.name).new_full((), slot.initial)


def _fitting(channel: Channel, store: Store, state: Mapping[str, Any], name: str, slot: Slot) -> Tensor:
    """A saved slot in the type and on the device of this run's, and still finite there."""
    owned = channel.hub is not None and store is channel.hub.store
    find = _owned if owned else _slot
    saved, view = find(channel, state, name, slot, int(state["workers"])), store.view(name, slot.name)
    fitting = saved.detach().to(view.device, view.dtype)
    if not bool(torch.isfinite(fitting).all()):
        raise StateError(
            f"slot {slot.name!r} of {name!r} holds NaN, infinity or a number that {view.dtype} cannot hold: the file "
            "is damaged, or of a run in another precision"
        )
    return fitting


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "format": lambda value: _whole(value, 0, 1 << 31),
    "method": lambda value: isinstance(value, str),
    "workers": lambda value: _whole(value, 1, 1 << 31),
    "step": lambda value: _whole(value, 0, 1 << 62),
    "seed": lambda value: _whole(value, -(1 << 63), (1 << 64) - 1),
    "shapes": lambda value: isinstance(value, Mapping) and all(isinstance(s, list | tuple) for s in value.values()),
    "started": lambda value: isinstance(value, list | tuple | set) and all(isinstance(name, str) for name in value),
    "step_sizes": lambda value: isinstance(value, list | tuple) and all(map(_is_step_size, value)),
    "slots": lambda value: isinstance(value, Mapping),
}


def _is_step_size(pair: object) -> bool:
    match pair:
        case [str(), int() | float() as size]:
            return 0 < size < math.inf
    return False


def _check_fields(state: Mapping[str, Any]) -> None:
    """Whether a state has all its fields, each of its type."""
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict, as state_dict() gives it, got {type(state).__name__}")
    missing = [field for field in _FIELDS if field not in state]
    if missing:
        words = f"it has no {', '.join(missing)}. Pass what handle.state_dict() gave"
        raise StateError(f"this is not a thinwire state: {words}")


def _check(channel: Channel, state: Mapping[str, Any]) -> None:
    """Everything that can be wrong with a state, before anything is changed."""
    _check_fields(state)
    if not _whole(state.get("run", 0), 0, (1 << 63) - 1):
        raise StateError(f"the state's run cannot be {state['run']!r}: the file is damaged")
    for field, holds in _FIELDS.items():
        if not holds(state[field]):
            raise StateError(f"the state's {field} cannot be {state[field]!r}: the file is damaged")
    if state["format"] != FORMAT:
        raise StateError(f"the state has format {state['format']}, this thinwire reads format {FORMAT}")
    _check_owners(channel, state)
    if state["method"] != str(channel.rule):
        raise StateError(f"the state belongs to {state['method']}, this run uses {channel.rule}: attach the same rule")
    _check_names(channel, state)
    mine = {name: list(info.shape) for name, info in channel.parameters.items()}
    theirs = {name: list(shape) for name, shape in state["shapes"].items()}
    if mine != theirs:
        odd = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        name = odd[0]
        raise StateError(
            f"the state's parameters are not this model's: {name!r} {_shaped(theirs.get(name))} in the state and "
            f"{_shaped(mine.get(name))} here ({len(odd)} differ)"
        )


def _check_owners(channel: Channel, state: Mapping[str, Any]) -> None:
    """Whether the state is of a run with the same exchange."""
    least = state.get("owners")
    if least is not None and not _whole(least, 1, 1 << 62):
        raise StateError(f"the state's owners cannot be {least!r}: the file is damaged")
    mine = None if channel.hub is None else channel.hub.owners
    if least != (None if mine is None else mine.least):
        theirs = None if least is None else Owners(1, least)
        raise StateError(
            f"the state was saved under {theirs or 'a gather'}, this run uses {mine or 'a gather'}: attach with the "
            "same exchange=, or flush() before saving and begin anew"
        )


def _shaped(shape: list[int] | None) -> str:
    return "is absent" if shape is None else f"has shape {shape}"


def _check_names(channel: Channel, state: Mapping[str, Any]) -> None:
    """Whether the state speaks of this model's parameters, and knows the units of every memory."""
    sizes, started = {name for name, _ in state["step_sizes"]}, set(state["started"])
    if unknown := sorted((sizes | started) - channel.parameters.keys()):
        raise StateError(f"the state speaks of {unknown[0]!r}, which is no parameter of this model")
    lacking = [name for name in sorted(started - sizes) if Need.STEP_SIZE in channel.rules[name].needs]
    if lacking:
        raise StateError(f"the state has no step size for {lacking[0]!r}, in whose units its memory is: it is damaged")


def _slot(channel: Channel, state: Mapping[str, Any], name: str, slot: Slot, workers: int) -> Tensor:
    """A slot's saved value for this rank, or what takes its place in another number of workers."""
    store = channel.worker
    if workers == channel.size:
        return _saved(state, _key(name, slot, channel.rank), _shape(store, name, slot, workers))
    if slot.resize != "average":
        source = next(s for s in channel.rules[name].slots if s.name == slot.resize)
        if channel.is_owned(name, source):
            return _all_shares(channel, state, name, source.name, workers).view(_shape(store, name, source, workers))
        return _saved(state, _key(name, source, 0), _shape(store, name, source, workers))
    if slot.copies:
        rows = _saved(state, _key(name, slot, 0), _shape(store, name, slot, workers))
        return _average(list(rows)).expand(channel.size, *rows.shape[1:])
    if not slot.per_worker:
        return _saved(state, _key(name, slot, 0), _shape(store, name, slot, workers))
    return _average([_saved(state, _key(name, slot, rank), _shape(store, name, slot, 1)) for rank in range(workers)])


def _owned(channel: Channel, state: Mapping[str, Any], name: str, slot: Slot, workers: int) -> Tensor:
    """An owner's slot of its own share; among another number of workers the shares are cut anew."""
    assert channel.hub is not None
    if workers == channel.size:
        return _saved(state, _key(name, slot, channel.rank), _shape(channel.hub.store, name, slot, workers))
    own = channel.hub.share(name, channel.parameters[name])
    return _all_shares(channel, state, name, slot.name, workers)[own]


def _all_shares(channel: Channel, state: Mapping[str, Any], name: str, slot: str, workers: int) -> Tensor:
    """What all owners of a parameter's shares had saved, in the parameter's order."""
    info, owners = channel.parameters[name], Owners(workers, int(state["owners"]))
    return torch.cat(
        [
            _saved(state, f"{slot}/rank{owners.owner(info.index, place)}/{name}", (stop - start,))
            for place, (start, stop) in enumerate(pairwise(owners.bounds(info.numel)))
        ]
    )


def _average(tensors: Sequence[Tensor]) -> Tensor:
    """The mean in float64: given to every worker, it is the mean of the new memories too."""
    return torch.stack([tensor.to(torch.float64) for tensor in tensors]).mean(0)


def _saved(state: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> Tensor:
    tensor = state["slots"].get(key)
    if not isinstance(tensor, Tensor):
        raise StateError(
            f"the state has no {key!r}: each rank saves its own part, so pass the state of this rank, or all of them "
            "merged (thinwire.merge_states) for another number of workers"
        )
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.is_floating_point():
        kind = f"{tensor.dtype} on {tensor.device}, laid out as {tensor.layout}"
        raise StateError(f"{key!r} is a tensor of {kind}: dense floating-point numbers are needed")
    if tuple(tensor.shape) != shape:
        raise StateError(f"{key!r} has shape {tuple(tensor.shape)} in the state, {shape} is needed")
    return tensor.detach()
