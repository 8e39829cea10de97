"""What all ranks decide at the end of a step: that everyone takes it, or no one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from thinwire.engines.agreement import first_difference
from thinwire.errors import ThinwireError, WireError
from thinwire.exchange import Group

FINE, REFUSED, BROKEN = 0, 1, 2
"""What a rank says: it can take the step; something was not finite; something went wrong."""


class Described(Protocol):
    """What can tell in what ranks may have drifted apart."""

    def describe(self) -> dict[str, str]: ...

    @property
    def divides_by_active(self) -> bool: ...


@dataclass(frozen=True)
class Verdict:
    """The answer, the same on every rank but for the words of the error."""

    error: ThinwireError | None
    factor: float
    """What the mean over all ranks is multiplied by: n / a, where it is to be the mean over a ranks that had data."""

    @staticmethod
    def agreed(group: Group, problem: ThinwireError | None, refused: bool, active: bool, common: Described) -> Verdict:
        """Tell the others how it went here, and hear how it went there. One small exchange; where something went wrong,
        texts follow, so that every rank can say what it was."""
        mine = BROKEN if problem is not None else REFUSED if refused else FINE
        answers = group.everyone([mine, int(active)], "agreeing on the step")
        said = {answer for answer, _ in answers}
        error = None
        if BROKEN in said or len(said) > 1:
            error = _explained(group, problem, mine, common)
        counted = sum(here for _, here in answers) if common.divides_by_active else group.size
        return Verdict(error, group.size / counted if counted else 1.0)


def _explained(group: Group, problem: ThinwireError | None, mine: int, common: Described) -> ThinwireError | None:
    """What this rank raises; None where its own `NonFiniteGradient` says it."""
    text = str(problem) if problem is not None else "something was not finite" if mine == REFUSED else None
    answers = group.agree([text, common.describe()], "telling what went wrong")
    difference = first_difference([description for _, description in answers])
    if difference is not None:
        return WireError(
            f"ranks have drifted apart in {difference}; no rank has taken the step. Give every rank the same settings, "
            "and load the same checkpoint on all"
        )
    if problem is not None or mine == REFUSED:
        return problem
    rank, said = next((rank, said) for rank, (said, _) in enumerate(answers) if said is not None)
    return WireError(f"rank {rank} could not take the step, so no rank has: {said}")
