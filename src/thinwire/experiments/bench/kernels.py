"""Selection kernels against the torch route, numpy, and the floor: an in-place add of the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire import Layout, ops
from thinwire.compressors.density import kept
from thinwire.experiments.bench.timing import side_by_side

OPS = ("memory", "difference")
DISTRIBUTIONS = ("normal", "laplace")
PIECES = 300


@dataclass(frozen=True)
class KernelRow:
    """One operation at one density: milliseconds, and how they compare."""

    op: str
    pieces: int
    distribution: str
    density: float
    ours_ms: float
    ours_spread_ms: tuple[float, float]
    floor_ms: float
    torch_ms: float
    numpy_ms: float

    @property
    def over_floor(self) -> float:
        return self.ours_ms / self.floor_ms

    def plain(self) -> dict[str, Any]:
        """For programs: all fields and the ratios."""
        ratios = {"over_floor": self.over_floor, "torch_over_ours": self.torch_ms / self.ours_ms}
        return {**asdict(self), **ratios, "numpy_over_ours": self.numpy_ms / self.ours_ms}


def bench_kernels(numel: int, densities: Sequence[float], repeats: int) -> Iterator[KernelRow]:
    """Every operation, distribution and density over one piece, then over 300 pieces of very different sizes."""
    one = Layout.of([("x", 0, (numel,))])
    for distribution in DISTRIBUTIONS:
        for density in densities:
            for op in OPS:
                yield _row(op, one, distribution, density, repeats)
    yield _row("memory", _many(numel), "normal", densities[0], repeats)


def _many(numel: int) -> Layout:
    """300 pieces from 10 numbers to a fifth of the whole, as the layers of a network are."""
    sizes = np.geomspace(10, numel / 5, PIECES)
    sizes = np.maximum(1, sizes * (numel / sizes.sum())).astype(int)
    return Layout.of([(str(i), i, (int(size),)) for i, size in enumerate(sizes)])


def _row(op: str, layout: Layout, distribution: str, density: float, repeats: int) -> KernelRow:
    first, second = (_draw(distribution, layout.numel, seed) for seed in (0, 1))
    work = first.clone()
    counts = [kept(piece.numel, density, None) for piece in layout.pieces]
    kernel: Callable[..., object] = ops.memory_topk_ if op == "memory" else ops.difference_topk_
    ours = partial(kernel, work, second, layout, counts, *((None,) if op == "memory" else ()))
    contenders: dict[str, Callable[[], object]] = {
        "ours": ours,
        "floor": partial(work.add_, second),
        "torch": partial(_torch_route, op, work, second, layout, counts),
        "numpy": partial(_numpy_route, op, work.numpy(), second.numpy(), layout, counts),
    }
    # numpy copies on one thread: torch would leave its own threads spinning on the cores for some milliseconds
    timed = side_by_side(contenders, lambda: np.copyto(work.numpy(), first.numpy()), repeats)
    mine = timed["ours"]
    return KernelRow(
        op,
        len(layout.pieces),
        distribution,
        density,
        mine.median,
        (mine.least, mine.most),
        *(timed[name].median for name in ("floor", "torch", "numpy")),
    )


def _draw(distribution: str, numel: int, seed: int) -> Tensor:
    generator = np.random.default_rng(seed)
    draw = generator.standard_normal if distribution == "normal" else partial(generator.laplace, 0.0, 1.0)
    return torch.from_numpy(np.asarray(draw(numel), dtype=np.float32))


def _torch_route(op: str, a: Tensor, b: Tensor, layout: Layout, counts: Sequence[int]) -> None:
    """What users write: add, |.|, topk, gather, and zero or add back."""
    x = a.add_(b) if op == "memory" else b - a
    for k, (piece, view) in zip(counts, layout.views(x), strict=True):
        indices = view.abs().topk(k, sorted=False).indices
        values = view[indices]
        if op == "memory":
            view[indices] = 0
        else:
            a[piece.part].index_add_(0, indices, values)


def _numpy_route(op: str, a: Any, b: Any, layout: Layout, counts: Sequence[int]) -> None:
    x = np.add(a, b, out=a) if op == "memory" else b - a
    for k, piece in zip(counts, layout.pieces, strict=True):
        view = x[piece.part]
        indices = np.argpartition(np.abs(view), view.size - k)[view.size - k :]
        values = view[indices]
        if op == "memory":
            view[indices] = 0
        else:
            a[piece.part][indices] += values
