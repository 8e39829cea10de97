"""What was really sent: bytes per step, their ratio to dense training, and how much is still unsaid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from torch import Tensor

from thinwire.exchange import Traffic, allreduce_bytes
from thinwire.outgoing import Norms

PATIENCE = 256
"""How many buckets' norms may wait to be read: reading makes the host wait for a GPU."""
BYTES = ("message_bytes", "sent_bytes", "received_bytes", "broadcast_bytes")
CURVES = ("sent_bytes", "ratio_fp32", "residual_ratio")
"""What the bars and loggers of frameworks show."""


@dataclass(frozen=True)
class Switch:
    """A change of mind of `auto`'s: how buckets travel from a step on, and why."""

    step: int
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.before} → {self.after}: {self.why}"


class Ledger:
    """One worker's account. Bytes are counted at every step; norms are measured at every `every`-th (0: never).

    `sent` is what left the worker: an all-gather of messages of B bytes among n workers sends (n - 1) B, a ring
    all-reduce of D bytes 2 (n - 1) / n D. `ratio_fp32` and `ratio_bf16` compare the two, so they shrink as workers are
    added, as the traffic really does. Three ratios do not depend on how messages are gathered:

    ratio_elements    c = N over the numbers in a worker's message: what VGC's paper calls the compression ratio
    ratio_message     4 N over the bytes of that message, with all that stands around the numbers
    ratio_effective   2 (n - 1) c / n^2: ring all-reduce over pipelined all-gather, by the paper's cost model

    In a simulation, bytes and numbers of a message are means over its workers; under DDP they are this rank's own. The
    first and the third ratio are there where the message's format counts its numbers (QSGD's: those that are not zero).
    `broadcast` is what a server tells every worker, where a rule has one (`EF21P`); it is no part of what workers send
    each other.

    residual_ratio    norm of what a worker has not said over the norm of its gradient
    rate_fall         the highest learning rate so far over the present one, where rates are known

    Where a rule keeps its memory in units of updates (`MemSGD`), so does the first of these: |m| over s |g|, where s is
    the rate at which what is in the memory was given (see `MemoryRate`). By the present rate, a memory from before a
    decay would look as if it had grown.

    >>> import torch
    >>> from thinwire import Simulation
    >>> simulation = Simulation({"x": torch.zeros(1000)}, "plain(topk(0.01))", workers=4)
    >>> _ = simulation.exchange([{"x": torch.randn(1000)} for _ in range(4)])
    >>> summary = simulation.ledger.summary()
    >>> summary["sent_bytes"], round(summary["ratio_fp32"])
    (264, 23)
    """

    def __init__(self, workers: int, *, every: int = 10) -> None:
        self.workers, self.every = workers, every
        self.steps = 0
        self.skipped = 0
        self._counts_elements = True
        self._total: dict[str, float | Tensor] = dict.fromkeys((*BYTES, "numbers", "elements"), 0)
        self._step = dict(self._total)
        self._last = dict(self._total)
        self._norms: dict[str, Norms] = {}
        self._measured: list[Mapping[str, Norms]] = []
        self._memory_rates: dict[str, MemoryRate] = {}
        self._highest: list[float] = []
        self._rates: list[float] = []
        self.switches: list[Switch] = []
        """What `auto` has changed so far; nothing under any other rule."""

    def due(self, step: int) -> bool:
        """Whether norms are measured at this step."""
        return self.every > 0 and step % self.every == 0

    def add(
        self, traffic: Traffic, numbers: int, norms: Mapping[str, Norms], elements: float | Tensor | None = None
    ) -> None:
        """Book one exchange of so many numbers, of which so many were sent (None: the format does not count them).

        A count that is still on a GPU stays there until someone asks for the account.
        """
        self._step["message_bytes"] += traffic.message
        self._step["sent_bytes"] += traffic.sent
        self._step["received_bytes"] += traffic.received
        self._step["numbers"] += numbers
        self._step["elements"] += 0 if elements is None else elements
        self._counts_elements = self._counts_elements and elements is not None
        self._measured.append(norms)
        if len(self._measured) > PATIENCE:
            self._read_norms()

    def carry(self, traffic: Traffic) -> None:
        """Book a second hop of an exchange that was added."""
        self._step["sent_bytes"] += traffic.sent
        self._step["received_bytes"] += traffic.received

    def see(self, rates: Sequence[float], peaks: Sequence[float]) -> None:
        """Note the learning rates of a step, and those that their schedules began with, which a resumed run has not
        seen."""
        before = [max(pair) for pair in zip_longest(peaks, self._highest, fillvalue=0.0)]
        self._rates = list(rates)
        self._highest = [max(pair) for pair in zip(rates, before, strict=False)]

    @property
    def rate_fall(self) -> float:
        """The highest learning rate so far over the present one, at its largest over parameter groups."""
        return max((_over(high, now) for high, now in zip(self._highest, self._rates, strict=True) if now), default=1.0)

    def book(self, traffic: Traffic) -> None:
        """Book an exchange that is no part of any step."""
        for key, value in (("message", traffic.message), ("sent", traffic.sent), ("received", traffic.received)):
            self._total[f"{key}_bytes"] += value

    def tell(self, broadcast: int) -> None:
        """Book what a server told every worker after the step that was closed last."""
        self._total["broadcast_bytes"] += broadcast
        self._last["broadcast_bytes"] += broadcast

    def finish(self, *, skipped: bool) -> None:
        """Close a step's account; a skipped step's bytes count, for they travelled."""
        self._last, self._step = self._step, dict.fromkeys(self._step, 0)
        for key, value in self._last.items():
            self._total[key] += value
        self.steps += 1
        self.skipped += skipped

    def summary(self) -> dict[str, float]:
        """Totals so far, as plain numbers for any logger."""
        changed = {"switches": len(self.switches)} if self.switches else {}
        counts = {"steps": self.steps, "skipped_steps": self.skipped, **changed}
        return {**counts, **self._account(self._total), **self._residual()}

    def last_step(self) -> dict[str, float]:
        """The last step alone, in the same terms."""
        return {"step": self.steps - 1, **self._account(self._last), **self._residual()}

    def metrics(self, prefix: str = "thinwire/") -> dict[str, float]:
        """The few totals that a curve is drawn of, for TensorBoard, Weights & Biases and the like: finite numbers only.

        >>> ledger = Ledger(2)
        >>> ledger.add(Traffic(100, 100, 100), 1000, {})
        >>> ledger.finish(skipped=False)
        >>> ledger.metrics()
        {'thinwire/sent_bytes': 100, 'thinwire/ratio_fp32': 40.0, 'thinwire/residual_ratio': 0.0}
        """
        summary = self.summary()
        return {prefix + key: summary[key] for key in CURVES if math.isfinite(summary[key])}

    def line(self) -> str:
        """The same as words, for a bar or a log.

        >>> Ledger(2).line()
        '0.00 MB sent, nan × fewer than fp32, residual 0'
        """
        told = self.summary()
        sent, ratio, residual = (told[key] for key in CURVES)
        return f"{sent / 1e6:,.2f} MB sent, {ratio:.3g} × fewer than fp32, residual {residual:.3g}"

    def per_parameter(self) -> dict[str, float]:
        """Norm of what is still unsaid over the norm of the gradient, for each parameter, when last measured."""
        self._read_norms()
        return {name: self._ratio([name]) for name in self._norms}

    def _account(self, booked: Mapping[str, float | Tensor]) -> dict[str, float]:
        counts = {key: value.item() if isinstance(value, Tensor) else value for key, value in booked.items()}
        account: dict[str, float] = {key: counts[key] for key in BYTES}
        for label, width in (("fp32", 4), ("bf16", 2)):
            dense = allreduce_bytes(width * int(counts["numbers"]), self.workers)
            account[f"dense_{label}_bytes"] = dense
            account[f"ratio_{label}"] = _over(dense, account["sent_bytes"])
        account["ratio_message"] = _over(4 * counts["numbers"], counts["message_bytes"])
        if self._counts_elements:
            ratio, n = _over(counts["numbers"], counts["elements"]), self.workers
            account |= {"ratio_elements": ratio, "ratio_effective": 2 * (n - 1) * ratio / n**2 if n > 1 else math.nan}
        return account

    def _residual(self) -> dict[str, float]:
        self._read_norms()
        fall = {"rate_fall": self.rate_fall} if self._rates else {}
        return {"residual_ratio": self._ratio(list(self._norms)), **fall}

    def _read_norms(self) -> None:
        """Take in what was measured; on a GPU this waits for it."""
        measured, self._measured = self._measured, []
        for norms in measured:
            self._norms.update(norms)
            for name, norm in norms.items():
                if norm.step_size is not None and norm.residual is not None:
                    rate = self._memory_rates.setdefault(name, MemoryRate(norm.step_size))
                    rate.measure(norm.step_size, self.every * float(norm.gradient), float(norm.residual))

    def _ratio(self, names: Sequence[str]) -> float:
        """sqrt(sum of squared residuals / sum of squared gradients) over the parameters whose rule keeps a residual."""
        kept = [(name, n, n.residual) for name in names if (n := self._norms[name]).residual is not None]
        gradient = sum(float(norms.gradient) for _, norms, _ in kept)
        residual = sum(float(residual) * self._share(name, norms.step_size) ** 2 for name, norms, residual in kept)
        if gradient == 0:
            return 0.0 if residual == 0 else math.inf
        return math.sqrt(residual / gradient)

    def _share(self, name: str, step_size: float | None) -> float:
        """The present step size over the memory's own: 1 where it stands still, or does not matter."""
        return 1.0 if step_size is None else step_size / self._memory_rates[name].value


class MemoryRate:
    """The step size s at which what is in a memory was given, in the mean of squares.

    A step adds s_t^2 |g|^2 to |m|^2, as noise does, and what is sent is taken from old and new alike. So

        s^2 <- (|m|^2 s^2 + E s_t^2) / (|m|^2 + E),     E = s_t^2 |g|^2 for all steps since the last measurement

    A memory that holds little follows the rate at once, one that holds much takes its time.
    """

    def __init__(self, step_size: float) -> None:
        self._square, self._memory = step_size**2, 0.0

    @property
    def value(self) -> float:
        return math.sqrt(self._square)

    def measure(self, step_size: float, given: float, kept: float) -> None:
        """Take in the squared norms of what was given since the last time and of what is kept, over the step size."""
        added = step_size**2 * given
        if added > 0:
            self._square += (step_size**2 - self._square) * added / (self._memory + added)
        self._memory = step_size**2 * kept


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
