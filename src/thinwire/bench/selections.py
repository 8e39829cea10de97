"""Contests of sparse steps: the largest numbers, those beyond a threshold, and some drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire import Key, ops
from thinwire.bench.contest import Contest, by_reference
from thinwire.bench.inputs import Inputs
from thinwire.compressors.density import kept
from thinwire.layout import Layout


def topk(given: Inputs) -> Contest:
    """The largest numbers of a vector that stays as it is."""
    layout, counts = given.layout, given.counts
    return Contest(
        lambda x: ops.topk(x, layout, counts),
        lambda x: torch_topk(x, layout, counts),
        lambda x: _numpy_topk(x, layout, counts),
    )


def memory(given: Inputs) -> Contest:
    """The step of a memory: add, and take the largest out."""
    value, layout, counts = given.second, given.layout, given.counts

    def by_numpy(error: Any) -> None:
        positions, _ = _numpy_topk(np.add(error, value.numpy(), out=error), layout, counts)
        error[positions] = 0

    return Contest(
        lambda error: ops.memory_topk_(error, value, layout, counts, None),
        lambda error: torch_memory(error, value, layout, counts),
        by_numpy,
    )


def difference(given: Inputs) -> Contest:
    """The step of a follower: the largest differences, added to what follows."""
    target, layout, counts = given.second, given.layout, given.counts

    def by_torch(local: Tensor) -> None:
        positions, values = torch_topk(target - local, layout, counts)
        local.index_add_(0, positions, values)

    def by_numpy(local: Any) -> None:
        positions, values = _numpy_topk(target.numpy() - local, layout, counts)
        local[positions] += values

    return Contest(lambda local: ops.difference_topk_(local, target, layout, counts), by_torch, by_numpy)


def threshold(given: Inputs) -> Contest:
    """The step of a memory that lets go of what reaches tau."""
    value, tau = given.second, given.tau
    step = partial(ops.memory_threshold_, value=value, layout=given.layout, tau=tau, ratios=None)
    return Contest(step, by_reference(step), partial(_numpy_threshold, value=value, tau=tau))


def strom(given: Inputs) -> Contest:
    """The step of a memory that lets go of sign * tau where tau is reached."""
    value, tau = given.second, given.tau
    step = partial(ops.memory_strom_, value=value, layout=given.layout, tau=tau, ratios=None)
    return Contest(step, by_reference(step), partial(_numpy_strom, value=value, tau=tau))


def randk(given: Inputs) -> Contest:
    """Indices drawn without replacement, and the numbers that stand there."""
    numel, k, key = given.layout.numel, kept(given.layout.numel, given.density, None), Key().number
    generator = np.random.default_rng(0)
    return Contest(
        lambda x: x[ops.randk_indices(key, numel, k, x.device)],
        lambda x: x[torch.randperm(numel, device=x.device)[:k]],
        lambda x: x[generator.choice(numel, k, replace=False, shuffle=False)],
    )


def torch_topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What users write: |.|, topk and gather, piece by piece."""
    views = zip(counts, layout.views(x), strict=True)
    positions = torch.cat([view.abs().topk(k, sorted=False).indices + piece.offset for k, (piece, view) in views])
    return positions, x[positions]


def torch_memory(error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What users write: add, topk, gather, and zeros put in."""
    positions, values = torch_topk(error.add_(value), layout, counts)
    error[positions] = 0
    return positions, values


def _numpy_topk(x: Any, layout: Layout, counts: Sequence[int]) -> tuple[Any, Any]:
    views = ((k, piece.offset, x[piece.part]) for k, piece in zip(counts, layout.pieces, strict=True))
    parts = [np.argpartition(np.abs(view), view.size - k)[view.size - k :] + offset for k, offset, view in views]
    positions = np.concatenate(parts)
    return positions, x[positions]


def _numpy_threshold(error: Any, value: Tensor, tau: float) -> None:
    np.add(error, value.numpy(), out=error)
    error[np.flatnonzero(np.abs(error) >= tau)] = 0


def _numpy_strom(error: Any, value: Tensor, tau: float) -> None:
    np.add(error, value.numpy(), out=error)
    positions = np.flatnonzero(np.abs(error) >= tau)
    error[positions] -= np.sign(error[positions]) * np.float32(tau)
