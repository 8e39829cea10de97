"""Per-sample gradients that are not formed until they are needed: c_z for the samples z of a batch.

One use of a parameter (one call of its module) gives one `Rows`. What is wanted of it is Σ_z c_z², and the forms below
reach it without holding all c_z at once. Several uses of one parameter are added up sample by sample *before* squaring:
(a + b)² is not a² + b².
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from thinwire.errors import MomentError
from thinwire.ops import Product, correlation_squares_, product_epsilon

SCRATCH = {"cpu": 2**22}
"""How many numbers a temporary may hold. On a CPU 16 MiB: larger ones leave the cache and come as fresh pages from the
kernel each time; 512 × 512 × 3 × 3 per-sample gradients on 4 × 4 images, batch 64, two EPYC cores: 110 ms so, 280 ms
with 64 MiB."""
SCRATCH_ELSEWHERE = 2**27

LONG = 2**16
"""From so many numbers on, a row is added by itself: a kernel of its own is then worth starting."""

PAIRS = 36
"""Up to so many pairs of positions (8 positions) the product over pairs is the quicker way: see `Outer`."""


def parts(samples: int, numbers: int, device: torch.device) -> Iterator[slice]:
    """Consecutive slices of the batch, each small enough for `numbers` per sample to fit in the scratch."""
    step = max(1, SCRATCH.get(device.type, SCRATCH_ELSEWHERE) // max(1, numbers))
    for first in range(0, samples, step):
        yield slice(first, min(first + step, samples))


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in one common type, float32 at least: half-precision activations are squared and added in float32."""
    if all(t.dtype is torch.float32 for t in tensors):
        return tensors
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)
    return tuple(t.to(dtype) for t in tensors)


class Rows(ABC):
    """The per-sample gradients c_z of one parameter of shape `shape`, for z < `samples`."""

    samples: int
    shape: tuple[int, ...]
    addends: int
    """How many terms a number of the gradient is the sum of, over samples and positions."""

    @property
    def epsilon(self) -> float:
        """ε of the factors where terms are products that torch may form with fewer bits than they have; else 0."""
        return 0.0

    @abstractmethod
    def magnitude(self) -> Tensor:
        """The sum of the terms' absolute values, which rounding in `total` is relative to; at least |Σ_z c_z|."""

    @abstractmethod
    def rows(self, part: slice) -> Tensor:
        """c_z for z in the slice, formed: (n, *shape). The caller may overwrite it."""

    @abstractmethod
    def part(self, part: slice) -> Rows:
        """Those of some samples, which are not formed either."""

    @abstractmethod
    def _chunks(self) -> Iterator[slice]:
        """The slices in which `rows` is best asked for."""

    def squares_(self, out: Tensor, beta: int) -> None:
        """out <- beta out + Σ_z c_z², elementwise, with beta 0 (whatever `out` holds) or 1."""
        for part in self._chunks():
            add_squares_(out, beta, self.rows(part))
            beta = 1

    def total(self) -> Tensor:
        """Σ_z c_z: what these uses give to the gradient of the batch."""
        return add_up(self.rows(part).sum(0) for part in self._chunks())

    def joined(self, uses: Sequence[Rows]) -> Rows | None:
        """These, all of this class, added sample by sample, as one of this class; None if that cannot be."""
        return None


def add_squares_(out: Tensor, beta: int, rows: Tensor) -> None:
    """out <- beta out + Σ over the rows of row², which may overwrite them.

    On a CPU few long rows are added one by one, with one pass over memory; `sum` over such a short first dimension
    takes three. A GPU's norm reads every row once: the VGG-like net's moments take 3.0 ms with it, 4.2 ms row by row
    (H200, batch 64).
    """
    if rows.is_cuda:
        squares = torch.linalg.vector_norm(rows, dim=0).square_()
        out.add_(squares) if beta else out.copy_(squares)
        return
    if rows[0].numel() < LONG:
        squares = rows.square_().sum(0)
        out.add_(squares) if beta else out.copy_(squares)
        return
    first = 0
    if beta == 0:
        torch.mul(rows[0], rows[0], out=out)
        first = 1
    for row in rows[first:]:
        out.addcmul_(row, row)


