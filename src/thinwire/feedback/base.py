"""One algorithm in two halves, as the papers write it: a worker sends, the server receives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.errors import AttachError, ConfigError
from thinwire.layout import Layout, factors_of
from thinwire.named import Named
from thinwire.ops import Key, mean_at_
from thinwire.payload import Payload, add_all_to, placed_in

if TYPE_CHECKING:
    from thinwire.feedback.second_hop import SecondHop

State = Mapping[str, Tensor]
"""A rule's state for one layout: slot name -> flat tensor, changed in place."""


class Need(Enum):
    """What a rule asks of the engine that drives it.

    >>> from thinwire import MemSGD, TopK
    >>> [need.value for need in MemSGD(TopK(0.01)).needs]
    ['the step size of every parameter']
    """

    STEP_SIZE = "the step size of every parameter"
    MOMENTS = "the second moments of per-sample gradients"
    PREVIOUS = "the gradient at the previous point, on the same samples"
    FULL = "the gradient of all of a worker's samples, in the rounds that it asks for it"
    BROADCAST = "a server that broadcasts the model"
    AGREEMENT = "the sum of all workers' sketches, before they send"


@dataclass(frozen=True)
class Slot:
    """One named vector of a rule's state, as long as the parameters (or one number for each of them)."""

    name: str
    per_worker: bool = True
    """Each worker has its own (else it is the same on all)."""
    copies: bool = False
    """The slot holds one row for each worker of the group."""
    resize: str = "average"
    """For another number of workers: the average of the old ones, or the name of the slot to copy: a common one, the
    mean over all workers of what they have in this one."""
    joins: str | None = None
    """The common slot whose value (of copies: their mean) a worker that joins a run under way begins with. None: that
    of `resize`, else it begins as at the start of a run."""
    single: bool = False
    """One number for each parameter, in place of a vector."""
    factored: bool = False
    """One number for each row and each column of a matrix, in place of a vector; one for any other parameter."""
    initial: float = 0.0
    """What it holds at first, and after a reset."""
    bits: int = 32
    """8: a byte for each number and a scale for each block of them, rounded without bias when `send` is done. For a
    vector of each worker's own that begins as zero."""

    @property
    def summed_in(self) -> str | None:
        """The common slot that is the mean of this one over all workers, if there is one."""
        return None if self.resize == "average" else self.resize

    def length(self, shape: Sequence[int]) -> int:
        """How many numbers it holds for a parameter of this shape."""
        return 1 if self.single else factors_of(shape) if self.factored else math.prod(shape)


@dataclass(frozen=True)
class Signal:
    """What a worker wants to say this step: flat tensors of one layout."""

    value: Tensor
    """The gradient, in its true (unscaled) units."""
    rescale: Sequence[float] | None = None
    """Previous step size / this one, for each piece; None where no step sizes are known."""
    first: bool = False
    """Whether these parameters were never exchanged before."""
    moment: Tensor | None = None
    """q = sum_z c_z^2 over the per-sample gradients c_z that add up to `value`; there where a rule needs moments."""
    previous: Tensor | None = None
    """The gradient of the same samples at the previous point; there where a rule needs it."""
    workers: int = 1
    """How many workers' messages are averaged."""
    agreed: Sequence[Tensor] | None = None
    """What all workers' sketches of each piece add up to; there where a rule needs an agreement."""


@dataclass(frozen=True)
class Round:
    """What all workers have said this step about the parameters of one layout.

    >>> import torch
    >>> from thinwire import Key
    >>> from thinwire.payload import Dense
    >>> round = Round([Dense(torch.ones(2)), Dense(torch.zeros(2))], Key().shared())
    >>> len(round.payloads), round.first
    (2, False)
    """

    payloads: Sequence[Payload]
    """In rank order."""
    key: Key
    """The random key that all ranks hold in common."""
    first: bool = False
    """Whether these parameters were never exchanged before."""


