"""A method whose messages were made once and are sent again and again, while computing and encoding are slept.

So hosts whose models would not fit on this machine's cores show what the wire does with their bytes.
"""

from __future__ import annotations

import time
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

import thinwire
from thinwire.channel import Channel
from thinwire.exchange import Exchange, Sharded, allreduce_bytes
from thinwire.lab.setting import ALONE, LabSetting, is_rule, rule_and_exchange
from thinwire.outgoing import Given
from thinwire.training.config import TORCH_METHODS
from thinwire.training.tasks import Task

SETTLED = 22
"""Steps that a rule takes before its message is kept: MemAdam's first ones hold its second moments as well."""
BUCKET = 25 << 20
"""Bytes of DDP's buckets."""


@final
class Echo:
    """A method on one host: it sleeps, sends what it would send, and waits for what it would hear."""

    has_parts = False
    seconds: dict[str, float]

    def __init__(self, method: str, setting: LabSetting, task: Task, exchange: Exchange) -> None:
        codec = (setting.codec or 0.0) if is_rule(method) else 0.0
        self._sleep = (setting.every * (setting.replay or 0.0) + codec) / 1e3
        self._exchange = exchange
        self.method, self.hosts, self.done, self.seconds = method, setting.hosts, 0, {}
        parameters: dict[str, Tensor] = {name: p.detach() for name, p in task.model(0).named_parameters()}
        self.numel = sum(parameter.numel() for parameter in parameters.values())
        self._message = _told(exchange, method, parameters) if is_rule(method) else None
        self._buffers = [] if method == ALONE or self._message is not None else _buckets(self.numel, method)

    def step(self) -> None:
        """One exchange, and the computing before it."""
        time.sleep(self._sleep)
        if self._message is not None:
            self._exchange.begin("an echo")
            self._carry(self._message)
            self._exchange.everyone([0, 1], "the verdict")
        for work in [dist.all_reduce(buffer, async_op=True) for buffer in self._buffers]:
            work.wait()
        self.done += 1

    def _carry(self, message: Tensor) -> None:
        """Everyone's message to all, or a share of it to each owner and as much back."""
        if not isinstance(self._exchange, Sharded):
            self._exchange.gather(message, fixed=True, longest=0, what="an echo").wait()
            return
        share = message[: -(-message.numel() // self.hosts)]
        for _ in range(2):
            self._exchange.trade([share] * self.hosts, [share.numel()] * self.hosts, "an echo").wait()

    def sent(self) -> int:
        """Bytes that left this host so far."""
        if self._message is not None and isinstance(self._exchange, Sharded):
            return self.done * 2 * (self.hosts - 1) * -(-self._message.numel() // self.hosts)
        if self._message is not None:
            return self.done * (self.hosts - 1) * self._message.numel()
        return self.done * allreduce_bytes(sum(buffer.nbytes for buffer in self._buffers), self.hosts)


def _told(exchange: Exchange, method: str, parameters: dict[str, Tensor]) -> Tensor:
    """Host 0's message; on the others as many zeros."""
    message = message_of(method, parameters) if exchange.rank == 0 else torch.empty(0, dtype=torch.uint8)
    size = exchange.everyone([message.numel()], "the size of an echo")[0][0]
    return message if exchange.rank == 0 else torch.zeros(size, dtype=torch.uint8)


def message_of(method: str, parameters: dict[str, Tensor]) -> Tensor:
    """What a rule says of normal gradients once its state has settled: all parameters in one letter."""
    rule, generator = thinwire.parse(rule_and_exchange(method)[0]), torch.Generator().manual_seed(0)
    channel = Channel(rule, parameters, rank=0, size=1)
    layout, sizes = channel.layout(list(parameters)), dict.fromkeys(parameters, 1.0)
    gradient = torch.randn(layout.numel, generator=generator)
    for _ in range(SETTLED):
        sent = channel.send(layout, Given(gradient, step_sizes=sizes))
        channel.receive(sent, [sent.message], torch.empty_like(gradient))
        channel.finish()
    return sent.message


def _buckets(numel: int, method: str) -> list[Tensor]:
    """What torch's all-reduce sums, in DDP's portions."""
    dtype = TORCH_METHODS[method].dtype
    return list(torch.split(torch.zeros(numel, dtype=dtype), BUCKET // dtype.itemsize))
