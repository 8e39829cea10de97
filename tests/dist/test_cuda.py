"""On a GPU: every compressor gives the message it gives on the CPU, and DDP over NCCL equals the simulation."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.dist.training import batch, network
from tests.dist.world import run_world
from tests.methods import COMPRESSORS, DDP_STATES
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import Compressor, Feedback, Key, Layout
from thinwire.moments import watch
from thinwire.payload import Reader, pack_payload, unpack_payload

pytestmark = [pytest.mark.gpu, pytest.mark.dist]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_a_message_decodes_on_the_gpu_to_what_the_cpu_decodes(compressor: Compressor) -> None:
    """Positions and signs are equal; scales are sums, whose order differs: within 2 log2(n) roundings."""
    layout = Layout.of([("a", 0, (300, 7)), ("b", 1, (5,)), ("c", 2, (0,)), ("d", 3, (1001,))])
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    key = Key(1, 2, 3)
    decoded = {}
    for device in ("cpu", "cuda"):
        packed = pack_payload(compressor(x.to(device), layout, key))
        assert packed.device.type == device
        arrived = unpack_payload(Reader(packed), layout, key, torch.float32)
        decoded[device] = arrived.decode(layout, torch.float32, device).cpu()
    slack = 2 * 12 * torch.finfo(torch.float32).eps * decoded["cpu"].abs()
    different = (decoded["cuda"] - decoded["cpu"]).abs() > slack
    stochastic = "qsgd" in str(compressor)  # a level may fall on the other side of its draw when the norm differs
    assert different.sum() <= (4 if stochastic else 0)


def train(rank: int, size: int) -> list[bool]:
    """A world of one over NCCL against the simulation of one worker, both on the GPU."""
    group = dist.new_group(backend="nccl")
    torch.use_deterministic_algorithms(True, warn_only=True)
    same = []
    for rule in DDP_STATES:
        models = [network().cuda(), network().cuda()]
        chosen = thinwire.parse(rule)
        momentum = 0.0 if isinstance(chosen, Feedback) and chosen.has_momentum else 0.9
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=momentum) for m in models]
        ddp = DistributedDataParallel(models[0], process_group=group, bucket_cap_mb=0.001)
        thinwire.attach(ddp, chosen, optimizers[0], moments=watch(ddp, rule=chosen))
        named = dict(models[1].named_parameters())
        simulation = thinwire.Simulation(named, chosen, 1, optimizer=optimizers[1])
        moments = watch(models[1], rule=chosen)
        for step in range(10):
            x, y = (part.cuda() for part in batch(step, 0))
            optimizers[0].zero_grad()
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizers[0].step()
            gradients = torch.autograd.grad(nn.functional.cross_entropy(models[1](x), y), list(named.values()))
            simulation.step([dict(zip(named, gradients, strict=True))], [moments.take()])
        pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
        same.append(all(torch.equal(a, b) for a, b in pairs))
    return same


def test_ddp_over_nccl_equals_the_simulation(tmp_path: Path) -> None:
    """In a spawned process: no fork may use CUDA where its parent has asked for it."""
    spawn = multiprocessing.get_context("spawn")
    assert run_world(1, train, folder=tmp_path, context=spawn) == [[True] * len(DDP_STATES)]
