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

    @classmethod
    def of_ledger(cls, totals: Mapping[str, float]) -> Totals:
        """From a ledger's summary."""
        return cls(
            sent=int(totals["sent_bytes"]),
            dense_fp32=int(totals["dense_fp32_bytes"]),
            dense_fp16=int(totals["dense_bf16_bytes"]),
            residual_ratio=float(totals["residual_ratio"]),
        )

    @classmethod
    def of_allreduce(cls, bytes_per_step: int, numel: int, workers: int, steps: int) -> Totals:
        """From a peer that all-reduces `bytes_per_step` bytes of a model of `numel` parameters at every step."""
        return cls(
            sent=steps * allreduce_bytes(bytes_per_step, workers),
            dense_fp32=steps * allreduce_bytes(4 * numel, workers),
            dense_fp16=steps * allreduce_bytes(2 * numel, workers),
        )

    @property
    def ratio_fp32(self) -> float | None:
        """How many times fewer bytes than float32 all-reduce; None when nothing was sent (one worker)."""
        return self.dense_fp32 / self.sent if self.sent else None

    @property
    def ratio_fp16(self) -> float | None:
        """How many times fewer bytes than float16 all-reduce."""
        return self.dense_fp16 / self.sent if self.sent else None
