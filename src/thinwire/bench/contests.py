"""Contests: one operation on the same numbers by ours, by plain torch and, where it is natural, by numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire import QSGD, Key, Layout, Natural, ScaledSign, TopK, ops
from thinwire.compressors.base import Compressor
from thinwire.compressors.density import kept
from thinwire.payload import Payload, add_all_to, pack_payload
from thinwire.payload.letter import FINITE, Expected, Letter, read, read_late, write

Call = Callable[[Tensor], object]
"""One call; the vector it is given may be changed."""
ZETA = 0.999
"""The decay of VGC's squares."""
MESSAGES = 8
"""How many workers' messages are unpacked and added."""
PIECES = 300
Draw = Callable[[int, torch.Generator], Tensor]


# ------------------------------------------------------ the numbers: ordinary and adversarial, in one piece and in many


@dataclass(frozen=True)
class Inputs:
    """Two vectors of one layout, and the share of their numbers that is kept."""

    first: Tensor
    second: Tensor
    layout: Layout
    density: float

    @property
    def counts(self) -> list[int]:
        """How many numbers of each piece are kept."""
        return [kept(piece.numel, self.density, None) for piece in self.layout.pieces]

    @property
    def tau(self) -> float:
        """The magnitude that just this share of the sum of both vectors reaches."""
        k = kept(self.layout.numel, self.density, None)
        return float((self.first + self.second).abs().topk(k, sorted=False).values.min())


def draw_inputs(distribution: str, layout: Layout, density: float, device: torch.device) -> Inputs:
    """Two vectors of a distribution, the same ones each time."""
    first, second = (draw(distribution, layout.numel, seed, device) for seed in (0, 1))
    return Inputs(first, second, layout, density)


def draw(distribution: str, numel: int, seed: int, device: torch.device) -> Tensor:
    """A float32 vector of a distribution."""
    return DISTRIBUTIONS[distribution](numel, torch.Generator(device).manual_seed(seed))


def _normal(numel: int, generator: torch.Generator) -> Tensor:
    return torch.randn(numel, generator=generator, device=generator.device)


def _laplace(numel: int, generator: torch.Generator) -> Tensor:
    """The difference of two exponential variables."""
    one, other = (torch.empty(numel, device=generator.device).exponential_(generator=generator) for _ in range(2))
    return one - other


