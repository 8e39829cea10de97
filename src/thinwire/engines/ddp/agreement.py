"""What all ranks decide together: that they describe the same run, and that a checkpoint fits on every one of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Any, Protocol

import torch

from thinwire.errors import AttachError, StateError, ThinwireError, WireError
from thinwire.exchange import Exchange

LONGEST_TEXT = 1 << 24
"""The longest text in bytes that a rank takes from another: a description of 100,000 parameters is shorter."""
MARKS = 62
"""How many marks one number holds."""


@contextmanager
def agreement(exchange: Exchange) -> Iterator[dict[str, str]]:
    """A block in which each rank describes its run; at its end all raise if one failed or two descriptions differ."""
    mine: dict[str, str] = {}
    problem: Exception | None = None
    try:
        yield mine
    except Exception as error:  # of whatever type: the other ranks are waiting and must hear of it
        problem = error
    answers = told(exchange, [None if problem is None else f"{problem}", mine], "attach")
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


class Loadable(Protocol):
    """A state that was found to fit; nothing is changed yet."""

    def common(self) -> dict[str, str]:
        """What must be the same on every rank, as texts."""

    def commit_(self) -> None:
        """Put it into its place."""


def load_together_(exchange: Exchange, prepare: Callable[[], Loadable], shard: str = "") -> None:
    """Load a state on every rank or on none: each tells whether it fits, and which moment of which run it is of.
    Slots are the same on the ranks that hold the same shard."""
    fitting, problem = None, None
    try:
        fitting = prepare()
    except StateError as error:
        problem = error
    except Exception as error:  # whatever a strange object raises: the other ranks are waiting and must hear of it
        problem = StateError(f"this is not a state that can be loaded: {type(error).__name__}: {error}")
    trouble = None if problem is None else str(problem)
    common = {} if fitting is None else _of_shard(fitting.common(), shard)
    answers = told(exchange, [trouble, common], "load_state_dict")
    if problem is not None:
        raise problem
    for rank, (theirs, _) in enumerate(answers):
        if theirs is not None:
            raise StateError(f"rank {rank} could not load its state, so no rank has: {theirs}")
    difference = first_clash([theirs for _, theirs in answers])
    if difference is not None:
        raise StateError(
            f"ranks load states of different moments or runs: they differ in {difference}. Load the same checkpoint on "
            "every rank"
        )
    assert fitting is not None
    fitting.commit_()


def _of_shard(common: Mapping[str, str], shard: str) -> dict[str, str]:
    where = f" in {shard}" if shard else ""
    return {f"{what}{where}" if what.startswith("slot ") else what: value for what, value in common.items()}


def first_difference(descriptions: Sequence[Mapping[str, str]]) -> str | None:
    """In what two ranks differ, with both values; None where all are alike."""
    first = descriptions[0]
    for rank, theirs in enumerate(descriptions):
        for what in {**first, **theirs}:
            if first.get(what) != theirs.get(what):
                return f"{what}: rank 0 has {first.get(what, 'none')}, rank {rank} has {theirs.get(what, 'none')}"
    return None


def first_clash(descriptions: Sequence[Mapping[str, str]]) -> str | None:
    """In what two ranks differ that both speak of, with both values: holders of one shard have its state in common."""
    first: dict[str, tuple[int, str]] = {}
    for rank, theirs in enumerate(descriptions):
        for what, value in theirs.items():
            teller, said = first.setdefault(what, (rank, value))
            if said != value:
                return f"{what}: rank {teller} has {said}, rank {rank} has {value}"
    return None


def marked_anywhere(exchange: Exchange, marks: Sequence[bool]) -> list[bool]:
    """For each place, whether any rank marks it; waits for all."""
    mine = [sum(mark << i for i, mark in enumerate(marks[at : at + MARKS])) for at in range(0, len(marks), MARKS)]
    rows = exchange.everyone(mine, "the parameters that were used")
    anyone = [reduce(or_, column) for column in zip(*rows, strict=True)]
    return [bool(anyone[place // MARKS] >> place % MARKS & 1) for place in range(len(marks))]


def told(exchange: Exchange, item: Any, what: str) -> list[Any]:
    """Every rank's item (made of texts, numbers, lists and dicts), in rank order; waits for all.

    Nothing is pickled: texts travel as JSON. First a digest of fixed size: texts travel only where two of them differ.
    """
    text = json.dumps(item).encode()
    mine = [len(text), *_words(hashlib.sha256(text).digest())]
    every = exchange.everyone(mine, what)
    if all(theirs == mine for theirs in every):
        return [item] * exchange.size
    texts = _texts(exchange, text, [theirs[0] for theirs in every], what)
    for rank, (theirs, digest) in enumerate(zip(texts, every, strict=True)):
        if _words(hashlib.sha256(theirs).digest()) != digest[1:]:
            raise WireError(f"rank {rank}'s words for {what} were damaged on their way")
    return [json.loads(theirs) for theirs in texts]


def _texts(exchange: Exchange, text: bytes, sizes: Sequence[int], what: str) -> list[bytes]:
    for rank, size in enumerate(sizes):
        if not 0 <= size <= LONGEST_TEXT:
            raise WireError(f"rank {rank} announces {size} bytes for {what}; at most {LONGEST_TEXT} are taken")
    mine = torch.frombuffer(bytearray(text.ljust(max(sizes), b"\0")), dtype=torch.uint8)
    rows = exchange.gather(mine, fixed=True, longest=LONGEST_TEXT, what=what).wait()
    return [row[:size].cpu().numpy().tobytes() for row, size in zip(rows, sizes, strict=True)]


def _words(digest: bytes) -> list[int]:
    return [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in range(0, len(digest), 8)]
