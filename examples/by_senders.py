"""Mem-SGD whose mean is over those that sent a number, not over all workers: what some public code does.

Shown here to be measured (`docs/outer.md`), not to be used: a number that one of n workers sent is applied n times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire import MemSGD, register
from thinwire.authoring import Layout, Round, State


@register
@dataclass(frozen=True)
class BySenders(MemSGD):
    """out_j = sum_i c_ij / (number of workers i that sent j)."""

    name: ClassVar[str] = "bysenders"

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        """Sum as Mem-SGD does, then divide by the senders."""
        out.zero_()
        senders = torch.zeros_like(out)
        for payload in round.payloads:
            part = payload.add_to(torch.zeros_like(out))
            out += part
            senders += part != 0
        return out.div_(senders.clamp_(min=1))
