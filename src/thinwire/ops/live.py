"""Live numbers: those that differ from step to step, in places of a device's memory that stay.

Launches that were recorded once (`thinwire.replay`) can then be repeated with the numbers of another step. A rule and a
compressor see no difference: step sizes are still a sequence, and a key still gives words.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from thinwire.ops.keys import Key, words_of

Recipe = Callable[[int], Tensor]
"""The words of a step, given by its number, as int64 on the CPU."""


class NotRepeatable(Exception):
    """Raised where an operation cannot be repeated with other numbers: it is then done anew at each step."""


class Dials:
    """Words of 64 bits on a device, each set anew for a step by whoever needs it.

    >>> dials = Dials(torch.device("cpu"), 8)
    >>> step = dials.add(1, lambda step: torch.tensor([step]))
    >>> dials.set_(5)
    >>> step.tolist()
    [5]
    """

    def __init__(self, device: torch.device, room: int) -> None:
        self._words = torch.zeros(room, dtype=torch.int64, device=device)
        self._recipes: list[Recipe] = []
        self._used = 0

    def add(self, count: int, recipe: Recipe) -> Tensor:
        """So many words, which the recipe tells for each step."""
        start, self._used = self._used, self._used + count
        if self._used > len(self._words):
            raise NotRepeatable(f"more than {len(self._words)} numbers differ from step to step")
        self._recipes.append(recipe)
        return self._words[start : self._used]

    def set_(self, step: int) -> None:
        """Set all words; a GPU is not waited for."""
        if self._used == 1:  # by a launch: bringing a word from the host takes it five times as long
            self._words[:1].fill_(int(self._recipes[0](step)))
        elif self._recipes:
            told = torch.cat([recipe(step) for recipe in self._recipes])
            told = told.pin_memory() if self._words.is_cuda else told
            self._words[: self._used].copy_(told, non_blocking=True)


class LiveRatios(Sequence[float]):
    """One number for each piece, as float64 on the device."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def times(self, factor: float) -> LiveRatios:
        """Each number times a factor."""
        return LiveRatios(self.numbers * factor)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[float]:
        if self.numbers.is_cuda:
            raise NotRepeatable("an operation looks at step sizes one by one")
        return iter(self.numbers.tolist())

    @overload
    def __getitem__(self, place: int) -> float: ...
    @overload
    def __getitem__(self, place: slice) -> LiveRatios: ...
    def __getitem__(self, place: int | slice) -> float | LiveRatios:
        if isinstance(place, slice):
            return LiveRatios(self.numbers[place])
        numbers: list[float] = [*self]
        return numbers[place]


@dataclass(frozen=True)
class LiveKey(Key):
    """A key whose words are set for each step. Its `step` is that of the recording: what is decided by it must be told
    by a rule's `pattern`."""

    dials: Dials = field(default_factory=lambda: Dials(torch.device("cpu"), 0), compare=False, repr=False)

    @staticmethod
    def of(key: Key, dials: Dials) -> LiveKey:
        """The same place, with words on dials."""
        return LiveKey(key.seed, key.step, key.worker, key.piece, dials)

    def words(self, pieces: Tensor) -> Tensor:
        worker = torch.tensor([self.worker])
        return self.dials.add(len(pieces), lambda step: words_of(self.seed, step, worker, pieces))

    def numbers(self, pieces: Iterable[int]) -> list[int]:
        raise NotRepeatable("an operation draws by numbers of the host")

    def across(self, workers: Tensor) -> Tensor:
        raise NotRepeatable("an operation draws for other workers")


class Keeps(Protocol):
    """Who wants to know of every tensor that a launch is given."""

    def take(self, given: Iterable[Any]) -> None: ...


class _Recording(threading.local):
    """Who records in this thread."""

    keeper: Keeps | None = None


recording = _Recording()
