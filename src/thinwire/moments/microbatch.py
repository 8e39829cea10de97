"""One backward pass for each micro-batch of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from thinwire.errors import MomentError


def split(batch: Sequence[Tensor], parts: int) -> list[tuple[Tensor, ...]]:
    """The batch in micro-batches of nearly equal size, at least one sample each.

    >>> [len(x) for x, in split([torch.zeros(10, 2)], 4)]
    [3, 3, 2, 2]
    """
    sizes = sorted({len(tensor) for tensor in batch})
    if len(sizes) != 1 or sizes == [0]:
        raise MomentError(f"the tensors of a batch must have the same, positive number of samples, got {sizes}")
    return list(zip(*(tensor.tensor_split(min(parts, len(tensor))) for tensor in batch), strict=True))


def backward_in_parts(
    loss_of: Callable[..., Tensor],
    batch: Sequence[Tensor],
    parts: int,
    *,
    mean: bool,
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Tensor:
    """backward() of (b_j / |B|) f_j (of f_j for a sum) for each part j; all but the last within `quiet()`."""
    pieces, losses = split(batch, parts), []
    for number, piece in enumerate(pieces, 1):
        share = len(piece[0]) / len(batch[0]) if mean else 1.0
        with quiet() if number < len(pieces) else nullcontext():
            loss = loss_of(*piece) * share
            torch.autograd.backward(loss)
        losses.append(loss.detach())
    return torch.stack(losses).sum()
