"""An exchange in two hops: each rank is the server of a share of the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from torch import Tensor

from thinwire.checks import is_whole
from thinwire.errors import AttachError, ConfigError
from thinwire.exchange.protocol import Exchange, Incoming, Trades
from thinwire.owners import LEAST, Owners


@final
class Sharded:
    """Ranks that share out the server's work: everyone tells each owner of its numbers, and the owner tells everyone.

    What a worker sends of k numbers is 2 (n - 1) / n k in place of a gather's (n - 1) k, whatever positions others have
    chosen: an owner adds up what it is told, keeps what is too much to pass on, and passes it on later. Around an
    `Exchange` that can `trade`, such as `Group()`; `attach(..., exchange="server")` makes one of the model's group.

    >>> import torch.distributed as dist
    >>> from thinwire.exchange import Group
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> try:
    ...     Sharded(Group())
    ... except AttachError as error:
    ...     print(str(error)[:42])
    ... finally:
    ...     dist.destroy_process_group()
    exchange="server" needs 2 workers or more:
    """

    def __init__(self, inner: Exchange, *, least: int = LEAST) -> None:
        if not isinstance(inner, Trades):
            raise AttachError(
                f'exchange="server" needs an exchange with `trade` (thinwire.exchange.Trades), and '
                f"{type(inner).__name__} has none: give it one, or leave the server out"
            )
        self.inner: Trades = inner
        self.owners = owners_among(inner.size, least)

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.inner.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.inner.size

    def begin(self, moment: str) -> None:
        """A round of collectives begins."""
        self.inner.begin(moment)

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Incoming:
        """Gather everyone's message, for what is no gradient."""
        return self.inner.gather(message, fixed=fixed, longest=longest, what=what)

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        """Every rank's few numbers, in rank order; waits for all."""
        return self.inner.everyone(numbers, what)

    def trade(self, letters: Sequence[Tensor], sizes: Sequence[int], what: str) -> Incoming:
        """Start to send letter j to rank j."""
        return self.inner.trade(letters, sizes, what)


def owners_among(workers: int, least: int = LEAST) -> Owners:
    """Owners of shares among so many workers; refuses one alone."""
    if workers < 2:
        raise AttachError(
            'exchange="server" needs 2 workers or more: one alone has nobody to tell. Leave exchange= out there'
        )
    if not (is_whole(least) and least >= 1):
        raise ConfigError(f"a share has at least 1 number, got least={least!r}; 1024 is usual")
    return Owners(workers, least)


EXCHANGES: dict[str, Callable[[Exchange], Exchange]] = {"gather": lambda carrier: carrier, "server": Sharded}
"""Every exchange that has a name, made of what carries the bytes."""


def exchange_of(exchange: Exchange | str | None, carrier: Callable[[], Exchange]) -> Exchange:
    """An exchange as it is, or the one of this name among the ranks of a carrier; None is a gather.

    >>> exchange_of("serve", lambda: None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    thinwire.errors.AttachError: there is no exchange 'serve': take one of gather, server, or an object ...
    """
    if exchange is not None and not isinstance(exchange, str):
        return exchange
    name = exchange or "gather"
    check_exchange_name(name)
    return EXCHANGES[name](carrier())


def check_exchange_name(name: Any) -> None:
    """Refuse what is no name of an exchange."""
    if name not in EXCHANGES:
        raise AttachError(
            f"there is no exchange {name!r}: take one of {', '.join(EXCHANGES)}, or an object with the methods of "
            "thinwire.exchange.Exchange"
        )
