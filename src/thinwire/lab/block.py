"""A block: what was measured at one rate, every method beside the others, with the parts of its step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.lab.race import Race
from thinwire.lab.setting import ALONE, DENSE, Cable, LabSetting

SETTLING_ROUNDS = 5
"""Of two equals one is the faster in all of five rounds once in 32 times."""


@dataclass(frozen=True)
class Trial:
    """One method at one rate: milliseconds a step of each round, its parts, and bytes that a host sent a step."""

    method: str
    ms: tuple[float, ...]
    """Of the host that was last."""
    encode_ms: float | None
    decode_ms: float | None
    """Medians over rounds of the hosts' mean; None where they cannot be told apart."""
    sent: float
    """By the account: the ledger, or a ring all-reduce's formula."""
    carried: float | None
    """By the interface's own counter, packet headers and acknowledgements included; None: on no interface."""
    explained: str | None = None
    """What a method that chooses has chosen, and why."""

    @staticmethod
    def of(method: str, rounds: Sequence[Sequence[Mapping[str, Any]]], steps: int) -> Trial:
        """From what every host answered in every round."""
        a_step = 1e3 / steps
        parts = {
            part: statistics.median(statistics.fmean(host[part] for host in hosts) for hosts in rounds) * a_step
            for part in ("encode", "decode")
            if all(part in host for hosts in rounds for host in hosts)
        }
        return Trial(
            method,
            tuple(round(max(host["seconds"] for host in hosts) * a_step, 4) for hosts in rounds),
            parts.get("encode"),
            parts.get("decode"),
            sent=_a_step("sent", rounds, steps),
            carried=_a_step("carried", rounds, steps),
            explained=rounds[-1][0].get("explained"),
        )

    @property
    def median(self) -> float:
        """Milliseconds a step."""
        return statistics.median(self.ms)

    def beats(self, other: Trial) -> bool:
        """Whether it was faster in every round, of as many as settle it; each compares turns near each other."""
        return len(self.ms) >= SETTLING_ROUNDS and all(
            mine < theirs for mine, theirs in zip(self.ms, other.ms, strict=True)
        )


def _a_step(what: str, rounds: Sequence[Sequence[Mapping[str, Any]]], steps: int) -> Any:
    """Bytes of a host's step, on average; None where no host counts them."""
    counted = [host[what] for hosts in rounds for host in hosts if host[what] is not None]
    return statistics.fmean(counted) / steps if counted else None


@dataclass(frozen=True)
class Block:
    """All methods at one rate, measured by turns."""

    hosts: int
    task: str
    parameters: int
    batch: int
    steps: int
    replay: float | None
    cable: Cable
    trials: tuple[Trial, ...]
    emulated: bool = False
    codec: float | None = None
    every: int = 1
    race: Race | None = None

    @staticmethod
    def of(setting: LabSetting, cable: Cable, parameters: int, trials: tuple[Trial, ...]) -> Block:
        """Of a setting that was measured."""
        batch = setting.config(DENSE).batch
        asked = (setting.hosts, setting.task, parameters, batch, setting.steps, setting.replay)
        return Block(*asked, cable, trials, setting.emulated, setting.codec, setting.every)

    def trial(self, method: str) -> Trial:
        """Of a method."""
        return next(trial for trial in self.trials if trial.method == method)

    @property
    def compute(self) -> float:
        """Milliseconds of a step without any exchange."""
        return self.trial(ALONE).median

    def rest(self, trial: Trial) -> float:
        """Milliseconds of a step beyond computing, encoding and decoding: on the wire, and waiting for others."""
        return trial.median - self.compute - (trial.encode_ms or 0.0) - (trial.decode_ms or 0.0)

    def utilisation(self, trial: Trial) -> float:
        """The share of its time for which a host computes, where computing is replayed."""
        return self.every * (self.replay or 0.0) / trial.median

    def seconds_to_goal(self, trial: Trial) -> float | None:
        """How long a method takes to where dense training ends; None where it does not come there."""
        steps = None if self.race is None else self.race.steps_to_goal(trial.method)
        return None if steps is None else steps * trial.median / 1e3

    def speed(self, trial: Trial) -> float:
        """Over that of dense float32."""
        return self.trial(DENSE).median / trial.median

    @property
    def rivals(self) -> list[Trial]:
        """All that do exchange."""
        return [trial for trial in self.trials if trial.method != ALONE]

    def plain(self) -> dict[str, Any]:
        """As a record has it; `of_plain` is the inverse."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Block:
        trials = tuple(Trial(**{**trial, "ms": tuple(trial["ms"])}) for trial in plain["trials"])
        race = None if plain.get("race") is None else Race.of_plain(plain["race"])
        block = Block(**{**plain, "cable": Cable(**plain["cable"]), "trials": trials, "race": race})
        if not {ALONE, DENSE} <= {trial.method for trial in trials}:
            raise ValueError(f"a block holds {ALONE} and {DENSE}")
        if not trials[0].ms or len({len(trial.ms) for trial in trials}) > 1:
            raise ValueError("all methods of a block have as many rounds")
        return block
