"""Steps of the outer loop: plain, of one length, or of one spectral norm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.named import Named


class Update(Named, ABC):
    """One step from x along g, in place."""

    @abstractmethod
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        """Move the parameters that g names; the others stay."""


@dataclass(frozen=True)
class Descent(Update):
    """x <- x - s g."""

    name: ClassVar[str] = "descent"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            x[name].sub_(gradient, alpha=size)


@dataclass(frozen=True)
class Normalised(Update):
    """x <- x - s g / |g|, the norm over all parameters together; no step where g = 0.

    With EF21's g this is |EF21| (Khirirat et al. 2024, "Error Feedback under (L0, L1)-Smoothness: Normalization and
    Momentum"): s = s_0 / sqrt(K + 1) for K rounds needs no smoothness constant. With EF21-SGDM's it is |EF21-SGDM|.
    """

    name: ClassVar[str] = "normalised"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        length = sum(float(gradient.double().square().sum()) for gradient in g.values()) ** 0.5
        if length > 0:
            for name, gradient in g.items():
                x[name].sub_(gradient, alpha=size / length)


@dataclass(frozen=True)
class Muon(Update):
    """X <- X + s LMO(G), LMO(G) = argmin <G, Z> over |Z| <= 1, for each parameter by itself.

    For matrices |.| is the spectral norm and LMO(G) = -U V' for G = U S V' (dimensions after the first are taken
    together); for vectors it is the largest magnitude and LMO(g) = -sign(g). With the result of
    `ef21p(ef21sgdm(C, eta=beta), C_s)` this is EF21-Muon (Gruntkowska, Gaponov, Tovmasyan and Richtarik 2025), whose
    gradients are compressed before the LMO; to compress what comes out of it may fail at any step size.

    U V' is taken from the singular value decomposition. Newton-Schulz iterations, as in torch.optim.Muon, are faster on
    a GPU and only come near it.
    """

    name: ClassVar[str] = "muon"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            x[name].sub_(direction(gradient), alpha=size)


def direction(gradient: Tensor) -> Tensor:
    """-LMO(G): U V' of a matrix, the signs of a vector. Singular values that are zero count for nothing."""
    if gradient.ndim < 2 or not gradient.numel():
        return gradient.sign()
    matrix = gradient.flatten(1).to(torch.promote_types(gradient.dtype, torch.float32))
    U, S, V = torch.linalg.svd(matrix, full_matrices=False)
    known = S > S.max() * S.numel() * torch.finfo(S.dtype).eps
    polar: Tensor = (U * known) @ V
    return polar.to(gradient.dtype).view(gradient.shape)
