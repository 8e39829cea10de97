"""Typed errors: each message says the value it met, the bound it broke and the remedy."""

from __future__ import annotations

import re
from datetime import timedelta


class ThinwireError(Exception):
    """Base of every error that thinwire raises on purpose."""


class ConfigError(ThinwireError, ValueError):
    """A value given by the user is out of its bounds."""


class SpecError(ConfigError):
    """A method's text cannot be read; the message carries a caret under the place.

    >>> print(SpecError("ef21(topk(2))", 5, "topk ratio must lie in (0, 1], got 2"))
    topk ratio must lie in (0, 1], got 2
      ef21(topk(2))
           ^
    """

    def __init__(self, text: str, column: int, problem: str) -> None:
        super().__init__(f"{problem}\n  {text}\n  {' ' * column}^")
        self.text, self.column, self.problem = text, column, problem

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, int, str]]:
        return type(self), (self.text, self.column, self.problem)


class UnknownName(SpecError):
    """A method's text has a name that is not known: a mistake, or that of a class that was not registered."""


class AttachError(ThinwireError, ValueError):
    """A rule cannot be attached to this model, optimizer or group of ranks."""


class StateError(ThinwireError, ValueError):
    """A saved state does not fit; nothing was changed."""


class CheckpointError(ThinwireError, OSError):
    """A checkpoint could not be written, or not be read, on some rank: so on none; older ones are as they were."""


class CheckpointWarning(UserWarning):
    """A damaged or unfinished checkpoint was passed over, or an old one could not be deleted."""


class QuorumError(ThinwireError, RuntimeError):
    """The workers of an elastic run cannot take a step together now; no state has advanced, and the next may do."""


class WireError(ThinwireError, ValueError):
    """A message is damaged, truncated, or was made for another method or layout."""


class BackendError(ThinwireError, RuntimeError):
    """An optional back-end or package was asked for and is not there."""


class DataError(ThinwireError, ValueError):
    """A data file is missing, truncated or malformed."""


class RecordError(ThinwireError, ValueError):
    """A run's record is missing, truncated or malformed."""


class MomentError(ThinwireError, RuntimeError):
    """Second moments of per-sample gradients cannot be computed as planned; nothing is approximated in silence."""


class RecordWarning(UserWarning):
    """A record was cut off while it was written; all that is whole in it was read."""


class StepSizeWarning(UserWarning):
    """A step size beyond what a theorem admits; it may work, and often does, but nothing guarantees it."""


class OptimizerWarning(UserWarning):
    """An optimizer, or a learning rate, with which a rule's memory does not do what its paper says."""


class OversubscriptionWarning(UserWarning):
    """More threads than there are cores; the result is right, and comes later."""


class NonFiniteGradient(ThinwireError, ArithmeticError):
    """Some rank's gradient held NaN or infinity, or was too large to remember or to add; no state has advanced."""

    def __init__(
        self, rank: int | None, parameter: str, step: int, overflows: bool = False, teller: str = "rank"
    ) -> None:
        where = f"in parameter {parameter!r} at step {step}; no rank's state has advanced"
        if overflows:
            text = (
                f"{teller} {rank} computed a gradient so large that what it has to remember overflows {where}. Drop "
                "the step (optimizer.zero_grad()) and go on; if it comes again, clip the loss or lower the rate"
            )
        elif rank is not None:
            text = (
                f"{teller} {rank} computed a gradient (or squares of one) with NaN or infinity {where}. Drop the step "
                '(optimizer.zero_grad()) and go on, or attach with nonfinite="skip" so that a gradient scaler skips '
                "it. (Squares that could not be computed are NaN too: that rank's own MomentError then says why)"
            )
        else:
            text = (
                f"what the ranks exchanged does not fit the gradient's type {where}. In float16 it will not fit later "
                "either: use bfloat16 or float32 gradients, or a smaller loss scale; else clip, or lower the rate"
            )
        super().__init__(text)
        self.rank, self.parameter, self.step, self.overflows, self.teller = rank, parameter, step, overflows, teller

    def __reduce__(self) -> tuple[type[NonFiniteGradient], tuple[int | None, str, int, bool, str]]:
        return NonFiniteGradient, (self.rank, self.parameter, self.step, self.overflows, self.teller)

    def of_site(self) -> NonFiniteGradient:
        """The same, where not a rank's gradient was sent but the mean of a site's, whose number `rank` is."""
        return NonFiniteGradient(self.rank, self.parameter, self.step, self.overflows, "site")


class NonFiniteUpdate(ThinwireError, ArithmeticError):
    """Some rank's parameters held NaN or infinity at an outer step, or moved too far; no state has advanced."""

    def __init__(self, rank: int | None, parameter: str, step: int, overflows: bool = False) -> None:
        where = f"parameter {parameter!r} at outer step {step}; no rank has taken it"
        if rank is None:
            text = f"what the ranks exchanged overflows in {where}"
        elif overflows:
            text = f"rank {rank} has moved so far that what it has to remember overflows in {where}"
        else:
            text = f"rank {rank} holds NaN or infinity in {where}"
        super().__init__(
            f'{text}. Load a checkpoint; or attach with nonfinite="skip", by which all ranks go back to the last outer '
            "point. If it comes again, lower the learning rate or clip"
        )
        self.rank, self.parameter, self.step, self.overflows = rank, parameter, step, overflows

    def __reduce__(self) -> tuple[type[NonFiniteUpdate], tuple[int | None, str, int, bool]]:
        return NonFiniteUpdate, (self.rank, self.parameter, self.step, self.overflows)


class PeerLost(ThinwireError, RuntimeError):
    """Another rank died, was stopped or cut off: a collective failed. No state has advanced on this rank."""

    def __init__(
        self, rank: int, size: int, moment: str, what: str, timeout: timedelta | None, problem: str, missing: str = ""
    ) -> None:
        waited = timeout is not None and re.search("time-?d? ?out", problem, re.IGNORECASE)
        limit = f" (it was waited for {timeout.total_seconds():g} s: " if waited and timeout is not None else ""
        limit += "timeout= of torch.distributed.init_process_group)" if limit else ""
        super().__init__(
            f"rank {rank} of {size} lost touch with another rank in {moment}, {what}{limit}{missing}. This rank's "
            "state is that of the last finished step: save it (handle.state_dict()), then end the process and restart "
            f"all ranks. torch says: {problem}"
        )
        self.rank, self.size, self.moment, self.what = rank, size, moment, what
        self.timeout, self.problem, self.missing = timeout, problem, missing

    def __reduce__(self) -> tuple[type[PeerLost], tuple[object, ...]]:
        return PeerLost, (self.rank, self.size, self.moment, self.what, self.timeout, self.problem, self.missing)
