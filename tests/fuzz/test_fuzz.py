"""A short fuzz run, the same every time, and the messages that longer runs found fault with."""

from __future__ import annotations

import pytest
import torch
from tests.fuzz.campaign import Campaign
from tests.fuzz.corpus import Link, Sample, links, samples
from tests.fuzz.oracle import ACCEPTED, Finding, Guarded, examine_message, examine_payload, resealed

from thinwire.ops import backend
from thinwire.payload.letter import CHECKED

with backend("reference"):  # while tests are collected, nothing is compiled
    SAMPLES, LINKS = samples(), links()
NAMED = {f"{link.label}-{i // 3 % 2}-of {link.channel.size}": link for i, link in enumerate(LINKS)}
FIXED = {name: link for name, link in NAMED.items() if link.sent.fixed}
each_link = pytest.mark.parametrize("link", NAMED.values(), ids=NAMED)
each_fixed_link = pytest.mark.parametrize("link", FIXED.values(), ids=FIXED)


@pytest.mark.parametrize("kernels", ["numba", "reference"])
def test_damaged_messages_are_refused_or_read_without_a_doubt(kernels: str) -> None:
    with backend(kernels):
        tally = Campaign(seed=0).run(3000)
    assert tally.findings == []
    assert len(tally.refused) > 20  # the damage reaches most checks, not only the first ones
    assert sum(tally.accepted.values()) > 100


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.label}-{s.layout.numel}-{s.dtype}")
def test_real_payloads_are_accepted(sample: Sample) -> None:
    assert examine_payload(sample.message, sample, twice=True) == ACCEPTED


@each_link
def test_real_messages_are_accepted_read_at_once_or_late(link: Link) -> None:
    """Reading late once broke on QSGD's messages: it was written as one run of fields and read as two."""
    assert examine_message(link.message, link, late=True) == ACCEPTED


@each_fixed_link
def test_a_real_message_read_late_gives_the_same_numbers(link: Link) -> None:
    """Messages of varying size are never read late."""
    rows = Guarded(b"".join(link.gathered), 0).tensor.view(link.channel.size, -1)
    results = []
    for receive in (link.channel.receive, link.channel._receive_unjudged):
        results.append(receive(link.sent, rows, torch.empty_like(link.out)).clone())
        link.channel.judge()
        link.channel.abandon()
    assert torch.equal(*results)


def test_every_single_bit_flipped_is_refused() -> None:
    """Whatever bit of a sealed message is damaged, its checksum tells."""
    link = LINKS[0]
    for place in range(8 * len(link.message)):
        damaged = bytearray(link.message)
        damaged[place // 8] ^= 1 << place % 8
        assert examine_message(bytes(damaged), link) != ACCEPTED


def test_late_reading_marks_the_message_with_a_flipped_bit() -> None:
    """Bit after bit of some rank's message, its checksum made to fit: the oracle says which row must be unsound."""
    for link in [link for link in LINKS if link.sent.fixed][::7]:
        for bit in range(8 * CHECKED, 8 * len(link.message), 3):
            damaged = bytearray(link.message)
            damaged[bit // 8] ^= 1 << bit % 8
            examine_message(resealed(bytes(damaged), link.suspect), link, late=True)


def test_the_guard_finds_a_write() -> None:
    guarded = Guarded(b"abc", 0xAA)
    guarded.check()
    guarded.tensor[0] = 0
    with pytest.raises(Finding):
        guarded.check()
