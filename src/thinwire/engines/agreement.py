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
    answers = group.agree([None if problem is None else f"{problem}", mine], "attach")
    if problem is not None:
        raise problem if isinstance(problem, ThinwireError) else AttachError(f"cannot attach: {problem}") from problem
    for rank, (trouble, _) in enumerate(answers):
        if trouble is not None:
            raise AttachError(f"rank {rank} could not attach: {trouble}")
    check_same([description for _, description in answers])


def check_same(descriptions: Sequence[Mapping[str, str]]) -> None:
    """Raise, naming both sides, if a rank describes another run than rank 0."""
    difference = first_difference(descriptions)
    if difference is not None:
        raise AttachError(f"ranks differ in {difference}. Give every rank the same rule, seed, model and optimizer")
    for rank, theirs in enumerate(descriptions):
        if list(theirs) != list(descriptions[0]):
            raise AttachError(
                f"rank {rank} holds the same parameters as rank 0 in another order: "
                "build the model the same way on every rank"
            )


def load_together_(group: Group, channel: Channel, state: Mapping[str, Any], on_resize: OnResize) -> None:
    """Load a state on every rank or on none: each tells whether it fits, and which moment of which run it is of."""
    fitting, problem = None, None
    try:
        fitting = prepared(channel, state, on_resize)
    except StateError as error:
        problem = error
    except Exception as error:  # whatever a strange object raises: the other ranks are waiting and must hear of it
        problem = StateError(f"this is not a state that can be loaded: {type(error).__name__}: {error}")
    trouble = None if problem is None else str(problem)
    answers = group.agree([trouble, {} if fitting is None else fitting.common()], "load_state_dict")
    if problem is not None:
        raise problem
    for rank, (theirs, _) in enumerate(answers):
        if theirs is not None:
            raise StateError(f"rank {rank} could not load its state, so no rank has: {theirs}")
    difference = first_difference([common for _, common in answers])
    if difference is not None:
        raise StateError(
            f"ranks load states of different moments or runs: they differ in {difference}. Load the same checkpoint on "
            "every rank"
        )
    assert fitting is not None
    fitting.commit_()


def first_difference(descriptions: Sequence[Mapping[str, str]]) -> str | None:
    """In what two ranks differ, with both values; None where all are alike."""
    first = descriptions[0]
    for rank, theirs in enumerate(descriptions):
        for what in {**first, **theirs}:
            if first.get(what) != theirs.get(what):
                return f"{what}: rank 0 has {first.get(what, 'none')}, rank {rank} has {theirs.get(what, 'none')}"
    return None
