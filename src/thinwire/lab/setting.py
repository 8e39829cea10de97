"""The setting of a laboratory: how many hosts, which wires, what is trained by which methods; checked when built."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

from thinwire.errors import ConfigError
from thinwire.exchange import check_exchange_name
from thinwire.link import rate_of, show_rate
from thinwire.training.config import TORCH_METHODS, RunConfig, canonical_method, is_auto
from thinwire.training.tasks import check_task

ALONE, DENSE = "alone", "dense"
BASELINES = (ALONE, DENSE, "fp16", "powersgd1")
"""What every run measures too: no exchange at all, DDP in float32, torch's fp16 hook and its PowerSGD of rank 1."""
OURS = ("memsgd(topk(0.01))", "memsgd(topk(0.001))")
"""Measured beside the task's own method where the user names none."""
UNSHAPED = "none"
GATHER = "gather"
"""How messages travel where a method does not say."""
MOST_HOSTS = 254
"""Addresses of a /24."""
FASTEST = 1e11
"""Bits a second; no two processes of one machine exchange more."""
MOST = 10**6


@dataclass(frozen=True)
class Cable:
    """What joins a host to the switch: bits a second each way, None where it is not shaped.

    >>> print(Cable.of("110mbit", "500mbit"), Cable.of("none", "none"), Cable.of("1gbit", "1gbit"), sep="; ")
    110 Mbit/s up, 500 Mbit/s down; unshaped; 1 Gbit/s
    """

    up: float | None
    down: float | None

    @staticmethod
    def of(up: str, down: str) -> Cable:
        """From the texts of two rates."""
        return Cable(_rate(up), _rate(down))

    @property
    def slowest(self) -> float | None:
        """The rate of the slower way."""
        return min((rate for rate in (self.up, self.down) if rate is not None), default=None)

    def __str__(self) -> str:
        if self.up == self.down:
            return _show(self.up)
        return f"{_show(self.up)} up, {_show(self.down)} down"


def _show(rate: float | None) -> str:
    return "unshaped" if rate is None else show_rate(rate)


def _rate(text: str) -> float | None:
    if text.strip().lower() == UNSHAPED:
        return None
    rate = rate_of(text)
    if rate > FASTEST:
        raise ConfigError(
            f"{text.strip()} is faster than any wire of this laboratory ({show_rate(FASTEST)}); {UNSHAPED!r} leaves it "
            "unshaped"
        )
    return rate


def cables(rates: str, up: str | None = None, down: str | None = None) -> tuple[Cable, ...]:
    """The wires of some rates, in their order; `up` and `down` hold other rates for one way, one for all or one each.

    >>> [str(cable) for cable in cables("100mbit,none", up="20mbit")]
    ['20 Mbit/s up, 100 Mbit/s down', '20 Mbit/s up, unshaped down']
    """
    words = rates.split(",")
    ways = [_as_many(words, own, option) for own, option in ((up, "--up"), (down, "--down"))]
    found = tuple(Cable.of(*pair) for pair in zip(*ways, strict=True))
    if len(set(found)) < len(found):
        raise ConfigError(f"the rates must differ from each other, got {rates}; remove what is given twice")
    return found


def _as_many(words: Sequence[str], own: str | None, option: str) -> list[str]:
    rates = list(words) if own is None else own.split(",")
    if len(rates) not in (1, len(words)):
        raise ConfigError(f"{option} takes 1 rate or one for each of the {len(words)} of --rate, got {len(rates)}")
    return [rate for rate, _ in zip(cycle(rates), words, strict=False)]


def lab_method(text: str) -> str:
    """The one spelling of a method: a baseline, PowerSGD of another rank, or a rule, and how its messages travel.

    >>> lab_method(" powersgd "), lab_method("powersgd4"), lab_method("memsgd(topk(0.010))@server")
    ('powersgd1', 'powersgd4', 'memsgd(topk(0.01)) @ server')
    """
    text, exchange = rule_and_exchange(text)
    if exchange != GATHER:
        check_exchange_name(exchange)
        return f"{lab_rule(text)} @ {exchange}"
    rank = powersgd_rank(text.strip())
    if rank is not None:
        return f"powersgd{rank}"
    return ALONE if text.strip() == ALONE else canonical_method(text)


def rule_and_exchange(method: str) -> tuple[str, str]:
    """The rule of a method, and the name of the exchange by which its messages travel.

    >>> rule_and_exchange("memsgd(topk(0.01)) @ server"), rule_and_exchange("dense")
    (('memsgd(topk(0.01))', 'server'), ('dense', 'gather'))
    """
    match = re.fullmatch(r"(.*\S)\s*@\s*(\w+)\s*", method, re.DOTALL)
    return (match[1], match[2]) if match else (method, GATHER)


def lab_rule(text: str) -> str:
    """The one spelling of a rule of thinwire's own, which alone can travel in another way than a gather."""
    rule = canonical_method(text)
    if not is_rule(rule):
        raise ConfigError(f"{rule} is torch's own, and travels as torch sends it: name a rule before the @")
    return rule


