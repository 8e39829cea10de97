"""The two hops of buckets whose numbers are shared out among owners: how long letters are, and how they start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from thinwire.engines.ddp.bucket import Arrival
from thinwire.errors import WireError
from thinwire.exchange import Incoming, Sharded, Traffic
from thinwire.ledger import Ledger
from thinwire.outgoing import Outgoing, longest_message


def send_shares(exchange: Sharded, sent: Outgoing, what: str, ledger: Ledger) -> Incoming:
    """Start to tell every owner of its numbers. Where letters of ranks may differ in length, lengths are told first."""
    assert sent.shares is not None
    letters = [letter.message for letter in sent.shares.letters]
    sizes = [letters[exchange.rank].numel()] * exchange.size
    if not sent.shares.fixed:
        rows = _told(exchange, sent.shares.sizes, [longest_message(sent.layout)] * exchange.size, what, ledger)
        sizes = [row[exchange.rank] for row in rows]
    return exchange.trade(letters, sizes, what)


def send_answers(exchange: Sharded, arrivals: Sequence[Arrival], ledger: Ledger) -> None:
    """Start to tell everyone an owner's answers about some buckets, all in one message, and book it.

    An answer that is as long as what its owner was told has a length that all know; others' are told first.
    """
    answered = [(one, one.answer) for one in arrivals if one.answer is not None]
    if not answered:
        return
    what = f"the answers to {' and '.join(one.what for one, _ in answered)}"
    messages = [answer.message for _, answer in answered]
    sizes = _answer_sizes(exchange, [one.sent for one, _ in answered], messages, what, ledger)
    totals = [sum(own) for own in zip(*sizes, strict=True)]
    incoming = exchange.trade([torch.cat(messages)] * exchange.size, totals, what)
    ledger.carry(incoming.traffic)
    starts = [list(accumulate(own, initial=0)) for own in zip(*sizes, strict=True)]
    for place, (one, _) in enumerate(answered):
        one.incoming = _Part(incoming, [slice(own[place], own[place + 1]) for own in starts])


def _answer_sizes(
    exchange: Sharded, sent: Sequence[Outgoing], messages: Sequence[Tensor], what: str, ledger: Ledger
) -> list[Sequence[int]]:
    """For each bucket the length of every owner's answer."""
    known = [None if one.shares is None else one.shares.answer_sizes for one in sent]
    unknown = [place for place, sizes in enumerate(known) if sizes is None]
    if not unknown:
        return [sizes for sizes in known if sizes is not None]
    longest = [longest_message(sent[place].layout) for place in unknown]
    rows = _told(exchange, [messages[place].numel() for place in unknown], longest, what, ledger)
    told = iter(zip(*rows, strict=True))
    return [next(told) if sizes is None else sizes for sizes in known]


@dataclass(frozen=True)
class _Part:
    """One bucket's answers out of all owners' messages."""

    incoming: Incoming
    slices: Sequence[slice]

    @property
    def traffic(self) -> Traffic:
        return self.incoming.traffic

    def wait(self) -> list[Tensor]:
        return [whole[own] for whole, own in zip(self.incoming.wait(), self.slices, strict=True)]


def _told(
    exchange: Sharded, sizes: Sequence[int], longest: Sequence[int], what: str, ledger: Ledger
) -> list[list[int]]:
    """Every rank's lengths; one that cannot be is a `WireError` on all."""
    rows = exchange.everyone(sizes, what)
    ledger.carry(Traffic.of_numbers(len(sizes), exchange.size))
    for rank, row in enumerate(rows):
        for size, most in zip(row, longest, strict=True):
            if not 0 <= size <= most:
                raise WireError(
                    f"rank {rank} announces a letter of {size} bytes for {what}, where none can be longer than "
                    f"{most}: its announcement is damaged, or forged"
                )
    return rows
