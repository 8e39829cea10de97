"""A fuzz run: so many damaged messages from one seed, and a count of how they fared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.corpus import Link, Sample, links, samples
from tests.fuzz.mutations import Mutator
from tests.fuzz.oracle import ACCEPTED, Finding, examine_message, examine_payload, resealed

ROUTES = ("payload", "sealed again", "not sealed again")


@dataclass
class Tally:
    """How many messages there were, and what became of them."""

    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By route and format."""
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    unchanged: int = 0
    """Changes that cancelled out: the message is as it was, and was left out."""
    refused: Counter[str] = field(default_factory=Counter)
    """By kind of error."""
    findings: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.messages.values())

    def __iadd__(self, other: Tally) -> Tally:
        self.messages += other.messages
        self.accepted += other.accepted
        self.refused += other.refused
        self.unchanged += other.unchanged
        self.findings += other.findings
        return self


class Campaign:
    """An endless supply of damaged messages, examined one by one."""

    def __init__(self, seed: int) -> None:
        self._random, self._mutator = Random(seed), Mutator(seed + 1)
        self._samples, self._links = samples(), links()

    def run(self, count: int) -> Tally:
        """Examine `count` damaged messages."""
        tally = Tally()
        while tally.total < count:
            if self._random.random() < 0.6:
                self._payload(tally)
            else:
                self._message(tally)
        return tally

    def _payload(self, tally: Tally) -> None:
        sample, other = self._random.choice(self._samples), self._random.choice(self._samples)
        message = bytes(self._mutator.damage(sample.message, sample.fields, sample.ends, other.message))
        if message == sample.message:
            tally.unchanged += 1
            return
        twice = self._random.random() < 0.1
        self._book(tally, ROUTES[0], sample, message, lambda: examine_payload(message, sample, twice=twice))

    def _message(self, tally: Tally) -> None:
        link, other = self._random.choice(self._links), self._random.choice(self._links)
        message = bytes(self._mutator.damage(link.message, link.fields, link.ends, other.message))
        if message in (link.message, other.message):  # a splice can be all of the other message, which is sound
            tally.unchanged += 1
        elif self._random.random() < 0.4:
            self._book(tally, ROUTES[2], link, message, lambda: _must_be_refused(message, link))
        else:
            message, late = resealed(message, link.suspect), self._random.random() < 0.3
            self._book(tally, ROUTES[1], link, message, lambda: examine_message(message, link, late=late))

    def _book(
        self, tally: Tally, route: str, source: Sample | Link, message: bytes, examine: Callable[[], str]
    ) -> None:
        key = (route, source.label)
        tally.messages[key] += 1
        try:
            verdict = examine()
        except Exception as error:  # whatever it is: only WireError may escape, and the oracle has caught those
            what = str(error) if isinstance(error, Finding) else f"{type(error).__name__}: {error}"
            tally.findings.append(f"{route} | {source.label} | {what} | {message.hex()}")
            return
        if verdict == ACCEPTED:
            tally.accepted[key] += 1
        else:
            tally.refused[verdict] += 1


def _must_be_refused(message: bytes, link: Link) -> str:
    verdict = examine_message(message, link)
    if verdict == ACCEPTED:
        raise Finding("a damaged message whose checksum was left as it was is accepted")
    return verdict


def tallies(seed: int, count: int, batch: int) -> Iterator[Tally]:
    """A campaign in batches, for whoever shows progress."""
    campaign = Campaign(seed)
    for done in range(0, count, batch):
        yield campaign.run(min(batch, count - done))
