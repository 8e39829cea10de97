"""The ways in which a bucket can travel, and what is reported of a step: plain values."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    """How a bucket travels."""

    COMPRESSED = "compressed"
    HALF = "fp16"
    """All of it, in 16 bits; again in its own type where that overflows."""
    DENSE = "dense"
    """All of it, in its own type."""


Plan = tuple[Mode, ...]
"""A mode for each bucket, in the order in which they become ready."""


def show_plan(plan: Plan) -> str:
    """As people read it.

    >>> show_plan((Mode.DENSE, Mode.DENSE)), show_plan((Mode.DENSE, Mode.COMPRESSED, Mode.COMPRESSED))
    ('dense', 'dense 0, compressed 1-2')
    """
    if len(set(plan)) == 1:
        return plan[0].value
    words, start = [], 0
    for place in range(1, len(plan) + 1):
        if place == len(plan) or plan[place] is not plan[start]:
            words.append(f"{plan[start].value} {start}" + (f"-{place - 1}" if place - 1 > start else ""))
            start = place
    return ", ".join(words)


@dataclass(frozen=True)
class BucketFacts:
    """What is known of a bucket without measuring it."""

    names: tuple[str, ...]
    numel: int
    itemsize: int
    """Bytes of a number that travels dense."""
    halves: bool
    """Whether 16 bits are fewer than it has."""
    bare: bool
    """Whether its dense form is DDP's own: an all-reduce of gradients."""


@dataclass(frozen=True)
class Report:
    """One step as one rank saw it: seconds, and bytes of messages, by bucket."""

    buckets: tuple[BucketFacts, ...]
    modes: Plan
    period: float
    """From the end of the last step's exchange to the end of this one's."""
    verdict: float
    compute: tuple[float, ...]
    """Before each bucket was ready; of the first, all of the step before its backward pass too."""
    encode: tuple[float, ...]
    decode: tuple[float, ...]
    message: tuple[float, ...]

    def numbers(self) -> list[int]:
        """As ranks tell each other: microseconds and bytes."""
        seconds = (self.period, self.verdict, *self.compute, *self.encode, *self.decode)
        return [*(round(1e6 * each) for each in seconds), *(round(each) for each in self.message)]


@dataclass(frozen=True)
class Window:
    """Some steps as all ranks have agreed to see them."""

    period: float
    verdict: float
    compute: tuple[float, ...]
    encode: tuple[float, ...]
    decode: tuple[float, ...]
    message: tuple[float, ...]

    @staticmethod
    def of(numbers: Sequence[int]) -> Window:
        """From what `Report.numbers` says."""
        seconds, count = [each / 1e6 for each in numbers], (len(numbers) - 2) // 4
        compute, encode, decode = (tuple(seconds[2 + count * part : 2 + count * (part + 1)]) for part in range(3))
        return Window(seconds[0], seconds[1], compute, encode, decode, tuple(map(float, numbers[2 + 3 * count :])))


@dataclass(frozen=True)
class Tell:
    """A request: tell all ranks these numbers, and answer with every rank's."""

    numbers: Sequence[int]


@dataclass(frozen=True)
class Probe:
    """A request: have so many bytes summed over ranks, and answer with every rank's microseconds."""

    nbytes: int


Rows = list[list[int]]
"""Every rank's numbers, in rank order."""
Talk = Generator[Tell | Probe, Rows, None]
"""What is asked of all ranks at the end of a step, one request after the other: the same on each."""
