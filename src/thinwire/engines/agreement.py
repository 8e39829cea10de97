"""What all ranks decide together: that they describe the same run, and that a checkpoint fits on every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from thinwire.channel import Channel
from thinwire.checkpoint import OnResize, prepared
from thinwire.errors import AttachError, StateError, ThinwireError
from thinwire.exchange import Group


@contextmanager
def agreement(group: Group) -> Iterator[dict[str, str]]:
    """A block in which each rank describes its run; at its end all raise if one failed or two descriptions differ."""
    mine: dict[str, str] = {}
    problem: Exception | None = None
    try:
        yield mine
    except Exception as error:  # of whatever type: the other ranks are waiting and must hear of it
        problem = error
    answers = group.agree((None if problem is None else f"{problem}", mine))
    if problem is not None:
        raise problem if isinstance(problem, ThinwireError) else AttachError(f"cannot attach: {problem}") from problem
    for rank, (trouble, _) in enumerate(answers):
        if trouble is not None:
            raise AttachError(f"rank {rank} could not attach: {trouble}")
    check_same([description for _, description in answers])


def check_same(descriptions: Sequence[Mapping[str, str]]) -> None:
    """Raise, naming both sides, if a rank describes another run than rank 0."""
    first = descriptions[0]
    for rank, theirs in enumerate(descriptions):
        if theirs != first:
            what = next(key for key in {**first, **theirs} if first.get(key) != theirs.get(key))
            raise AttachError(
                f"ranks differ in {what}: rank 0 has {first.get(what, 'none')}, "
                f"rank {rank} has {theirs.get(what, 'none')}. Give every rank the same rule and the same model"
            )
        if list(theirs) != list(first):
            raise AttachError(
                f"rank {rank} holds the same parameters as rank 0 in another order: "
                "build the model the same way on every rank"
            )


def load_together_(group: Group, channel: Channel, state: Mapping[str, Any], on_resize: OnResize) -> None:
    """Load a state on every rank or on none: each tells whether it fits, and which step it belongs to."""
    commit_, problem = None, None
    try:
        commit_ = prepared(channel, state, on_resize)
    except StateError as error:
        problem = error
    place = None if problem else (state["step"], state["seed"], sorted(state["started"]))
    answers = group.agree((None if problem is None else str(problem), place))
    if problem is not None:
        raise problem
    for rank, (trouble, theirs) in enumerate(answers):
        if trouble is not None:
            raise StateError(f"rank {rank} could not load its state, so no rank has: {trouble}")
        if theirs != place:
            raise StateError(
                f"ranks load states of different moments: this one is of step {state['step']}, rank {rank}'s of step "
                f"{theirs[0]}. Load the same checkpoint on every rank"
            )
    assert commit_ is not None
    commit_()
