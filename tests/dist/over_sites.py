"""What ranks of several sites do, in one process: a simulation over sites for each shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import thinwire
from thinwire.engines.sites.shard import Shard


def simulated(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[nn.Module, int, int], Tensor],
    rule: str,
    sites: int,
    members: int,
    steps: int,
) -> dict[str, Tensor]:
    """The parameters after some steps: a site's gradient is the sum over its members, in their order, over m."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    cuts = [{n: Shard(tuple(p.shape) or (1,), 0, j, members) for n, p in trained.items()} for j in range(members)]
    simulations = [
        thinwire.Simulation({n: cut[n].of(p.detach().view(cut[n].whole)) for n, p in trained.items()}, rule, sites)
        for cut in cuts
    ]
    for step in range(steps):
        gradients = [_gradient(model, trained, loss_of(model, step, rank)) for rank in range(sites * members)]
        means = [_mean(gradients[site * members :][:members]) for site in range(sites)]
        rates = {
            name: float(group["lr"])
            for group in optimizer.param_groups
            for name, p in trained.items()
            if any(p is each for each in group["params"])
        }
        results = [
            simulation.exchange([{n: _own(cut[n], mean[n]) for n in trained} for mean in means], rates)
            for simulation, cut in zip(simulations, cuts, strict=True)
        ]
        for name, parameter in trained.items():
            parameter.grad = torch.cat([result[name] for result in results]).view(parameter.shape)
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def _gradient(model: nn.Module, trained: dict[str, Any], loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    torch.autograd.backward(loss)
    return {name: p.grad.clone() for name, p in trained.items()}


def _mean(gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    total = {name: gradient.clone() for name, gradient in gradients[0].items()}
    for more in gradients[1:]:
        for name, gradient in more.items():
            total[name] += gradient
    return {name: each / len(gradients) for name, each in total.items()}


def _own(shard: Shard, mean: Tensor) -> Tensor:
    return shard.of(mean.view(shard.whole)).contiguous()