def powersgd_rank(method: str) -> int | None:
    """The rank of torch's PowerSGD; None of any other method."""
    match = re.fullmatch(r"powersgd([1-9]\d{0,2})?", method)
    return None if match is None else int(match[1] or 1)


def is_rule(method: str) -> bool:
    """Whether it is one of thinwire's own, and none of torch's."""
    return method != ALONE and method not in TORCH_METHODS and powersgd_rank(method) is None


def chooses(method: str) -> bool:
    """Whether it chooses how buckets travel, and must see a wire for some steps first."""
    return is_rule(method) and is_auto(rule_and_exchange(method)[0])


def lab_methods(text: str | None, task: str, *, powersgd: bool = True) -> tuple[str, ...]:
    """The baselines, then the methods of a text with semicolons between, or the task's own and top-k with memory."""
    words = [check_task(task).defaults.method, *OURS] if text is None else text.split(";")
    baselines = [method for method in BASELINES if powersgd or powersgd_rank(method) is None]
    return tuple(dict.fromkeys([*baselines, *(lab_method(word) for word in words if word.strip())]))


@dataclass(frozen=True, kw_only=True)
class LabSetting:
    """All that is asked of a laboratory; nothing of the machine is looked at here."""

    hosts: int
    cables: tuple[Cable, ...]
    task: str
    methods: tuple[str, ...]
    steps: int = 5
    """Measured steps of a method's turn."""
    rounds: int = 5
    """Turns of each method at each rate."""
    batch: int | None = None
    data: str | None = None
    replay: float | None = None
    """Milliseconds that hosts sleep in place of computing; None: they compute."""
    codec: float | None = None
    """Milliseconds that hosts sleep in place of encoding and decoding, too: messages are made once and sent again. Of
    torch's methods nothing but the sum of their bytes is left then."""
    every: int = 1
    """With `codec`: steps of computing before an exchange."""
    settle: int = 80
    """Steps that `auto` takes behind a wire before it is timed there."""
    train: int = 0
    """Steps for which every method is trained too, for how many of them take it to the dense run's loss."""
    timeout: float = 300.0
    """Seconds that ranks wait for each other."""
    emulated: bool = False
    """Plain processes behind emulated links, in place of namespaces behind wires that `tc` shapes."""

    def __post_init__(self) -> None:
        check_task(self.task, self.data)
        _check_whole("--hosts", self.hosts, 2, MOST_HOSTS, "a wire joins two; the addresses of a /24 are 254")
        for name in ("steps", "rounds"):
            _check_whole(f"--{name}", getattr(self, name), 1, MOST, "five take some minutes")
        if self.batch is not None:
            _check_whole("--batch", self.batch, 1, MOST, "it counts the samples of one host's step")
        if self.replay is not None and not 0 <= self.replay <= 1e6:
            raise ConfigError(f"--replay takes milliseconds from 0 to 1,000,000, got {self.replay:g}; for example 30")
        self._check_echo()
        _check_whole("--settle", self.settle, 0, MOST, "it counts the steps in which auto chooses, at each rate")
        _check_whole("--train", self.train, 0, MOST, "it counts the steps for which each method is trained")
        if not (math.isfinite(self.timeout) and 1 <= self.timeout <= 86_400):
            raise ConfigError(f"--timeout takes seconds from 1 to 86,400, got {self.timeout:g}; for example 300")

    def _check_echo(self) -> None:
        """Refuse messages that are sent again beside gradients that are computed."""
        _check_whole("--every", self.every, 1, MOST, "it counts the steps of computing before an exchange")
        if self.codec is None:
            if self.every > 1:
                raise ConfigError(
                    "--every goes with --codec: only messages that are sent again can be sent seldom here"
                )
            return
        if not 0 <= self.codec <= 1e6:
            raise ConfigError(f"--codec takes milliseconds from 0 to 1,000,000, got {self.codec:g}; for example 1")
        if self.replay is None:
            raise ConfigError("--codec sleeps in place of encoding, which needs --replay MS in place of computing too")
        unknown = [method for method in self.methods if powersgd_rank(method) is not None]
        choosing = [method for method in self.methods if chooses(method)]
        if choosing:
            raise ConfigError(f"--codec sends the same messages again, and {choosing[0]} chooses: leave one out")
        if unknown:
            raise ConfigError(f"--codec cannot replay torch's PowerSGD: leave {', '.join(unknown)} out")

    def config(self, method: str) -> RunConfig:
        """Task, optimizer and learning rate of a method, as `thinwire train` would take them."""
        rule = rule_and_exchange(method)[0] if is_rule(method) else DENSE
        return RunConfig.of(self.task, rule, workers=self.hosts, batch=self.batch, data=self.data)

    def plain(self) -> dict[str, Any]:
        """As JSON has it; `of_plain` is the inverse."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> LabSetting:
        wires = tuple(Cable(**cable) for cable in plain["cables"])
        return LabSetting(**{**plain, "cables": wires, "methods": tuple(plain["methods"])})


def _check_whole(option: str, value: int, low: int, high: int, why: str) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{option} must be a whole number from {low} to {high:,}, got {value}: {why}")
