"""Mem-SGD under DDP with a moving learning rate is Mem-SGD in update units, as the paper writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.dist.training import Run, loss_of, network
from tests.dist.world import run_world

pytestmark = pytest.mark.dist

STEPS = 60
RUN = Run("memsgd(topk(0.1))", dtype=torch.float64)
RATES = {1: 0.02, 2: 0.1}  # by the parameter's dimension: biases and weights are two groups


def rate(step: int, ndim: int) -> float:
    """A step decay for the weights, a warm-up from zero for the biases."""
    return RATES[2] * (0.1 if step >= 30 else 1.0) if ndim == 2 else RATES[1] * min(1.0, step / 10)


def train(rank: int, size: int) -> dict[str, np.ndarray]:
    from torch.nn.parallel import DistributedDataParallel

    import thinwire

    model = network().double()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    groups = [{"params": [p for p in model.parameters() if p.ndim == ndim], "lr": 1.0} for ndim in (1, 2)]
    optimizer = torch.optim.SGD(groups)
    thinwire.attach(ddp, thinwire.parse(RUN.rule), optimizer)
    for step in range(STEPS):
        for ndim, group in enumerate(optimizer.param_groups, start=1):
            group["lr"] = rate(step, ndim)
        optimizer.zero_grad()
        loss_of(ddp, RUN, step, rank, 0).backward()
        optimizer.step()
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


def top(m: np.ndarray, ratio: float) -> np.ndarray:
    """top_k of a vector: the rest zero, ties to the lower index."""
    k = max(1, int(ratio * m.size + 1e-9))
    kept = np.argsort(-np.abs(m), kind="stable")[:k]
    out = np.zeros_like(m)
    out[kept] = m[kept]
    return out


def transcription(workers: int) -> dict[str, np.ndarray]:
    """m_w <- m_w + rate * gradient;  c_w = top_k(m_w);  m_w <- m_w - c_w;  x <- x - mean of c_w."""
    model = network().double()
    memory = [{name: np.zeros(p.numel()) for name, p in model.named_parameters()} for _ in range(workers)]
    for step in range(STEPS):
        gradients = []
        for worker in range(workers):
            model.zero_grad()
            loss_of(model, RUN, step, worker, 0).backward()
            gradients.append({n: p.grad.numpy().ravel().copy() for n, p in model.named_parameters()})  # type: ignore[union-attr]
        for name, parameter in model.named_parameters():
            total = np.zeros(parameter.numel())
            size = rate(step, parameter.ndim)
            for worker in range(workers):
                memory[worker][name] += size * gradients[worker][name]
                sent = (
                    top(memory[worker][name], 0.1) if size else 0.0
                )  # a rate of zero applies nothing, so nothing is sent
                memory[worker][name] = memory[worker][name] - sent
                total += sent
            parameter.data -= torch.from_numpy(total / workers).view_as(parameter)
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


def test_memsgd_under_ddp_is_memsgd_in_update_units(tmp_path: Path) -> None:
    expected = transcription(2)
    for trained in run_world(2, train, folder=tmp_path):
        for name, value in expected.items():
            assert np.abs(trained[name] - value).max() <= 64 * np.finfo(np.float64).eps * STEPS * np.abs(value).max()
