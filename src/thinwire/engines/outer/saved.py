"""The state of outer steps as a dict, in the middle of a window too: saved by parameter name, and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.checkpoint import OnResize, digest, merge_states, prepared, save
from thinwire.checkpoint.state import Fitting
from thinwire.engines.outer.replica import Flight, Replica
from thinwire.errors import StateError

POINT, VELOCITY, START, LEFT = "outer point", "outer momentum", "start", "in flight"


def save_outer(replica: Replica, steps: int) -> dict[str, Any]:
    """One worker's state after so many steps of its optimizer; `merge_states` joins those of all workers."""
    states = [save(channel) for channel in replica.channels]
    slots = {key: tensor for state in states for key, tensor in state["slots"].items()}
    slots |= {key: view.clone() for key, view in _own(replica).items()}
    slots[f"parameters/rank{replica.rank}"] = _digests(replica.parameters)
    return {
        **states[0],
        "step": steps,
        "shapes": {name: shape for state in states for name, shape in state["shapes"].items()},
        "started": sorted(name for state in states for name in state["started"]),
        "step_sizes": sorted(pair for state in states for pair in state["step_sizes"]),
        "slots": slots,
        "outer": sorted(_settings(replica)),
        "lr": replica.lr,
        "rounds": [state["step"] for state in states],
        "flights": sorted(replica.flights),
    }


def _settings(replica: Replica) -> list[tuple[str, str]]:
    """What must be as it was; the outer rate is taken from the state."""
    return [(name, value) for name, value in replica.outer.describe().items() if name not in ("rule", "lr")]


def _own(replica: Replica) -> dict[str, Tensor]:
    """All that is not in the channels, by key; views, by which it can be written."""
    found: dict[str, Tensor] = {}
    for f, point in enumerate(replica.points):
        kinds = {f"{POINT}/": point.flats}
        kinds |= {f"{VELOCITY}/": point.velocities} if point.velocities else {}
        kinds |= {f"{START}/rank{replica.rank}/": replica.starts(f)} if replica.outer.keeps_starts else {}
        if replica.outer.delay:  # always there: a distributed checkpoint loads only the keys that a fresh handle has
            kinds[f"{LEFT}/rank{replica.rank}/"] = list(replica.left(f))
        for key, flats in kinds.items():
            found |= {f"{key}{name}": view for name, view in point.fragment.views(flats).items()}
    return found


def _digests(parameters: Mapping[str, Tensor]) -> Tensor:
    return torch.tensor([digest(parameter) for parameter in parameters.values()], dtype=torch.int64)


@dataclass(frozen=True)
class OuterFitting:
    """A state that was found to fit; nothing is changed yet."""

    replica: Replica
    channels: list[Fitting]
    own: Mapping[str, Tensor]
    lr: float
    flights: list[int]
    settles: bool
    """Whether windows begin anew, for the number of workers is another."""

    def common(self) -> dict[str, str]:
        """What must be the same on every rank, as texts."""
        texts = {
            f"{what} of fragment {f}": v for f, fit in enumerate(self.channels) for what, v in fit.common().items()
        }
        alike = {key: tensor for key, tensor in self.own.items() if key.startswith((POINT, VELOCITY))}
        texts |= {key: f"checksum {digest(tensor):08x}" for key, tensor in alike.items()}
        return texts | {"the outer rate": repr(self.lr), "fragments in flight": str(self.flights)}

    @torch.no_grad()
    def commit_(self) -> None:
        """Put it into its place; what was in flight is to be sent again."""
        replica = self.replica
        for fitting in self.channels:
            fitting.commit_()
        replica.lr = self.lr
        replica.flights.clear()
        for f in self.flights:
            replica.flights[f] = Flight(replica.points[f].fragment.empty(), ())
        for key, view in _own(replica).items():
            if key in self.own:
                view.copy_(self.own[key])
        for f in range(replica.outer.fragments) if self.settles else ():
            replica.settle_(f)


def prepared_outer(replica: Replica, state: Mapping[str, Any], on_resize: OnResize) -> OuterFitting:
    """A state, once it is found to fit this worker; else a `StateError`."""
    missing = [field for field in ("outer", "lr", "rounds", "flights") if field not in state]
    if missing:
        raise StateError(f"this is not a state of outer steps: it has no {missing[0]}. Pass what state_dict() gave")
    merge_states([state])  # whether it has all other fields
    mine, theirs = dict(_settings(replica)), dict(state["outer"])
    if mine != theirs:
        odd = next(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))
        raise StateError(f"the state was saved with {odd}={theirs.get(odd)}, this run has {odd}={mine.get(odd)}")
    channels = [prepared(channel, _of(state, replica, f), on_resize) for f, channel in enumerate(replica.channels)]
    settles = int(state["workers"]) != replica.channels[0].size
    own = {key: _fitting(state, key, view) for key, view in _own(replica).items() if not settles or "/rank" not in key}
    _check_parameters(replica, state, own, settles)
    return OuterFitting(replica, channels, own, float(state["lr"]), [int(f) for f in state["flights"]], settles)


def _of(state: Mapping[str, Any], replica: Replica, f: int) -> dict[str, Any]:
    """One fragment's part, as the state of its channel."""
    names = replica.channels[f].parameters
    return {
        **state,
        "step": state["rounds"][f],
        "seed": int(state["seed"]) + f,
        "shapes": {name: shape for name, shape in state["shapes"].items() if name in names},
        "started": [name for name in state["started"] if name in names],
        "step_sizes": [pair for pair in state["step_sizes"] if pair[0] in names],
    }


def _fitting(state: Mapping[str, Any], key: str, view: Tensor) -> Tensor:
    saved = state["slots"].get(key)
    if not isinstance(saved, Tensor) or saved.shape != view.shape:
        raise StateError(f"the state has no {key!r} of shape {tuple(view.shape)}: pass the state of this rank")
    fitting = saved.detach().to(view.device, view.dtype)
    if not bool(torch.isfinite(fitting).all()):
        raise StateError(f"{key!r} holds NaN or infinity: the file is damaged, or of a run in another precision")
    return fitting


def _check_parameters(replica: Replica, state: Mapping[str, Any], own: Mapping[str, Tensor], settles: bool) -> None:
    """Whether the model holds what it held when the state was saved: windows are measured from there."""
    parameters, key = replica.parameters, f"parameters/rank{replica.rank}"
    if settles:
        points = {name: own[f"{POINT}/{name}"].to(parameter.dtype) for name, parameter in parameters.items()}
        saved, at_rest = [state["slots"].get(f"parameters/rank{r}") for r in range(state["workers"])], _digests(points)
        if not all(isinstance(one, Tensor) and torch.equal(one, at_rest) for one in saved):
            raise StateError(
                "the state was saved in the middle of a window, whose workers stand at different points: for another "
                "number of workers call handle.flush() on every rank before saving"
            )
        return
    theirs = state["slots"].get(key)
    if not isinstance(theirs, Tensor) or not torch.equal(theirs, _digests(parameters)):
        raise StateError(
            f"the parameters are not those that rank {replica.rank} had when the state was saved. Between two "
            "exchanges every rank has its own: save the model on every rank, and load it before this state"
        )