def _one_huge(numel: int, generator: torch.Generator) -> Tensor:
    x = _normal(numel, generator)
    x[numel // 2] = 1e30
    return x


def _some_infinite(numel: int, generator: torch.Generator) -> Tensor:
    """One number in 1,000 is infinite. The sign goes by the place, so that no sum of two such vectors is NaN."""
    x = _normal(numel, generator)
    chosen = torch.rand(numel, generator=generator, device=generator.device) < 1e-3
    even = torch.arange(numel, device=generator.device) % 2 == 0
    return torch.where(chosen, torch.where(even, torch.inf, -torch.inf), x)


ORDINARY: dict[str, Draw] = {"normal": _normal, "laplace": _laplace}
ADVERSARIAL: dict[str, Draw] = {
    "all equal": lambda numel, generator: torch.ones(numel, device=generator.device),
    "all zero": lambda numel, generator: torch.zeros(numel, device=generator.device),
    "one huge": _one_huge,
    "sorted": lambda numel, generator: _normal(numel, generator).sort().values,
    "cauchy": lambda numel, generator: torch.empty(numel, device=generator.device).cauchy_(generator=generator),
    "denormal": lambda numel, generator: _normal(numel, generator) * 2.0**-131,
    "some infinite": _some_infinite,
}
DISTRIBUTIONS = ORDINARY | ADVERSARIAL


def one_piece(numel: int) -> Layout:
    """The whole vector as one piece."""
    return Layout.of([("x", 0, (numel,))])


def many_pieces(numel: int) -> Layout:
    """300 pieces from 10 numbers to a fifth of the whole, as the layers of a network are."""
    sizes = np.geomspace(10, numel / 5, PIECES)
    sizes = np.maximum(1, sizes * (numel / sizes.sum())).astype(int)
    return Layout.of([(str(i), i, (int(size),)) for i, size in enumerate(sizes)])


# ------------------------------------------------------------------------------------------ those that do the same work


@dataclass(frozen=True)
class Contest:
    """Those that do the same work."""

    ours: Call
    torch: Call
    numpy: Callable[[Any], object] | None = None
    """Given the vector as an array; only on a CPU."""


def by_reference(run: Call) -> Call:
    """The same call served by plain torch."""

    def plain(work: Tensor) -> object:
        with ops.backend("reference"):
            return run(work)

    return plain


# ------------------------------------------------------------------------ the largest, those beyond a bound, some drawn


def topk(given: Inputs) -> Contest:
    """The largest numbers of a vector that stays as it is."""
    layout, counts = given.layout, given.counts
    return Contest(
        lambda x: ops.topk(x, layout, counts),
        lambda x: _torch_topk(x, layout, counts),
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
        lambda error: _torch_memory(error, value, layout, counts),
        by_numpy,
    )


def difference(given: Inputs) -> Contest:
    """The step of a follower: the largest differences, added to what follows."""
    target, layout, counts = given.second, given.layout, given.counts

    def by_torch(local: Tensor) -> None:
        positions, values = _torch_topk(target - local, layout, counts)
        local.index_add_(0, positions, values)

    def by_numpy(local: Any) -> None:
        positions, values = _numpy_topk(target.numpy() - local, layout, counts)
        local[positions] += values

    return Contest(lambda local: ops.difference_topk_(local, target, layout, counts), by_torch, by_numpy)


def threshold(given: Inputs) -> Contest:
    """The step of a memory that lets go of what reaches tau."""
    value, tau = given.second, given.tau

    def by_numpy(error: Any) -> None:
        np.add(error, value.numpy(), out=error)
        error[np.flatnonzero(np.abs(error) >= tau)] = 0

    step = partial(ops.memory_threshold_, value=value, layout=given.layout, tau=tau, ratios=None)
    return Contest(step, by_reference(step), by_numpy)


def strom(given: Inputs) -> Contest:
    """The step of a memory that lets go of sign * tau where tau is reached."""
    value, tau = given.second, given.tau

    def by_numpy(error: Any) -> None:
        np.add(error, value.numpy(), out=error)
        positions = np.flatnonzero(np.abs(error) >= tau)
        error[positions] -= np.sign(error[positions]) * np.float32(tau)

    step = partial(ops.memory_threshold_, value=value, layout=given.layout, tau=tau, ratios=None, signs=True)
    return Contest(step, by_reference(step), by_numpy)


def randk(given: Inputs) -> Contest:
    """Indices drawn without replacement, and the numbers that stand there."""
    numel, k, key = given.layout.numel, kept(given.layout.numel, given.density, None), Key().number
    generator = np.random.default_rng(0)
    return Contest(
        lambda x: x[ops.randk_indices(key, numel, k, x.device)],
        lambda x: x[torch.randperm(numel, device=x.device)[:k]],
        lambda x: x[generator.choice(numel, k, replace=False, shuffle=False)],
    )


def _torch_topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The usual code: |.|, topk and gather, piece by piece."""
    views = zip(counts, layout.views(x), strict=True)
    positions = torch.cat([view.abs().topk(k, sorted=False).indices + piece.offset for k, (piece, view) in views])
    return positions, x[positions]


def _torch_memory(error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The usual code: add, topk, gather, and zeros put in."""
    positions, values = _torch_topk(error.add_(value), layout, counts)
    error[positions] = 0
    return positions, values


def _numpy_topk(x: Any, layout: Layout, counts: Sequence[int]) -> tuple[Any, Any]:
    views = ((k, piece.offset, x[piece.part]) for k, piece in zip(counts, layout.pieces, strict=True))
    parts = [np.argpartition(np.abs(view), view.size - k)[view.size - k :] + offset for k, offset, view in views]
    positions = np.concatenate(parts)
    return positions, x[positions]


# --------------------------------------------------- VGC: r + g, v + q, the test, what is sent taken out, and v's decay


def vgc(given: Inputs) -> Contest:
    """VGC's step."""
    state = _squares(given)

    def by_numpy(r: Any) -> None:
        v, clear = _numpy_sums(r, state)
        positions = np.flatnonzero(clear)
        v *= np.float32(ZETA)
        r[positions], v[positions] = 0, 0

    step = partial(ops.variance_, **state, zeta=ZETA)
    return Contest(step, by_reference(step), by_numpy)


def hybrid(given: Inputs) -> Contest:
    """The hybrid's step, with a tau that just the share that is sent reaches."""
    state, tau = _squares(given), given.tau

    def by_numpy(r: Any) -> None:
        v, clear = _numpy_sums(r, state)
        positions, step = np.flatnonzero(clear & (np.abs(r) > tau)), np.float32(tau)
        old, left = r[positions], v[positions]
        v *= np.float32(ZETA)
        v[positions] = np.maximum(left - step * (2 * np.abs(old) - step), 0)
        r[positions] = old - np.sign(old) * step

    step = partial(ops.variance_strom_, **state, zeta=ZETA, tau=tau)
    return Contest(step, by_reference(step), by_numpy)


def _squares(given: Inputs) -> dict[str, Any]:
    """v and q of which just the given share of r + g is sent, an alpha for each piece, and g.

    zeta (v + q) = v: what is not sent stays as it is from call to call, and what was sent is sent again.
    """
    layout, device = given.layout, given.first.device
    alphas = torch.linspace(1, 2, len(layout.pieces), device=device)
    sizes = torch.tensor([piece.numel for piece in layout.pieces], device=device)
    sums = (given.tau**2 / alphas).repeat_interleave(sizes)
    squares, moment = ZETA * sums, (1 - ZETA) * sums
    return {"squares": squares, "value": given.second, "moment": moment, "layout": layout, "alphas": alphas}


def _numpy_sums(r: Any, state: dict[str, Any]) -> tuple[Any, Any]:
    """v + q, and where r + g is unambiguous."""
    v, sizes = state["squares"].numpy(), [piece.numel for piece in state["layout"].pieces]
    np.add(r, state["value"].numpy(), out=r)
    np.add(v, state["moment"].numpy(), out=v)
    return v, r * r > np.repeat(state["alphas"].numpy(), sizes) * v


# --------------------------------------------------------------------- compressors that send every number in a few bits


def encode(compressor: Compressor, given: Inputs) -> Contest:
    """A vector made a message."""
    layout = given.layout
    return Contest(
        lambda x: compressor(x, layout, Key()),
        by_reference(lambda x: compressor(x, layout, Key())),
        (lambda x: (np.abs(x).mean(), _numpy_signs(x))) if isinstance(compressor, ScaledSign) else None,
    )


def decode(compressor: Compressor, given: Inputs) -> Contest:
    """A message added to a sum."""
    payload, x = compressor(given.second, given.layout, Key()), given.second.cpu().numpy()
    bits, scale = _numpy_signs(x), np.abs(x).mean()

    def signs(out: Any) -> None:
        out += np.where(np.unpackbits(bits, count=out.size, bitorder="little"), -scale, scale)

    by_numpy = signs if isinstance(compressor, ScaledSign) else None
    return Contest(payload.add_to, by_reference(payload.add_to), by_numpy)


def _numpy_signs(x: Any) -> Any:
    return np.packbits(x < 0, bitorder="little")


# ------------------------------------------------------------------------------------------------------- whole messages


def memory_and_packing(given: Inputs) -> Contest:
    """The step of a memory, and its message; plain torch sends positions as int32, beside the values."""
    value, layout, counts = given.second, given.layout, given.counts
    compressor = TopK(given.density)

    def by_torch(error: Tensor) -> Tensor:
        positions, values = _torch_memory(error, value, layout, counts)
        return torch.cat([positions.to(torch.int32).view(torch.uint8), values.view(torch.uint8)])

    return Contest(lambda error: pack_payload(compressor.take_(error, value, None, layout, Key())), by_torch)


def unpacking_and_adding(given: Inputs) -> Contest:
    """Messages of 8 workers: opened, checked, unpacked and added; plain torch adds at int32 positions, unchecked."""
    layout, device = given.layout, given.second.device
    vectors = (draw("normal", layout.numel, seed, device) for seed in range(MESSAGES))
    payloads = [TopK(given.density)(x, layout, Key()) for x in vectors]
    plain = [(payload.positions.to(torch.int32), payload.values) for payload in payloads]

    def by_torch(out: Tensor) -> None:
        for positions, values in plain:
            out.index_add_(0, positions, values)

    together = device.type == "cuda" and payloads[0].fixed  # as `Channel.receive` decides
    return Contest((read_together if together else read_in_turn)(payloads, layout), by_torch)


def read_together(payloads: Sequence[Payload], layout: Layout) -> Call:
    """Messages of one size read all at once, as on a GPU; whether they are sound is left there."""
    letters = _letters(payloads)
    rows = torch.stack([letter.message for letter in letters])

    def run(out: Tensor) -> Tensor:
        contents = read_late(rows, letters[0], _expected(layout, out.dtype))
        add_all_to(out, contents.payloads[0])
        return contents.sound

    return run


def read_in_turn(payloads: Sequence[Payload], layout: Layout) -> Call:
    """Messages read one after the other, as on a CPU; what is not sound is an error at once."""
    messages = [letter.message for letter in _letters(payloads)]
    return lambda out: add_all_to(out, read(messages, _expected(layout, out.dtype)).payloads[0])


def _expected(layout: Layout, dtype: torch.dtype) -> Expected:
    return Expected(0, "a contest", len(layout.pieces), ((layout, dtype),), Key())


def _letters(payloads: Sequence[Payload]) -> list[Letter]:
    packed = pack_payload(payloads[0])
    flag = torch.tensor(FINITE, device=packed.device)
    return [write([payload], 0, flag, rank) for rank, payload in enumerate(payloads)]


# ------------------------------------------------------------------------------------------------------- the operations


@dataclass(frozen=True)
class Vector:
    """Numbers of a distribution in one piece or many; the density is None where every number is sent."""

    distribution: str
    density: float | None
    many: bool = False


@dataclass(frozen=True)
class Operation:
    """How a contest is made from its inputs, and what it is measured on besides normal numbers in one piece."""

    contest: Callable[[Inputs], Contest]
    dense: bool = False
    """Whether every number is sent: there is no density then."""
    ordinary: Sequence[str] = ("normal",)
    adversarial: bool = False
    many: bool = False

    def vectors(self, densities: Sequence[float]) -> Iterator[Vector]:
        """All distributions and densities; then, at the first density, adversarial numbers, and many pieces."""
        for distribution in self.ordinary:
            for density in [None] if self.dense else densities:
                yield Vector(distribution, density)
        for distribution in ADVERSARIAL if self.adversarial else ():
            yield Vector(distribution, densities[0])
        if self.many:
            yield Vector("normal", densities[0], many=True)


UNPACKING = f"unpack + add of {MESSAGES}"
DENSE = {"sign": ScaledSign(), "qsgd": QSGD(15, 512), "natural": Natural()}
OPERATIONS = {
    "topk": Operation(topk),
    "memory": Operation(memory, ordinary=tuple(ORDINARY), adversarial=True, many=True),
    "difference": Operation(difference, ordinary=tuple(ORDINARY), many=True),
    "threshold": Operation(threshold),
    "strom": Operation(strom),
    "vgc": Operation(vgc, many=True),
    "hybrid": Operation(hybrid),
    "randk": Operation(randk),
    **{
        f"{name}{ending}": Operation(partial(way, compressor), dense=True)
        for name, compressor in DENSE.items()
        for ending, way in (("", encode), (" decode", decode))
    },
    "memory + packing": Operation(memory_and_packing, many=True),
    UNPACKING: Operation(unpacking_and_adding),
}
"""The operations that `thinwire bench kernels` and `thinwire bench ops` know."""
