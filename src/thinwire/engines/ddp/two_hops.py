"""The two hops of a bucket whose numbers are shared out among owners: how long letters are, and how they start."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.channel import Outgoing, longest_message
from thinwire.errors import WireError
from thinwire.exchange import Incoming, Sharded, Traffic
from thinwire.hub import Answer
from thinwire.ledger import Ledger


def send_shares(exchange: Sharded, sent: Outgoing, what: str, ledger: Ledger) -> Incoming:
    """Start to tell every owner of its numbers. Where letters of ranks may differ in length, lengths are told first."""
    assert sent.shares is not None
    letters = [letter.message for letter in sent.shares.letters]
    sizes = [letters[exchange.rank].numel()] * exchange.size
    if not sent.shares.fixed:
        rows = _told(exchange, sent.shares.sizes, longest_message(sent.layout), what, ledger)
        sizes = [row[exchange.rank] for row in rows]
    return exchange.trade(letters, sizes, what)


def send_answer(exchange: Sharded, sent: Outgoing, answer: Answer, what: str, ledger: Ledger) -> Incoming:
    """Start to tell everyone an owner's answer, and book it. Where it is as long as what it was told, all know that."""
    assert sent.shares is not None
    sizes, what = sent.shares.answer_sizes, f"the answers to {what}"
    if sizes is None:
        rows = _told(exchange, [answer.message.numel()], longest_message(sent.layout), what, ledger)
        sizes = [size for (size,) in rows]
    incoming = exchange.trade([answer.message] * exchange.size, sizes, what)
    ledger.carry(incoming.traffic)
    return incoming


def _told(exchange: Sharded, sizes: Sequence[int], longest: int, what: str, ledger: Ledger) -> list[list[int]]:
    """Every rank's lengths; one that cannot be is a `WireError` on all."""
    rows = exchange.everyone(sizes, what)
    ledger.carry(Traffic.of_numbers(len(sizes), exchange.size))
    for rank, row in enumerate(rows):
        for size in row:
            if not 0 <= size <= longest:
                raise WireError(
                    f"rank {rank} announces a letter of {size} bytes for {what}, where none can be longer than "
                    f"{longest}: its announcement is damaged, or forged"
                )
    return rows
