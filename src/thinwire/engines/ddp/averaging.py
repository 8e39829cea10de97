"""Averaging: one bucket's mean over ranks by an all-reduce, as DDP itself takes it, in its own type or in 16 bits."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.exchange import Incoming, Reduces, Traffic
from thinwire.layout import Layout
from thinwire.whole import Whole


@final
class Mean:
    """The mean of a vector over all ranks, on its way: the very sums of DDP, or of torch's fp16 hook.

    In 16 bits, a mean that overflows is taken again in the vector's own type: all ranks see the same sum, so all do.
    """

    def __init__(self, exchange: Reduces, numbers: Tensor, what: str, *, half: bool) -> None:
        self._exchange, self._numbers, self._what = exchange, numbers, what
        self._half = numbers.to(torch.float16).div_(exchange.size) if half else None
        self._nbytes = 0
        self._incoming = self._started() if half else self._started_whole()

    def _started(self) -> Incoming | None:
        if not self._numbers.numel():
            return None  # of a bucket that no rank used
        numbers = self._numbers if self._half is None else self._half
        self._nbytes += numbers.nbytes
        return self._exchange.reduce_(numbers, self._what)

    def _started_whole(self) -> Incoming | None:
        if self._exchange.size > 1:
            self._numbers.mul_(1.0 / self._exchange.size)
        return self._started()

    @property
    def traffic(self) -> Traffic:
        """What it has cost so far."""
        return Traffic.of_reduce(self._nbytes, self._exchange.size)

    def wait(self) -> Tensor:
        """The mean, in the vector's place."""
        if self._incoming is not None:
            self._incoming.wait()
        if self._half is None:
            return self._numbers
        if bool(self._half.sum(dtype=torch.float32).isfinite()):
            return self._numbers.copy_(self._half)
        self._half = None
        self._incoming = self._started_whole()
        return self.wait()


@final
class Averaging:
    """A bucket of which ranks exchange nothing but the mean."""

    def __init__(self, mean: Mean, beside: Mean | None, whole: Whole | None, layout: Layout, gradient: Tensor) -> None:
        self._mean, self._beside, self._whole = mean, beside, whole
        self.layout, self._gradient = layout, gradient

    @staticmethod
    def bare(exchange: Reduces, flat: Tensor, layout: Layout, what: str, *, half: bool) -> Averaging:
        """Of the gradients themselves, in the order in which DDP has them."""
        return Averaging(Mean(exchange, flat, what, half=half), None, None, layout, flat)

    @staticmethod
    def of(exchange: Reduces, whole: Whole, gradient: Tensor, what: str, *, half: bool) -> Averaging:
        """Of all that rules have to say. Second moments are too small for float16."""
        mean = Mean(exchange, whole.numbers, what, half=half)
        beside = None if whole.beside is None else Mean(exchange, whole.beside, what, half=False)
        return Averaging(mean, beside, whole, whole.layout, gradient)

    @property
    def traffics(self) -> list[Traffic]:
        """What it has cost so far."""
        return [mean.traffic for mean in (self._mean, self._beside) if mean is not None]

    def receive(self, channel: Channel) -> None:
        """Wait for the mean, and write what comes of it; numbers that are not finite are noted."""
        numbers, beside = self._mean.wait(), None if self._beside is None else self._beside.wait()
        if self._whole is None:
            channel.look_at(numbers, self.layout)
        else:
            channel.receive_means(self._whole, numbers, beside, self._gradient)
