"""A channel's state as a dict: saved by parameter name, loaded into the same or another number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.errors import StateError
from thinwire.feedback import Slot
from thinwire.store import Store

FORMAT = 1
OnResize = Literal["raise", "redistribute", "reset"]


def _key(name: str, slot: Slot, rank: int) -> str:
    """Where a slot is saved. The rank is in the key of what each worker has of its own: torch's distributed
    checkpoint keeps
    only one of equal keys."""
    return f"{slot.name}/rank{rank}/{name}" if slot.per_worker else f"{slot.name}/{name}"


def _shape(channel: Channel, name: str, slot: Slot, workers: int) -> tuple[int, ...]:
    shape = () if slot.single else channel.parameters[name].shape
    return (workers, *shape) if slot.copies else shape


def save(channel: Channel) -> dict[str, Any]:
    """One rank's state: its own slots, and those that are common to all ranks."""
    slots: dict[str, Tensor] = {}
    for store in (channel.worker, channel.server):
        for name in channel.parameters:
            for slot in store.slots_of(name):
                view = store.view(name, slot.name)
                slots[_key(name, slot, channel.rank)] = view.reshape(_shape(channel, name, slot, channel.size)).clone()
    return {
        "format": FORMAT,
        "method": str(channel.rule),
        "workers": channel.size,
        "step": channel.step,
        "seed": channel.seed,
        "shapes": {name: list(info.shape) for name, info in channel.parameters.items()},
        "started": sorted(channel.started),
        # pairs, not a dict: a distributed checkpoint flattens dicts and loads only the keys that a fresh handle has
        "step_sizes": [[name, size] for name, size in sorted(channel.step_sizes.items())],
        "slots": slots,
    }


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks as one, for loading into another number of workers."""
    if not states:
        raise StateError("no states to merge: pass the state_dict() of every rank")
    for state in states:
        _check_fields(state)
    first = states[0]
    for state in states[1:]:
        for field in ("format", "method", "workers", "step", "seed"):
            if state[field] != first[field]:
                raise StateError(
                    f"states of different runs: {field} is {first[field]!r} in one and {state[field]!r} in another"
                )
    return {**first, "slots": {key: tensor for state in states for key, tensor in state["slots"].items()}}


def load_(channel: Channel, state: Mapping[str, Any], on_resize: OnResize = "raise") -> None:
    """Put a saved state into a channel, wholly or (with a `StateError`) not at all."""
    load_all_([channel], state, on_resize)


def load_all_(channels: Sequence[Channel], state: Mapping[str, Any], on_resize: OnResize = "raise") -> None:
    """Put a merged state into several channels: into all of them, or (with a `StateError`) into none."""
    for commit_ in [prepared(channel, state, on_resize) for channel in channels]:
        commit_()


def prepared(channel: Channel, state: Mapping[str, Any], on_resize: OnResize) -> Callable[[], None]:
    """What loads a state that was found to fit; nothing is changed yet."""
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
    fresh: dict[tuple[int, str, str], Tensor] = {}
    reset = workers != channel.size and on_resize == "reset"
    for place, store in enumerate((channel.worker, channel.server)):
        for name in channel.parameters:
            for slot in store.slots_of(name):
                view = store.view(name, slot.name)
                saved = view.new_full((), slot.initial) if reset else _slot(channel, state, name, slot, workers)
                fresh[place, name, slot.name] = saved.to(view.device, view.dtype)
    return lambda: _commit_(channel, state, fresh, reset)


def _commit_(
    channel: Channel, state: Mapping[str, Any], fresh: Mapping[tuple[int, str, str], Tensor], reset: bool
) -> None:
    stores: tuple[Store, Store] = (channel.worker, channel.server)
    for (place, name, slot), saved in fresh.items():
        view = stores[place].view(name, slot)
        view.copy_(saved.reshape(view.shape) if saved.ndim else saved)
    channel.step, channel.seed = int(state["step"]), int(state["seed"])
    channel.started = set() if reset else set(state["started"])
    channel.step_sizes = {} if reset else {name: float(size) for name, size in state["step_sizes"]}


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "format": lambda value: isinstance(value, int),
    "method": lambda value: isinstance(value, str),
    "workers": lambda value: isinstance(value, int) and value >= 1,
    "step": lambda value: isinstance(value, int) and value >= 0,
    "seed": lambda value: isinstance(value, int),
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
        raise StateError(f"this is not a thinwire state: it has no {', '.join(missing)}")


def _check(channel: Channel, state: Mapping[str, Any]) -> None:
    """Everything that can be wrong with a state, before anything is changed."""
    _check_fields(state)
    for field, holds in _FIELDS.items():
        if not holds(state[field]):
            raise StateError(f"the state's {field} cannot be {state[field]!r}: the file is damaged")
    if state["format"] != FORMAT:
        raise StateError(f"the state has format {state['format']}, this thinwire reads format {FORMAT}")
    if state["method"] != str(channel.rule):
        raise StateError(f"the state belongs to {state['method']}, this run uses {channel.rule}: attach the same rule")
    mine = {name: list(info.shape) for name, info in channel.parameters.items()}
    theirs = {name: list(shape) for name, shape in state["shapes"].items()}
    if mine != theirs:
        odd = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        name = odd[0]
        raise StateError(
            f"the state's parameters are not this model's: {name!r} has shape {theirs.get(name, 'absent')} in the "
            f"state and {mine.get(name, 'absent')} here ({len(odd)} differ)"
        )


def _slot(channel: Channel, state: Mapping[str, Any], name: str, slot: Slot, workers: int) -> Tensor:
    """A slot's saved value for this rank, or what takes its place in another number of workers."""
    if workers == channel.size:
        return _saved(state, _key(name, slot, channel.rank), _shape(channel, name, slot, workers))
    if slot.resize != "average":
        source = next(s for s in channel.rules[name].slots if s.name == slot.resize)
        return _saved(state, _key(name, source, 0), _shape(channel, name, source, workers))
    if slot.copies:
        rows = _saved(state, _key(name, slot, 0), _shape(channel, name, slot, workers))
        return _average(list(rows)).expand(channel.size, *rows.shape[1:])
    if not slot.per_worker:
        return _saved(state, _key(name, slot, 0), _shape(channel, name, slot, workers))
    return _average([_saved(state, _key(name, slot, rank), _shape(channel, name, slot, 1)) for rank in range(workers)])


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
    if tuple(tensor.shape) != shape:
        raise StateError(f"{key!r} has shape {tuple(tensor.shape)} in the state, {shape} is needed")
    if not bool(torch.isfinite(tensor).all()):
        raise StateError(f"{key!r} holds NaN or infinity in the state: the file is damaged")
    return tensor
