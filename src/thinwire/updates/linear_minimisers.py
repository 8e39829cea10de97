"""Steps to the end of a ball, fit for training: of one largest magnitude, or orthogonal by a few products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.checks import is_whole
from thinwire.errors import ConfigError
from thinwire.updates.steps import Update

QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of a x + b x^3 + c x^5 (Jordan et al. 2024): five rounds bring every x in [0.003, 1] into [0.68, 1.21]."""
RMS = 0.2
"""The root mean square of AdamW's usual step, over its rate (Liu et al. 2025, "Muon is Scalable for LLM Training")."""


@dataclass(frozen=True)
class Sign(Update):
    """x <- x - s sign(g): the LMO of the largest magnitude, for embeddings, heads and vectors beside Muon's matrices.

    >>> import torch
    >>> x = {"bias": torch.zeros(3)}
    >>> Sign()(x, {"bias": torch.tensor([3.0, -0.1, 0.0])}, 0.5)
    >>> x["bias"].tolist()
    [-0.5, 0.5, 0.0]
    """

    name: ClassVar[str] = "sign"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            x[name].sub_(gradient.sign(), alpha=size)


@dataclass(frozen=True)
class NewtonSchulz(Update):
    """X <- X - s 0.2 sqrt(max(rows, columns)) NS(G): Muon's step by matrix products, at AdamW's learning rates.

        X_0 = G / |G|_F;   X <- a X + (b A + c A A) X with A = X X', `iterations` times;   NS(G) = X

    NS(G) is near U V' for G = U S V' (`Muon` has U V' itself): its singular values are not all 1, but about 0.7 to 1.2.
    With the factor a step of rate s has the root mean square 0.2 s that AdamW's has, whatever the shape. Dimensions
    after the first are taken together; a vector steps by 0.2 s sign(g). With the result of `ef21sgdm(C, eta=1 - beta)`
    this is EF21-Muon (Gruntkowska, Gaponov, Tovmasyan and Richtarik 2025) whose model is sent in full.

    >>> import torch
    >>> x = {"w": torch.zeros(2, 2)}
    >>> NewtonSchulz()(x, {"w": torch.tensor([[0.0, 5.0], [1.0, 0.0]])}, 1.0)
    >>> [[round(number, 1) for number in row] for row in x["w"].tolist()]
    [[0.0, -0.2], [-0.2, 0.0]]
    """

    iterations: int = 5
    name: ClassVar[str] = "newtonschulz"

    def __post_init__(self) -> None:
        if not (is_whole(self.iterations) and self.iterations >= 1):
            raise ConfigError(f"{self.name} needs iterations of at least 1, got {self.iterations}: 5 is usual")

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            if gradient.ndim < 2 or not gradient.numel():
                x[name].sub_(gradient.sign(), alpha=RMS * size)
            else:
                near = orthogonal(gradient.flatten(1), self.iterations)
                x[name].sub_(near.to(gradient.dtype).view(gradient.shape), alpha=RMS * max(near.shape) ** 0.5 * size)


def orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """NS(G) in 32 bits or more: half floats lose the small singular values. Zero where G is zero."""
    X: Tensor = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    tall = X.shape[0] > X.shape[1]
    X = X.T if tall else X  # A is the smaller of the two products
    least = torch.finfo(X.dtype).tiny
    X = X / X.abs().max().clamp(min=least)  # first: squares of small numbers would be zero
    X = X / X.norm().clamp(min=least)
    a, b, c = QUINTIC
    for _ in range(iterations):
        A = X @ X.T
        X = a * X + (b * A + c * (A @ A)) @ X
    return X.T if tall else X
