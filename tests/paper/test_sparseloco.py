"""SparseLoCo's outer steps against a numpy transcription: a fading memory, top-k of chunks, two bits, the mean."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from thinwire import OuterSimulation, parse, sparse_loco

Vector = NDArray[np.float64]
CHUNK, K, BETA = 4096, 64, 0.95


def mean(magnitudes: Vector) -> float:
    """In steps of 2^-30 of the largest power of two, so that it is the same in any order of summation."""
    unit = 2.0 ** (np.floor(np.log2(magnitudes.max())) - 30)
    return float(np.floor(magnitudes / unit).sum() * unit / magnitudes.size)


def two_means(values: Vector) -> Vector:
    """Q: each value becomes the mean magnitude of its bin, below half of which it is not sent."""
    magnitude = np.abs(values)
    split = mean(magnitude)
    for _ in range(3):
        upper = magnitude > split
        low, high = mean(magnitude[~upper]), mean(magnitude[upper])
        split = (low + high) / 2
    written = np.where(upper, high, low).astype(np.float32).astype(np.float64)
    return np.where(2 * magnitude >= written, np.sign(values) * written, 0.0)


def compressed(e: Vector) -> Vector:
    """m = Q(top-k of each chunk)."""
    chosen = []
    for start in range(0, e.size, CHUNK):
        chunk = e[start : start + CHUNK]
        k = max(1, K * chunk.size // CHUNK)
        chosen += sorted(start + np.argsort(-np.abs(chunk), kind="stable")[:k])
    m = np.zeros_like(e)
    m[chosen] = two_means(e[chosen])
    return m


def test_outer_steps_follow_the_paper() -> None:
    numel, workers, every, lr = 2 * CHUNK + 1000, 3, 2, 0.7
    generator = np.random.default_rng(0)
    theta = generator.standard_normal(numel)
    copies = [{"x": torch.tensor(theta)} for _ in range(workers)]
    simulation = OuterSimulation(copies, sparse_loco(), every, lr=lr)
    errors = [np.zeros(numel) for _ in range(workers)]
    for step in range(1, 41):
        for worker in copies:
            worker["x"].sub_(torch.tensor(generator.standard_normal(numel) ** 3))
        if step % every == 0:
            sent = []
            for worker, e in zip(copies, errors, strict=True):
                e[:] = BETA * e + (theta - worker["x"].numpy())
                sent.append(compressed(e))
                e -= sent[-1]
            theta = theta - lr * sum(sent) / workers
        simulation.step()
        if step % every == 0:
            near = 2.0**-50 * step * float(np.abs(theta).max())
            assert all(np.allclose(worker["x"].numpy(), theta, rtol=0, atol=near) for worker in copies)


def test_the_preset_is_two_hundred_times_smaller_than_dense() -> None:
    """On the wire, with everything that stands around the numbers: 2 bits a value, positions near their entropy."""
    numel = 1 << 20
    copies = [{"x": torch.zeros(numel)} for _ in range(2)]
    simulation = OuterSimulation(copies, sparse_loco(every=1))
    for rank, worker in enumerate(copies):
        worker["x"].sub_(torch.randn(numel, generator=torch.Generator().manual_seed(rank)))
    simulation.step()
    assert simulation.ledger.summary()["ratio_message"] > 200


def test_the_text_of_the_preset_is_read_back() -> None:
    assert parse(str(sparse_loco().rule)) == sparse_loco().rule
