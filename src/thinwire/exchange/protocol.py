"""What moves bytes between ranks must offer, knowing nothing of what they mean; and what moving them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


def allgather_bytes(nbytes: int, workers: int) -> int:
    """Bytes that leave one worker when n workers gather messages of this size from each other: (n - 1) B."""
    return (workers - 1) * nbytes


def allreduce_bytes(nbytes: int, workers: int) -> int:
    """Bytes that leave one worker in a ring all-reduce of a buffer of this size: 2 (n - 1) / n D."""
    return 2 * (workers - 1) * nbytes // workers


@dataclass(frozen=True)
class Traffic:
    """What one exchange cost one worker, in bytes."""

    message: float
    """Length of this worker's own message; in a simulation, the mean over its workers."""
    sent: int
    """What left the worker: its share of the collective, padding and sizes included."""
    received: int
    """What arrived at the worker."""

    @staticmethod
    def of_gather(message: float, longest: int, workers: int, *, sizes_exchanged: bool) -> Traffic:
        """The traffic of an all-gather in which every message is padded to the longest, behind 8 bytes for sizes."""
        moved = allgather_bytes(longest + 8 * sizes_exchanged, workers)
        return Traffic(message, moved, moved)

    @staticmethod
    def of_reduce(nbytes: int, workers: int) -> Traffic:
        """The traffic of a ring all-reduce."""
        moved = allreduce_bytes(nbytes, workers)
        return Traffic(nbytes, moved, moved)

    @staticmethod
    def of_sum(message: float, share: int, workers: int) -> Traffic:
        """The traffic of adding up on the way: letters with a share to each other worker, and a total to each."""
        moved = 2 * (workers - 1) * share
        return Traffic(message, moved, moved)

    @staticmethod
    def of_numbers(count: int, workers: int) -> Traffic:
        """The traffic of telling everyone so many numbers of 8 bytes."""
        moved = allgather_bytes(8 * count, workers)
        return Traffic(0, moved, moved)

    @staticmethod
    def of_trade(letters: Sequence[int], sizes: Sequence[int], rank: int) -> Traffic:
        """The traffic of letters of these sizes to all ranks, and of those of these sizes from all."""
        return Traffic(sum(letters), sum(letters) - letters[rank], sum(sizes) - sizes[rank])


LEAST_SUM = 1 << 15
"""Bytes of numbers from which on two hops of shares are worth their latency: 3 ms at 100 Mbit/s."""


def adds_up(nbytes: int, workers: int) -> bool:
    """Whether numbers of so many bytes are added up on their way; among two workers that saves nothing."""
    return workers > 2 and nbytes >= LEAST_SUM


class Incoming(Protocol):
    """Messages on their way to this rank."""

    @property
    def traffic(self) -> Traffic:
        """What moving them costs this worker."""

    def wait(self) -> Sequence[Tensor] | Tensor:
        """Every rank's message, in rank order: as a sequence, or as rows of one tensor where all have one size.

        Bytes arrive as they were sent. Where a rank is lost this is a `PeerLost`.
        """


class Exchange(Protocol):
    """One rank's end of a group of ranks.

    All ranks call the same methods in the same order, so that the k-th call on one rank meets the k-th call on each
    other. Messages are flat tensors of bytes (`torch.uint8`). A rank that is lost, or does not come within the time
    limit of whatever carries the bytes, is a `thinwire.errors.PeerLost` on the others.

    `attach(..., exchange=)` takes any object with these methods; it must span the ranks of the model's process group.
    """

    @property
    def rank(self) -> int:
        """This rank's number."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def begin(self, moment: str) -> None:
        """Take note that a round of collectives begins, such as a step: `moment` says which, for errors."""

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Incoming:
        """Start to send this message to all, and to gather everyone's.

        It does not wait for the messages: several gathers are under way at once, while the backward pass goes on. Where
        messages are `fixed`, all ranks' have one length; else it may wait for the lengths, and one that is negative or
        above `longest` is a `WireError` on every rank, before memory is taken for it. `what` names the message in
        errors.
        """

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        """Every rank's few numbers (of 64 bits, equally many on each), in rank order; waits for all."""


@runtime_checkable
class Scatters(Exchange, Protocol):
    """An exchange by which messages can be added up on their way. One without it gathers all of them."""

    def scatter(self, rows: Tensor, what: str) -> Incoming:
        """Start to send row j to rank j, for each j; every rank's row for this one comes in rank order."""


@runtime_checkable
class Trades(Exchange, Protocol):
    """An exchange by which every rank can tell each other something else."""

    def trade(self, letters: Sequence[Tensor], sizes: Sequence[int], what: str) -> Incoming:
        """Start to send the j-th letter to rank j, for each j; from rank i comes one of the i-th of these sizes."""


@runtime_checkable
class Reduces(Exchange, Protocol):
    """An exchange that adds up plain numbers itself, as DDP without a hook has it done: what `auto` asks for."""

    def reduce_(self, numbers: Tensor, what: str) -> Incoming:
        """Start to replace numbers by their sum over all ranks, the same bits on each; `wait` gives them."""
