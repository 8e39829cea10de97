"""Running statistics of batch norm, one set for each simulated worker, as n processes would have them."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn


@final
class WorkerStatistics:
    """The floating buffers of one model, once for each of n workers.

    Every worker normalises with the statistics of its own batch and follows them with its own running mean and
    variance; a model that is evaluated gets the mean over workers.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        self._shared = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._own = [[buffer.clone() for buffer in self._shared] for _ in range(workers)]

    def load_(self, worker: int) -> None:
        """Give the model one worker's statistics."""
        _copy_(self._shared, self._own[worker])

    def save_(self, worker: int) -> None:
        """Keep the model's statistics as one worker's."""
        _copy_(self._own[worker], self._shared)

    def of(self, worker: int, buffer: Tensor) -> Tensor:
        """One worker's own tensor for a buffer of the model."""
        place = next(place for place, shared in enumerate(self._shared) if shared is buffer)
        return self._own[worker][place]

    def reset_(self) -> None:
        """Give every worker the model's statistics."""
        for own in self._own:
            _copy_(own, self._shared)

    def average_(self) -> None:
        """Give the model the mean over workers."""
        for place, buffer in enumerate(self._shared):
            torch.mean(torch.stack([own[place] for own in self._own]), dim=0, out=buffer)


def _copy_(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)
