"""Aside: a GPU's stream of our own, on which buckets are encoded and decoded while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Aside:
    """The stream of one handle, made when it is first needed.

    What is launched inside `of` begins when all that was launched before is done, such as the gradients of a bucket;
    what follows the block of a step's last bucket (`join`) waits for all of it. On a CPU it is nothing.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def of(self, gradients: Tensor) -> Iterator[None]:
        """Launch aside, after what made the gradients."""
        if not gradients.is_cuda:
            yield
            return
        here, stream = torch.cuda.current_stream(gradients.device), self._of(gradients.device)
        self._made.record(here)
        stream.wait_event(self._made)
        torch.cuda.set_stream(stream)
        try:
            yield
        finally:
            torch.cuda.set_stream(here)

    def join(self) -> None:
        """What is launched from now on waits for all that was launched aside."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def _of(self, device: torch.device) -> torch.cuda.Stream:
        if self._stream is None or self._stream.device != device:
            # urgent, so that a message is under way while the backward pass goes on
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return self._stream
