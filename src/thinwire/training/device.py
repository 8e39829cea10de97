"""Where a run computes: whether the device is there, and how it adds and multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from thinwire.errors import BackendError


def check_device(device: str) -> None:
    """A `BackendError` where a GPU is asked for and torch sees none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendError("device cuda was asked for, but torch sees no CUDA device here; use --device cpu")


@contextmanager
def fast_products(device: str) -> Iterator[None]:
    """On a GPU: products of float32 numbers in TF32 (10 bits of mantissa, float32 sums), and cuDNN picks by trial.

    The record says so, and results then differ in their last bits from run to run.
    """
    if device != "cuda":
        yield
        return
    precision, trial = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = trial


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, as every real worker has: sums then come in the same order, bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def process_groups() -> list[str]:
    """The back-ends by which processes can talk to each other here, in torch's names."""
    backends = {
        "gloo": torch.distributed.is_gloo_available,
        "nccl": torch.distributed.is_nccl_available,
        "mpi": torch.distributed.is_mpi_available,
    }
    return [name for name, there in backends.items() if there()] if torch.distributed.is_available() else ["none"]