def add_up(terms: Iterator[Tensor]) -> Tensor:
    """The sum of at least one tensor, in the first one's place."""
    first = next(terms)
    for term in terms:
        first += term
    return first


class Formed(Rows):
    """Rows that are small enough to hold: biases and the affine parameters of norms.

    `sizes` gives the absolute values of the terms that they were added up from, (`addends`, *shape), when asked.
    """

    def __init__(self, formed: Tensor, sizes: Callable[[], Tensor] | None = None, addends: int | None = None) -> None:
        self.formed = formed
        self.samples, self.shape = len(formed), tuple(formed.shape[1:])
        self.sizes: Callable[[], Tensor] = sizes or formed.abs
        self.addends = self.samples if addends is None else addends

    def magnitude(self) -> Tensor:
        return self.sizes().sum(0)

    def rows(self, part: slice) -> Tensor:
        return self.formed[part].clone()

    def part(self, part: slice) -> Formed:
        return Formed(self.formed[part])

    def _chunks(self) -> Iterator[slice]:
        yield slice(0, self.samples)

    def squares_(self, out: Tensor, beta: int) -> None:
        squares = self.formed.square()
        out.add_(squares.sum(0)) if beta else torch.sum(squares, 0, out=out)

    def joined(self, uses: Sequence[Rows]) -> Rows:
        alike = [use for use in uses if isinstance(use, Formed)]
        formed = add_up(use.rows(slice(None)) for use in alike)
        return Formed(formed, lambda: torch.cat([use.sizes() for use in alike]), sum(use.addends for use in alike))


class Outer(Rows):
    """c_z = Σ_l left_z[l] ⊗ right_z[l], within groups: left (B, G, L, O), right (B, G, L, K), c_z (G, O, K).

    Linear: left = δ, right = the input, l = the extra dimensions. A convolution: right = the unfolded input.

        by rows:   c_z = left_zᵀ right_z for some samples at a time, then squared and added: L products a number, and
                   one write and two reads of B·G·O·K numbers
        by pairs:  Σ_z c_z² = Σ_z Σ_{l ≤ m} (2 − [l = m]) (left_z[l] left_z[m]) ⊗ (right_z[l] right_z[m]):
                   L (L + 1) / 2 products a number in one matrix product, and nothing per sample is ever formed.
                   With one position this is (δ∘δ)ᵀ(x∘x)
    """

    def __init__(self, left: Tensor, right: Tensor, shape: tuple[int, ...], product: Product = "matmul") -> None:
        self.left, self.right = wide(left, right)
        self.samples, self.shape, self.product = len(left), shape, product
        self.addends = self.samples * self.positions

    @property
    def epsilon(self) -> float:
        return product_epsilon(self.product, self.left.dtype, self.left.device.type)

    def magnitude(self) -> Tensor:
        return Outer(self.left.abs(), self.right.abs(), self.shape).total()

    @property
    def positions(self) -> int:
        return self.left.shape[2]

    @property
    def _numbers(self) -> int:
        return self.left.shape[1] * self.left.shape[3] * self.right.shape[3]

    def rows(self, part: slice) -> Tensor:
        formed = torch.matmul(self.left[part].transpose(2, 3), self.right[part])
        return formed.reshape(-1, *self.shape)

    def part(self, part: slice) -> Outer:
        return Outer(self.left[part], self.right[part], self.shape, self.product)

    def _chunks(self) -> Iterator[slice]:
        return parts(self.samples, self._numbers, self.left.device)

    def squares_(self, out: Tensor, beta: int) -> None:
        if self.positions == self.left.shape[1] == 1:  # the plain linear layer: one product, and no time for more
            flat = out.view(self.left.shape[3], -1)
            torch.addmm(flat, self.left[:, 0, 0].square().t(), self.right[:, 0, 0].square(), beta=beta, out=flat)
        elif by_pairs(self.positions):
            self._by_pairs_(out.view(self.left.shape[1], self.left.shape[3], -1), beta)
        elif self.left.is_cuda:
            self._by_kernel_(out, beta)
        else:
            super().squares_(out, beta)

    def _by_kernel_(self, out: Tensor, beta: int) -> None:
        """As a convolution over the positions, with a kernel of one number."""
        left, right = (t.transpose(2, 3).flatten(1, 2) for t in (self.left, self.right))
        groups = self.left.shape[1]
        correlation_squares_(out.view(left.shape[1], -1, 1), beta, right, left, (1,), (1,), groups, self.product)

    def _by_pairs_(self, out: Tensor, beta: int) -> None:
        pairs = self.positions * (self.positions + 1) // 2
        numbers = self.left.shape[1] * pairs * (self.left.shape[3] + self.right.shape[3])
        for part in parts(self.samples, numbers, self.left.device):
            torch.baddbmm(out, *self._pairs(part), beta=beta, out=out)
            beta = 1

    def _pairs(self, part: slice) -> tuple[Tensor, Tensor]:
        """left_z[l] left_z[m] and right_z[l] right_z[m] for all pairs l ≤ m, as factors of a product for each group."""
        left, right = self.left[part], self.right[part]
        first, second = torch.triu_indices(self.positions, self.positions, device=left.device)
        twice = torch.where(first == second, 1, 2).to(left.dtype)
        left = left[:, :, first] * left[:, :, second] * twice[:, None]
        right = right[:, :, first] * right[:, :, second]
        left, right = (t.transpose(0, 1).flatten(1, 2) for t in (left, right))  # (G, B·pairs, O), (G, B·pairs, K)
        return left.transpose(1, 2), right

    def joined(self, uses: Sequence[Rows]) -> Rows:
        """More positions of the same samples."""
        alike = [use for use in uses if isinstance(use, Outer)]
        left, right = torch.cat([use.left for use in alike], dim=2), torch.cat([use.right for use in alike], dim=2)
        return Outer(left, right, self.shape, self.product)

    def total(self) -> Tensor:
        left, right = (t.transpose(0, 1).flatten(1, 2) for t in (self.left, self.right))
        return torch.bmm(left.transpose(1, 2), right).reshape(self.shape)


