"""A CPU that stands in for GPUs, so that torch's DDP tests, nearly all written for two GPUs, run on any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any
from unittest.mock import Mock

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

CPU = torch.device("cpu")


class OnCPU(TorchFunctionMode):
    """Sends to the CPU every tensor that is meant for a GPU: `device=rank`, `.to(rank)`, `.cuda()`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = {k: _device(v) if k == "device" else v for k, v in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0].clone()
        if func is torch.Tensor.to:
            args = [args[0], *map(_device, args[1:])]
        return func(*args, **options)


def _device(value: Any) -> Any:
    """The CPU in place of a GPU: as a number (but not as the flag of `non_blocking`), as a text, as a device."""
    number = isinstance(value, int) and not isinstance(value, bool)
    named = isinstance(value, str) and value.startswith("cuda")
    return CPU if number or named or (isinstance(value, torch.device) and value.type == "cuda") else value


def stand_in_for_gpus(world_size: int) -> None:
    """Have the tests believe in one GPU for each rank. Call it before torch's module of tests is imported."""
    common_distributed.skip_if_no_gpu = lambda test: test
    common_distributed.skip_if_lt_x_gpu = lambda *_, **__: lambda test: test
    torch.cuda.device_count = lambda: world_size
    torch.cuda.current_device = lambda: 0
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.device = lambda *_: nullcontext()
    torch.accelerator.current_stream = lambda *_: Mock()
    torch.nn.Module.cuda = lambda self, *_: self
    _wrap(torch.nn.Module, "to", lambda args, options: (map(_device, args), options))
    _wrap(DistributedDataParallel, "__init__", lambda args, options: (args, _without_devices(options)))


def _without_devices(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("device_ids", "output_device")}


def _wrap(owner: type, name: str, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    """Have a method called with other arguments."""
    method = getattr(owner, name)

    @wraps(method)
    def changed(self: Any, *args: Any, **options: Any) -> Any:
        args, options = change(args, options)
        return method(self, *args, **options)

    setattr(owner, name, changed)
