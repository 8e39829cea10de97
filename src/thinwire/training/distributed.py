"""The distributed run: this process is one rank of a real group, trained with DDP and a comm hook."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.moments import watch
from thinwire.training.backward import check_served, needs_moments
from thinwire.training.config import RunConfig
from thinwire.training.optimizer import OPTIMIZERS, set_learning_rate_
from thinwire.training.peers import PEERS
from thinwire.training.run import Run
from thinwire.training.tasks.task import Task
from thinwire.training.totals import Totals

POWERSGD_START = 2
"""Dense steps before torch's PowerSGD begins; 2 is the least that its warm start allows."""
ONE_BUCKET_MB = 4096
"""torch's PowerSGD hook hangs on gloo with several buckets in flight, so it gets one."""


@final
class DistributedRun(Run):
    """One rank's share of a run; all ranks make the same calls in the same order."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.config, self.task = config, task
        self.model = task.model(config.seed)
        self.ddp = DistributedDataParallel(
            self.model, bucket_cap_mb=ONE_BUCKET_MB if config.method == "powersgd" else None
        )
        self.optimizer = OPTIMIZERS[config.optimizer](self.ddp.parameters(), config.lr, config.weight_decay)
        self._losses: list[float] = []
        self._steps = 0
        self._handle: Any = None
        self._powersgd: Any = None
        self._register()

    def _register(self) -> None:
        """Give DDP the method's hook; `dense` is DDP without one."""
        if self.config.method == "fp16":
            self.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif self.config.method == "powersgd":
            self._powersgd = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=1, start_powerSGD_iter=POWERSGD_START, random_seed=self.config.seed
            )
            self.ddp.register_comm_hook(self._powersgd, powerSGD_hook.powerSGD_hook)
        elif self.config.method not in PEERS:
            rule = thinwire.parse(self.config.method)
            moments = None
            if needs_moments(rule, self.model):
                check_served(rule, self.model)
                moments = watch(self.ddp, rule=rule)
            self._handle = thinwire.attach(self.ddp, rule, self.optimizer, moments=moments, seed=self.config.seed)

    def step(self, step: int) -> None:
        config = self.config
        set_learning_rate_(self.optimizer, config.schedule, config.lr, step, config.steps)
        self.optimizer.zero_grad()
        batch = self.task.batch(config.seed, step, dist.get_rank(), config.workers, config.batch)
        loss = self.task.loss(self.ddp, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._losses.append(float(loss.detach()))
        self._steps += 1

    def settle(self) -> None:
        """DDP gives every rank the buffers of rank 0 at each step; rank 0 evaluates."""

    def take_losses(self) -> list[float]:
        mine = torch.tensor(self._losses, dtype=torch.float64)
        self._losses = []
        everyone = [torch.empty_like(mine) for _ in range(self.config.workers)]
        dist.all_gather(everyone, mine)
        return [sum(losses) / len(losses) for losses in zip(*(each.tolist() for each in everyone), strict=True)]

    def traffic(self) -> Totals:
        if self._handle is not None:
            return Totals.of_ledger(self._handle.ledger.summary())
        return self._peer_traffic()

    def _peer_traffic(self) -> Totals:
        numel = sum(parameter.numel() for parameter in self.model.parameters())
        size = 2 if self.config.method == "fp16" else 4
        traffic = Totals.of_allreduce(size * numel, numel, self.config.workers, self._steps)
        if self._powersgd is None:
            return traffic
        numbers = min(self._steps, POWERSGD_START) * numel + self._powersgd.total_numel_after_compression
        sent = Totals.of_allreduce(4 * numbers, numel, self.config.workers, 1).sent
        return Totals(sent, traffic.dense_fp32, traffic.dense_fp16)