def by_pairs(positions: int) -> bool:
    """Whether the product over pairs is cheaper.

    Forming, squaring and adding a number costs as much as about 13 multiply-adds in a matrix product (two EPYC cores,
    512 × 4608 rows), and products of only a few positions are slow ones: the ways meet near 8 positions.
    """
    return positions * (positions + 1) // 2 <= PAIRS


class Several(Rows):
    """The sum of unlike uses of one parameter, sample by sample: a tied embedding and output layer, say."""

    def __init__(self, uses: Sequence[Rows]) -> None:
        self.uses = uses
        self.samples, self.shape = uses[0].samples, uses[0].shape
        self.addends = sum(use.addends for use in uses)

    @property
    def epsilon(self) -> float:
        return max(use.epsilon for use in self.uses)

    def magnitude(self) -> Tensor:
        return add_up(use.magnitude() for use in self.uses)

    def rows(self, part: slice) -> Tensor:
        return add_up(use.rows(part) for use in self.uses)

    def part(self, part: slice) -> Several:
        return Several([use.part(part) for use in self.uses])

    def _chunks(self) -> Iterator[slice]:
        # The finest of the uses' own slices (each use starts at sample 0 and has slices of one length).
        slices = [tuple(use._chunks()) for use in self.uses]
        finest: tuple[slice, ...] = max(slices, key=lambda several: len(several))
        return iter(finest)

    def total(self) -> Tensor:
        return add_up(use.total() for use in self.uses)


def together(uses: Sequence[Rows], parameter: str) -> Rows:
    """All uses of one parameter as one: Σ over uses of c_z, in the cheapest form that holds them."""
    sizes = sorted({use.samples for use in uses})
    if len(sizes) > 1:
        raise MomentError(
            f"parameter {parameter!r} was used with batches of {sizes} samples in one backward pass, so there are no "
            "per-sample gradients to add up: let every use see the same batch, or run backward() for each"
        )
    if len(uses) == 1:
        return uses[0]
    alike = all(type(use) is type(uses[0]) for use in uses)
    return (uses[0].joined(uses) if alike else None) or Several(uses)