class Feedback(Named, ABC):
    """A rule: frozen; all state is passed in and changed in place.

    >>> from thinwire import EF21, TopK
    >>> rule = EF21(TopK(0.01))
    >>> str(rule), [slot.name for slot in rule.slots]
    ('ef21(topk(0.01))', ['local', 'mean'])
    """

    compressor: Compressor
    owes: ClassVar[tuple[str, ...]] = ()
    """The worker's slot that holds all it has not sent, if one does, and those to be emptied with it."""

    averages: ClassVar[bool] = False
    """Whether `receive` is `mean_into` and nothing else, so that messages may be added up on their way to it."""

    dense_by_identity: ClassVar[bool] = False
    """Whether with `identity()` as its compressor it is dense training, by nothing but the mean of what workers say:
    `auto` may go over to that and back at any step, and no state is lost."""

    hands_over_common: ClassVar[bool] = False
    """Whether the result of `receive` is the rule's one common slot: where the one is finite, so is the other."""

    agrees: ClassVar[bool] = False
    """Whether it has `sketch`, so that workers can choose together what its compressor sends."""

    @property
    def needs(self) -> frozenset[Need]:
        """What it asks of the engine."""
        return frozenset({Need.AGREEMENT} if self.agrees and self.compressor.agrees else ())

    @property
    def varies(self) -> bool:
        """Whether in one step ranks may send messages of different kinds: sizes are then exchanged first."""
        return False

    @property
    def shows_all(self) -> bool:
        """Optional: whether a payload of any but the first round may clear (`Payload.clears`) the gradient, and the
        worker's own slots after `send`: where one of them is not finite, neither is what the compressor is given."""
        return False

    @property
    def has_momentum(self) -> bool:
        """Whether it applies momentum itself, so that an optimizer with momentum beside it would apply it twice."""
        return False

    @property
    def wants_linear(self) -> bool:
        """Whether late gradients add up only behind an optimizer whose step is rate times gradient: one that divides by
        a root of what it is given takes a number that waited for one huge gradient, and is warned of."""
        return bool(self.slots)

    @property
    def second_hop(self) -> SecondHop | None:
        """What it does where each worker is the server of a share of the numbers; None where it is not defined so."""
        return None

    @property
    def reads_common(self) -> bool:
        """Whether `send` reads, and does not change, the slots that are the same on all workers."""
        return False

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The vectors of its state."""
        return ()

    @abstractmethod
    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        """The worker's half: advance its own slots and say what travels. `signal` is left as it is."""

    def sketch(self, signal: Signal, layout: Layout, state: State, key: Key) -> Sequence[Tensor]:
        """Its compressor's sketch of what `send` will compress, for rules with `Need.AGREEMENT`; nothing advances."""
        raise TypeError(f"{self.name} has nothing to agree on")

    @abstractmethod
    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        """The server's half: advance the common slots and write the resulting gradient into `out`."""

    def residual(self, signal: Signal, state: State) -> Tensor | None:
        """What this worker wanted to say and has not said, after `send`; None where the rule forgets it."""
        return None

    def admit(self, name: str, numel: int) -> None:
        """Refuse a parameter that the rule cannot serve, such as one on which its compressor is no contraction (see
        `check_contraction`)."""

    def admit_workers(self, workers: int) -> None:
        """Refuse a number of workers that the rule is not made for."""

    @property
    def participation(self) -> float:
        """The probability with which a worker sends in a round, by a coin of its own. All do in the first; who stays
        away sends an empty message, and the rule is not asked."""
        return 1.0

    @property
    def piecewise(self) -> bool:
        """Optional: whether `send` treats each piece by itself, by `key.at(piece.index)`, given a compressor that does
        (`Compressor.piecewise`). One call may then serve many workers, whose pieces lie side by side."""
        return False

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        """Optional: the ascending positions of all that `send` looks at of a signal's vectors in the round of this key,
        or None where it looks at every one: an engine need not take the rest of a gradient."""
        return None

    def pattern(self, key: Key) -> Hashable | None:
        """Optional: as `Compressor.pattern`, for both halves of the rule."""
        return None

    def wants_full(self, key: Key) -> bool:
        """Whether a rule with `Need.FULL` asks for full gradients in the round of this common key."""
        return False

    def admit_terms(self, name: str, terms: int) -> None:
        """Refuse a parameter whose second moment has too few terms: the gradients that were squared for one step."""


def check_compressor(rule: Feedback) -> None:
    """Refuse anything but a compressor in a rule's first place."""
    if not isinstance(rule.compressor, Compressor):
        raise ConfigError(f"{rule.name} takes a compressor such as topk(0.01), got {rule.compressor!r}")
    if rule.compressor.agrees and not rule.agrees:
        raise ConfigError(
            f"{rule.name} has nothing that workers could agree on before they send, as {rule.compressor} asks them to: "
            f"use memsgd, plain, ef21, ef21sgdm or econtrol, or write {rule.name}(topk(0.01))"
        )


def check_contraction(rule: Feedback, compressor: Compressor, name: str, numel: int) -> None:
    """Refuse a parameter on which a compressor that must contract would amplify."""
    delta = compressor.delta(numel)
    if delta < 0:
        raise AttachError(
            f"{rule} needs a contraction, but {compressor} on parameter {name!r} ({numel} numbers) "
            f"has variance {1 - delta:.3g} > 1 and would amplify errors: "
            f"write {rule.name}(contractive({compressor}))"
        )


def mean_into(out: Tensor, payloads: Sequence[Payload]) -> Tensor:
    """out = (1/n) sum_i c_i, added in rank order."""
    placed = placed_in(payloads, out.dtype)
    if placed is not None:
        return mean_at_(out, *placed, len(payloads))
    total = add_all_to(out.zero_(), payloads)
    return total if len(payloads) == 1 else total.div_(len(payloads))
