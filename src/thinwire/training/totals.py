"""Totals: what one worker has sent so far, beside what dense all-reduce would have sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thinwire.exchange import allreduce_bytes


@dataclass(frozen=True)
class Totals:
    """Totals of one worker over a run, in bytes that left it."""

    sent: int
    dense_fp32: int
    dense_fp16: int
    residual_ratio: float | None = None
    """Norm of what is remembered and not yet sent over the norm of the gradient, where a rule remembers."""
    ratio_elements: float | None = None
    """Parameters over numbers in a message; None where its format does not count them."""
    ratio_message: float | None = None
    """Bytes of all parameters in float32 over bytes of a message."""
    ratio_effective: float | None = None
    """How many times faster than a ring all-reduce, by the cost model of VGC's paper: 2 (n - 1) c / n^2 for gathered
    messages. What is all-reduced itself has 4 N over its bytes, 1 in float32: it is the measure and gathers nothing."""

    @classmethod
    def of_ledger(cls, totals: Mapping[str, float]) -> Totals:
        """From a ledger's summary."""
        return cls(
            sent=int(totals["sent_bytes"]),
            dense_fp32=int(totals["dense_fp32_bytes"]),
            dense_fp16=int(totals["dense_bf16_bytes"]),
            residual_ratio=float(totals["residual_ratio"]),
            **{name: totals.get(name) for name in ("ratio_elements", "ratio_message", "ratio_effective")},
        )

    @classmethod
    def of_allreduce(cls, bytes_per_step: int, numel: int, workers: int, steps: int) -> Totals:
        """From a peer that all-reduces `bytes_per_step` bytes of a model of `numel` parameters at every step."""
        return cls(
            sent=steps * allreduce_bytes(bytes_per_step, workers),
            dense_fp32=steps * allreduce_bytes(4 * numel, workers),
            dense_fp16=steps * allreduce_bytes(2 * numel, workers),
            ratio_elements=1.0,
            ratio_message=4 * numel / bytes_per_step,
            ratio_effective=4 * numel / bytes_per_step,
        )

    def plain(self) -> dict[str, float | None]:
        """As the last line of a run has them."""
        ratios = ("ratio_fp32", "ratio_fp16", "residual_ratio", "ratio_elements", "ratio_message", "ratio_effective")
        sizes = {f"{name}_bytes": getattr(self, name) for name in ("sent", "dense_fp32", "dense_fp16")}
        return sizes | {name: getattr(self, name) for name in ratios}

    @property
    def ratio_fp32(self) -> float | None:
        """How many times fewer bytes than float32 all-reduce; None when nothing was sent (one worker)."""
        return self.dense_fp32 / self.sent if self.sent else None

    @property
    def ratio_fp16(self) -> float | None:
        """How many times fewer bytes than float16 all-reduce."""
        return self.dense_fp16 / self.sent if self.sent else None
